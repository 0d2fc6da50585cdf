"""Which framework takes which dtype by DLPack, and how: the matrix that the package is built on, as a test."""

import contextlib

import numpy
import pytest
import reference

import headrace

DTYPES = list(reference.DTYPE_BITS)

# What each framework makes of a headrace.Tensor; an exception is what it raises.
TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
    "U64": "uint64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
    "F6_E2M3": BufferError, "F6_E3M2": BufferError,
}
NUMPY = {
    dtype: (BufferError, RuntimeError) if dtype == "BF16" or dtype.startswith(("F8_", "F4")) else name
    for dtype, name in TORCH.items()
}
JAX = {
    **{dtype: name for dtype, name in TORCH.items() if not dtype.startswith("F6_")},
    "F6_E2M3": BufferError, "F6_E3M2": BufferError, "F4": Exception,
    "F64": "float32", "I64": "int32", "U64": "uint32",  # while jax_enable_x64 is off; loading refuses that by name
}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    generator = numpy.random.default_rng(4)
    made = {dtype: reference.random_tensor(generator, dtype, [4, 8]) for dtype in DTYPES}
    made["BOOL"] = ("BOOL", [4, 8], bytes(byte & 1 for byte in made["BOOL"][2]))
    path = reference.write_by_hand(tmp_path_factory.mktemp("matrix") / "x.safetensors", made)
    return {name: (tensor, made[name][2]) for name, tensor in headrace.load(path).items()}


def check(importer, expected, tensor, data):
    if not isinstance(expected, str):
        with pytest.raises(expected):
            importer(tensor)
        return None
    imported = importer(tensor)
    assert str(imported.dtype).removeprefix("torch.") == expected
    return imported


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(tensors, dtype):
    torch = pytest.importorskip("torch")
    tensor, data = tensors[dtype]
    imported = check(torch.from_dlpack, TORCH[dtype], tensor, data)
    if imported is not None:
        assert list(imported.shape) == [4, 4 if dtype == "F4" else 8]
        assert imported.data_ptr() == tensor.data_ptr()
        assert imported.flatten().view(torch.uint8).numpy().tobytes() == data


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy(tensors, dtype):
    tensor, data = tensors[dtype]
    imported = check(numpy.from_dlpack, NUMPY[dtype], tensor, data)
    if imported is not None:
        assert imported.tobytes() == data and imported.flags.writeable
        assert imported.__array_interface__["data"][0] == tensor.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax(tensors, dtype):
    jax = pytest.importorskip("jax")
    import jax.dlpack  # noqa: F811

    tensor, data = tensors[dtype]
    imported = check(jax.dlpack.from_dlpack, JAX[dtype], tensor, data)
    if imported is not None and dtype not in ("F64", "I64", "U64"):
        assert numpy.asarray(imported).tobytes() == data


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_bytes_always_work(tensors, dtype):
    tensor, data = tensors[dtype]
    assert bytes(tensor) == data
    assert numpy.frombuffer(tensor, numpy.uint8).tobytes() == data


KEYWORDS = [
    {},
    {"stream": None},
    {"stream": 1},
    {"max_version": (1, 0), "stream": -1},
    {"max_version": (1, 0)},
    {"dl_device": None, "copy": None, "max_version": (1, 0)},
    {"dl_device": (1, 0), "copy": False},
    {"copy": True},
    {"copy": True, "max_version": (2, 5)},
    {"max_version": (0, 8)},
    {"max_version": None, "stream": None, "dl_device": None, "copy": None},
]


@pytest.mark.parametrize("keywords", KEYWORDS, ids=str)
def test_any_subset_of_the_keywords(tensors, keywords):
    tensor, data = tensors["F32"]
    capsule = tensor.__dlpack__(**keywords)
    versioned = (keywords.get("max_version") or (0, 0))[0] >= 1
    assert ("dltensor_versioned" in repr(capsule)) == versioned

    class Once:
        def __dlpack__(self, **_):
            return capsule

        def __dlpack_device__(self):
            return tensor.__dlpack_device__()

    array = numpy.from_dlpack(Once())
    assert array.tobytes() == data
    same = array.__array_interface__["data"][0] == tensor.data_ptr()
    assert same != bool(keywords.get("copy"))


def test_what_the_keywords_refuse(tensors):
    tensor, _ = tensors["F32"]
    assert tensor.__dlpack_device__() == (1, 0)
    for wrong in [{"dl_device": (2, 0)}, {"dl_device": (1, 1)}]:
        with pytest.raises(BufferError):
            tensor.__dlpack__(**wrong)
    for wrong in [{"max_version": 1}, {"dl_device": 1}, {"other": 1}]:
        with pytest.raises(TypeError):
            tensor.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)


def test_f4_that_does_not_fill_bytes_is_refused_by_name(tmp_path):
    path = reference.write_by_hand(tmp_path / "x.safetensors", {"x": ("F4", [2, 3], b"abc")})
    tensor = headrace.load(path)["x"]
    assert bytes(tensor) == b"abc" and tensor.shape == (2, 3) and tensor.data_ptr() % 256 == 0
    with pytest.raises(BufferError, match="F4"):
        tensor.__dlpack__()
    pytest.importorskip("torch")
    with pytest.raises(headrace.errors.Unsupported, match="last dimension"):
        headrace.load(path, framework="pt")


IN_NUMPY = set(DTYPES) - {"F4", "F6_E2M3", "F6_E3M2"}


@pytest.mark.parametrize("framework", ["numpy", "jax", "torch", None])
def test_what_a_framework_holds_goes_out_and_in(tmp_path, framework):
    """Every dtype is loaded and saved again with the same bytes, by the framework or, refused by name, without one."""
    pytest.importorskip(framework or "headrace")
    held = {"numpy": IN_NUMPY, "jax": IN_NUMPY, "torch": IN_NUMPY | {"F4"}, None: set(DTYPES)}[framework]
    generator = numpy.random.default_rng(6)
    for dtype in DTYPES:
        kind, shape, data = reference.random_tensor(generator, dtype, [4, 8])
        data = bytes(byte & 1 for byte in data) if dtype == "BOOL" else data
        path = reference.write_by_hand(tmp_path / f"{dtype}.safetensors", {"x": (kind, shape, data)})
        with wide(framework):
            if dtype not in held:
                with pytest.raises(headrace.errors.Unsupported, match=f"{framework}.*{dtype}.*raw"):
                    headrace.load(path, framework=framework)
                continue
            headrace.save_file(headrace.load(path, framework=framework), tmp_path / "again.safetensors")
        assert reference.read(tmp_path / "again.safetensors") == {"x": (kind, shape, data)}


def wide(framework):
    """JAX holds 64 bits only when it is told to."""
    if framework != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)
