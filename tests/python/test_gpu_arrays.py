"""CuPy and JAX on a real GPU: every dtype there and back. Skipped without one."""

import os

import numpy
import pytest
import reference

import headrace

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes three quarters of the device

IN_CUPY = {"BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"}
WIDE = {"F64", "I64", "U64"}  # which JAX cuts unless it is told not to
IN_JAX = (IN_CUPY | {dtype for dtype in reference.DTYPE_BITS if dtype.startswith("F8_")}) - WIDE


@pytest.fixture(scope="module")
def made():
    random = numpy.random.default_rng(29)
    tensors = {dtype: reference.random_tensor(random, dtype, [64, 96]) for dtype in reference.DTYPE_BITS}
    tensors["BOOL"] = ("BOOL", [64, 96], bytes(byte & 1 for byte in tensors["BOOL"][2]))
    return tensors


@pytest.fixture(scope="module")
def path(tmp_path_factory, made):
    return reference.write_by_hand(tmp_path_factory.mktemp("arrays") / "x.safetensors", made, padding=5)


@pytest.fixture(scope="module")
def cupy():
    module = pytest.importorskip("cupy")
    if not module.is_available():
        pytest.skip("cupy finds no GPU")
    return module


@pytest.fixture(scope="module")
def jax():
    module = pytest.importorskip("jax")
    try:
        module.devices("cuda")
    except RuntimeError as error:
        pytest.skip(f"jax finds no GPU: {error}")
    return module


def test_cupy(cupy, path, made):
    held = IN_CUPY if int(cupy.__version__.partition(".")[0]) >= 14 else IN_CUPY - {"BF16"}
    loaded = headrace.load(path, sorted(held), framework="cupy")
    for dtype in held:
        assert isinstance(loaded[dtype], cupy.ndarray) and loaded[dtype].shape == (64, 96)
        assert cupy.asnumpy(loaded[dtype].view("u1")).tobytes() == made[dtype][2], dtype
        loaded[dtype][:] = 0  # it can be written
    for dtype in set(made) - held:
        with pytest.raises(headrace.errors.Unsupported, match=f"cupy.*{dtype}.*raw"):
            headrace.load(path, dtype, framework="cupy", device=0)
        tensor = headrace.load(path, dtype, device=0)[dtype]
        assert cupy.asnumpy(cupy.from_dlpack(tensor.raw())).tobytes() == made[dtype][2]


def test_cupys_module(cupy, path, made, tmp_path):
    import headrace.cupy

    plain = {dtype: made[dtype] for dtype in ("F32", "U8", "I64")}
    file = reference.write_by_hand(tmp_path / "x.safetensors", plain)
    for loaded in (headrace.cupy.load_file(file), headrace.cupy.load_file(file, "cuda:0"),
                   headrace.cupy.load(file.read_bytes())):
        assert {name: cupy.asnumpy(array).tobytes() for name, array in loaded.items()} == {
            name: data for name, (_, _, data) in plain.items()}
        headrace.cupy.save_file(loaded, tmp_path / "y.safetensors", {"a": "b"})
        assert reference.read(tmp_path / "y.safetensors") == reference.read(file)
        assert headrace.cupy.save(loaded, {"a": "b"}) == (tmp_path / "y.safetensors").read_bytes()
    with pytest.raises(headrace.errors.Unsupported, match="GPU memory only"):
        headrace.load(file, framework="cupy", device="cpu")


def test_into_cupy(cupy, path, made):
    base = cupy.zeros((96, 200), "f4")
    target = base[:, 10:138:2].T
    assert headrace.load(path, into={"F32": target})["F32"] is target
    assert cupy.asnumpy(cupy.ascontiguousarray(target)).tobytes() == made["F32"][2]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        whole = cupy.empty((64, 96), "f4")
        for _ in range(200):
            whole += cupy.ones((4096, 4096), "f4").sum()
        headrace.load(path, into={"F32": whole})
    cupy.cuda.Device().synchronize()
    assert cupy.asnumpy(whole).tobytes() == made["F32"][2]


def test_the_cuda_array_interface(cupy, path, made):
    tensor = headrace.load(path, "C64", device=0)["C64"]
    array = cupy.asarray(tensor)
    assert array.data.ptr == tensor.data_ptr() and cupy.asnumpy(array).tobytes() == made["C64"][2]


def test_jax(jax, path, made):
    loaded = headrace.load(path, sorted(IN_JAX), framework="jax", device="cuda:0")
    for dtype in IN_JAX:
        array = loaded[dtype]
        assert isinstance(array, jax.Array) and array.devices() == {jax.devices("cuda")[0]}
        assert numpy.asarray(array).tobytes() == made[dtype][2], dtype
    with pytest.raises(headrace.errors.Unsupported, match="F4"):
        headrace.load(path, "F4", framework="jax", device="cuda:0")
    if not jax.config.jax_enable_x64:
        with pytest.raises(headrace.errors.Unsupported, match="jax_enable_x64"):
            headrace.load(path, "I64", framework="jax", device="cuda:0")


def test_jax_with_64_bits(jax, path, made):
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        loaded = headrace.load(path, sorted(WIDE), framework="jax", device="cuda:0")
        assert all(numpy.asarray(loaded[dtype]).tobytes() == made[dtype][2] for dtype in WIDE)
    finally:
        jax.config.update("jax_enable_x64", before)


def test_jaxs_arrays_outlive_the_load(jax, path, made):
    import jax.numpy

    array = headrace.load(path, "F32", framework="jax", device="cuda:0")["F32"]
    expected = numpy.frombuffer(made["F32"][2], "f4").reshape(64, 96)
    result = jax.numpy.where(jax.numpy.isnan(array), 0, array) * 1
    del array
    headrace.release()
    assert numpy.array_equal(numpy.asarray(result), numpy.where(numpy.isnan(expected), 0, expected))


def test_the_stand_in_for_flax(jax, made, tmp_path):
    """Arrays go where the safetensors package puts them: to JAX's default device."""
    flax = pytest.importorskip("safetensors.flax")
    from headrace.compat.safetensors import flax as ours

    plain = {dtype: made[dtype] for dtype in ("F32", "BF16", "U8", "I32")}
    file = reference.write_by_hand(tmp_path / "x.safetensors", plain)
    host = jax.local_devices(backend="cpu")[0]
    for place in (None, host):
        with jax.default_device(place):
            found, expected = ours.load_file(file), flax.load_file(file)
        for name, array in expected.items():
            assert found[name].devices() == array.devices() and found[name].dtype == array.dtype
            assert numpy.asarray(found[name]).tobytes() == plain[name][2]
        ours.save_file(found, tmp_path / "y.safetensors")
        assert reference.read(tmp_path / "y.safetensors") == reference.read(file)
