"""Conversions of dtypes against torch.Tensor.to() on the processor: every input of 8 and 16 bits, every exponent of F32
and F64 with ties and random mantissas, integers of every size. Where torch's own devices differ, and only there, the
rules of docs/dtypes.md stand in: NaNs of wide floats, and floats that do not fit an integer."""

import functools
import subprocess

import numpy
import pytest

torch = pytest.importorskip("torch")

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
F8 = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
      "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu}
INTEGERS = {"BOOL": torch.bool, "I8": torch.int8, "U8": torch.uint8, "I16": torch.int16, "U16": torch.uint16,
            "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64}
DTYPES = FLOATS | F8 | INTEGERS
PAIRS = [(a, b) for a in DTYPES for b in DTYPES if a != b and
         (a in FLOATS or b in FLOATS or a in INTEGERS and b in INTEGERS) and
         not (a in F8 and b in INTEGERS or a in INTEGERS and b in F8)]
MANTISSA = {"F64": 52, "F32": 23}


def unsigned(dtype: str) -> type:
    return {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}[DTYPES[dtype].itemsize]


def float_bits(dtype: str) -> numpy.ndarray:
    """Both signs of every exponent with random mantissas, and with halves of each last place and their neighbours."""
    random = numpy.random.default_rng(8)
    bits = DTYPES[dtype].itemsize * 8
    tops = numpy.arange(1 << (bits - MANTISSA[dtype]), dtype=numpy.uint64) << numpy.uint64(MANTISSA[dtype])
    mantissas = random.integers(0, 1 << MANTISSA[dtype], (len(tops), 64), dtype=numpy.uint64)
    halves = [(int(random.integers(0, 1 << 52)) >> place | 1) << place for place in range(MANTISSA[dtype])]
    ties = numpy.array([half + near for half in halves for near in (-1, 0, 1)], dtype=numpy.int64).astype(numpy.uint64)
    ties %= numpy.uint64(1 << MANTISSA[dtype])
    return numpy.concatenate([(tops[:, None] | mantissas).ravel(), (tops[:, None] | ties[None, :]).ravel()])


def integer_bits(dtype: str) -> numpy.ndarray:
    """Of every size: random ones, powers of two, halves between floats, and the neighbours of these."""
    random = numpy.random.default_rng(9)
    bits = DTYPES[dtype].itemsize * 8
    values = [0]
    for size in range(1, bits + 1):
        for cut in range(0, size, 3):
            some = int(random.integers(0, 1 << 62)) | int(random.integers(0, 4)) << 62
            half = (some % (1 << size) >> cut | 1) << cut
            values += [some % (1 << size), half - 1, half, half + 1, -half, (1 << size) - 1, 1 << size]
    return numpy.array([value % (1 << bits) for value in values], dtype=numpy.uint64)


@functools.cache
def inputs(dtype: str) -> numpy.ndarray:
    """Bits; a multiple of 64 elements, for torch's last elements of a tensor go another way than the others."""
    bits = DTYPES[dtype].itemsize * 8
    if dtype == "BOOL":
        made = numpy.arange(2)
    elif bits <= 16:
        made = numpy.arange(1 << bits)
    else:
        made = float_bits(dtype) if dtype in MANTISSA else integer_bits(dtype)
    return numpy.resize(made.astype(unsigned(dtype)), (len(made) + 63) // 64 * 64)


def as_torch(bits: numpy.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(bits.view(numpy.uint8)).view(DTYPES[dtype])


def bits_of(tensor: torch.Tensor, dtype: str) -> numpy.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy().view(unsigned(dtype))


def nans(dtype: str, bits: numpy.ndarray) -> numpy.ndarray:
    return numpy.isnan(as_torch(bits, dtype).double().numpy())


def convert(build, source: str, target: str, bits: numpy.ndarray, skew: int = 0) -> numpy.ndarray:
    program = build / "convert_elements"
    assert program.exists(), "cmake --build build --target convert_elements"
    result = subprocess.run([program, source, target, str(skew)], input=bits.tobytes(), capture_output=True, check=True)
    return numpy.frombuffer(result.stdout, dtype=unsigned(target))


def quiet(source: str, target: str, bits: numpy.ndarray) -> numpy.ndarray:
    """NaNs of a wide float as those of another: the sign, a quiet one, and the leading bits of the payload."""
    mantissa = {"F64": 52, "F32": 23, "F16": 10, "BF16": 7}
    shift = 52 - mantissa[source]
    wide = bits.astype(numpy.uint64)
    payload = (wide & numpy.uint64((1 << mantissa[source]) - 1)) << numpy.uint64(shift)
    sign = wide >> numpy.uint64(DTYPES[source].itemsize * 8 - 1)
    width = DTYPES[target].itemsize * 8
    top = numpy.uint64((1 << (width - 1)) - (1 << mantissa[target]) | 1 << (mantissa[target] - 1))
    made = sign << numpy.uint64(width - 1) | top | payload >> numpy.uint64(52 - mantissa[target])
    return made.astype(unsigned(target))


def fits(source: str, target: str, bits: numpy.ndarray) -> numpy.ndarray:
    """Where a float, cut off, is in the range of the integer."""
    low, high = torch.iinfo(DTYPES[target]).min, torch.iinfo(DTYPES[target]).max
    values = as_torch(bits, source).double().numpy()
    with numpy.errstate(invalid="ignore"):
        return (numpy.trunc(values) >= low) & (values < float(high + 1))


def low_bits(source: str, target: str, bits: numpy.ndarray) -> numpy.ndarray:
    """The rule for floats that do not fit, in Python's integers."""
    width = 32 if target in ("I8", "I16", "I32") else 64
    low, end = -(1 << (width - 1)), 1 << (width if target == "U64" else width - 1)
    made = []
    for value in as_torch(bits, source).double().tolist():
        whole = int(value) if numpy.isfinite(value) else low
        made.append((whole if low <= whole < end else low) % (1 << DTYPES[target].itemsize * 8))
    return numpy.array(made, dtype=numpy.uint64).astype(unsigned(target))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda name: name)
def test_as_torch(build, source, target):
    bits = inputs(source)
    got = convert(build, source, target, bits)
    known = bits_of(as_torch(bits, source).to(DTYPES[target]), target).copy()
    if source in FLOATS and target in FLOATS and (source, target) != ("BF16", "F32"):
        wrong = nans(source, bits)
        known[wrong] = quiet(source, target, bits[wrong])
    elif source in FLOATS and target in INTEGERS and target != "BOOL":
        wrong = ~fits(source, target, bits)
        few = numpy.flatnonzero(wrong)
        few = few[:: len(few) // 20000 + 1]
        known[wrong] = got[wrong]  # all but these few are not looked at
        known[few] = low_bits(source, target, bits[few])
    elif source in F8 and target not in ("F32", "F64"):
        wrong = nans(source, bits)
        assert nans(target, got[wrong]).all()
        wide = bits_of(as_torch(bits, source).to(torch.float32), "F32")
        known[wrong] = quiet("F32", target, wide[wrong])
    different = numpy.flatnonzero(got != known)
    assert len(got) == len(known)
    assert not len(different), [(hex(bits[i]), hex(got[i]), hex(known[i])) for i in different[:5]]


@pytest.mark.parametrize("skew", [1, 3])
@pytest.mark.parametrize(("source", "target"), [("F32", "BF16"), ("F16", "F32"), ("F8_E4M3", "BF16"), ("I64", "F64")])
def test_wherever_they_lie(build, source, target, skew):
    bits = inputs(source)[: 64 * 9 + 5]
    assert (convert(build, source, target, bits, skew) == convert(build, source, target, bits)).all()


def test_a_byte_that_is_no_bool_is_true(build):
    every = numpy.arange(256, dtype=numpy.uint8)
    assert (convert(build, "BOOL", "U8", every) == (every != 0)).all()
    assert (convert(build, "BOOL", "F32", every).view(numpy.float32) == (every != 0)).all()
