"""dtypes converted on the way, in host memory: bit for bit what PyTorch's `to()` gives of what safetensors reads, for
whole tensors, slices, shards and memory of the caller's; what `dtype=` converts and what it leaves."""

import itertools

import cast_rules
import ml_dtypes
import numpy
import pytest
import reference

import headrace
from headrace import _dtypes

PAIRS = [(a, b) for a, b in itertools.permutations(_dtypes.BITS, 2) if _dtypes.converts(a, b)]


@pytest.fixture(scope="module")
def made():
    return cast_rules.tensors()


@pytest.fixture(scope="module")
def path(tmp_path_factory, made):
    return reference.write_by_hand(tmp_path_factory.mktemp("cast") / "x.safetensors", made, padding=3)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    tensors = {
        "layer.weight": ("F32", [3, 5], numpy.arange(15, dtype="<f4").tobytes()),
        "layer.scale": ("F32", [5], numpy.arange(5, dtype="<f4").tobytes()),
        "layer.ids": ("I64", [4], numpy.arange(4, dtype="<i8").tobytes()),
        "layer.mask": ("BOOL", [4], b"\1\0\1\0"),
        "layer.half": ("F16", [6], numpy.arange(6, dtype="<f2").tobytes()),
        "layer.packed": ("F4", [2, 8], bytes(range(8))),
    }
    return reference.write_by_hand(tmp_path_factory.mktemp("mixed") / "x.safetensors", tensors)


def dtypes_of(path, dtype):
    return {name.removeprefix("layer."): tensor.dtype for name, tensor in headrace.load(path, dtype=dtype).items()}


AS_STORED = {"weight": "F32", "scale": "F32", "ids": "I64", "mask": "BOOL", "half": "F16", "packed": "F4"}


# ------------------------------------------------------------------------------------------------ what is converted


@pytest.mark.parametrize("dtype", [None, "auto", {}, {"*": None}, {"*": "auto"}])
def test_as_stored(mixed, dtype):
    assert dtypes_of(mixed, dtype) == AS_STORED


@pytest.mark.parametrize("dtype", ["bfloat16", "BF16", "bf16", numpy.dtype(ml_dtypes.bfloat16), {"*": "BF16"}])
def test_one_dtype_is_for_floats(mixed, dtype):
    assert dtypes_of(mixed, dtype) == AS_STORED | {"weight": "BF16", "scale": "BF16", "half": "BF16"}


def test_what_must_keep_its_type_is_named(mixed):
    for kept in ("auto", None, "F32"):
        found = dtypes_of(mixed, {"*": "F16", "*.scale": kept})
        assert found == AS_STORED | {"weight": "F16", "half": "F16"}


def test_patterns_name_integers_too(mixed):
    found = dtypes_of(mixed, {"*.[im]*": "I32", "layer.mask": "U8", "*": "F64"})
    assert found == AS_STORED | {"weight": "F64", "scale": "F64", "half": "F64", "ids": "I32", "mask": "U8"}


def test_refused(mixed):
    with pytest.raises(headrace.errors.Unsupported, match=r"'layer.packed' is stored as F4.*to F32") as raised:
        headrace.load(mixed, dtype={"*.packed": "F32"})
    assert raised.value.tensor == "layer.packed"
    with pytest.raises(ValueError, match="none of"):
        headrace.load(mixed, dtype="float33")
    with pytest.raises(KeyError, match="no tensor's name matches"):
        headrace.load(mixed, dtype={"*.nothing": "F32"})


# ------------------------------------------------------------------------------------------------------ the bytes


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_bitwise(path, made, pair):
    stored, wanted = pair
    name = f"{stored}.wide"
    tensor = headrace.load(path, name, dtype={name: wanted})[name]
    assert (tensor.dtype, list(tensor.shape)) == (wanted, made[name][1])
    assert bytes(tensor.raw()) == cast_rules.converted(*made[name], wanted)


def test_all_at_once(path, made):
    """One load of all, each to some dtype; slices and shards of them, too."""
    targets = {name: [b for a, b in PAIRS if a == made[name][0]] or [made[name][0]] for name in made}
    chosen = {name: targets[name][len(name) % len(targets[name])] for name in made}
    index = {"*.wide": numpy.s_[3:40:2, 5:], "*.empty": headrace.shard(1, 1, 2)}
    for slices in (None, index):
        for options in ({}, {"window_bytes": 1000}, {"lazy": True}):
            loaded = headrace.load(path, dtype=chosen, slices=slices, **options)
            for name, tensor in loaded.items():
                part = made[name]
                if slices and name.endswith(".wide"):
                    part = cast_rules.part(part, numpy.s_[3:40:2, 5:])
                assert bytes(tensor.raw()) == cast_rules.converted(*part, chosen[name]), name


def test_numpy_gets_what_it_can_hold(path, made):
    loaded = headrace.load(path, "BF16.wide", framework="numpy", dtype="float32")["BF16.wide"]
    assert loaded.dtype == numpy.float32
    assert loaded.tobytes() == cast_rules.converted(*made["BF16.wide"], "F32")


def test_torch_gets_its_own(path, made):
    torch = pytest.importorskip("torch")
    loaded = headrace.load(path, ["F32.*", "I64.*"], framework="pt", dtype=torch.bfloat16)
    assert loaded["F32.wide"].dtype == torch.bfloat16 and loaded["I64.wide"].dtype == torch.int64
    assert loaded["F32.empty"].shape == tuple(made["F32.empty"][1]) and loaded["F32.scalar"].shape == ()
    found = loaded["F32.wide"].view(torch.uint8).numpy().tobytes()
    assert found == cast_rules.converted(*made["F32.wide"], "BF16")


def test_stats(path, made):
    with headrace.open(path) as checkpoint:
        checkpoint.load("F32.wide", dtype="BF16")
        stats = checkpoint.last_stats
    assert stats.bytes_needed == stats.bytes_converted == len(made["F32.wide"][2])
    assert stats.bytes_allocated * 2 == stats.bytes_needed and stats.conversion == "readers"


# ------------------------------------------------------------------------------------------------------------ into


def test_into_memory_of_another_dtype(path, made):
    array = numpy.zeros(made["BF16.wide"][1], "f4")
    headrace.load(path, into={"BF16.wide": array})
    assert array.tobytes() == cast_rules.converted(*made["BF16.wide"], "F32")
    rows, columns = made["F64.wide"][1]
    space = numpy.zeros((columns + 3, rows * 2), "f2")
    turned = space.T[::2, 3:]  # strides in either order, and gaps
    headrace.load(path, into={"F64.wide": turned})
    assert numpy.ascontiguousarray(turned).tobytes() == cast_rules.converted(*made["F64.wide"], "F16")
    assert not space[:3].any() and not space[:, 1::2].any()
    buffer = bytearray(len(made["F32.wide"][2]) // 2)
    headrace.load(path, into={"F32.wide": buffer}, dtype="bfloat16")
    assert bytes(buffer) == cast_rules.converted(*made["F32.wide"], "BF16")


def test_into_refused(path, mixed, made):
    array = numpy.zeros(made["BF16.wide"][1], "f4")
    with pytest.raises(headrace.errors.InvalidArgument, match="dtype= asks for F16 and the memory to load into is F32"):
        headrace.load(path, into={"BF16.wide": array}, dtype="F16")
    with pytest.raises(headrace.errors.Unsupported, match="stored as C64, which cannot be converted"):
        headrace.load(path, into={"C64.wide": numpy.zeros(made["C64.wide"][1], "f4")})
