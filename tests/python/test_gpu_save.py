"""save_file() from GPUs: on the fake driver, and with the frameworks on a real one, where they are skipped without."""

import os
import pathlib

import numpy
import pytest
import reference
from fake_gpu import driver, live, on_fake_gpu, wait_until

import headrace


def content() -> dict[str, reference.Tensor]:
    random = numpy.random.default_rng(31)
    made = {dtype: reference.random_tensor(random, dtype, [6, 16]) for dtype in reference.DTYPE_BITS}
    made["large"] = reference.random_tensor(random, "U8", [9_500_001])
    made["empty"] = ("F32", [0, 3], b"")
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return reference.write_by_hand(tmp_path_factory.mktemp("gpu") / "x.safetensors", content(), padding=3)


def check(path: pathlib.Path) -> None:
    loaded = headrace.load(path)
    assert loaded.keys() == content().keys()
    for name, (dtype, shape, data) in content().items():
        assert (loaded[name].dtype, list(loaded[name].shape)) == (dtype, list(shape))
        assert bytes(memoryview(loaded[name].raw())) == data, name


@on_fake_gpu("delay_us=200")
def test_from_two_devices(path):
    """Some on one GPU, some on another, some in host memory; at the end nothing is left on the devices."""
    devices = ("cuda:0", "cuda:1", "cpu")
    tensors = {name: headrace.load(path, name, device=devices[number % 3])[name]
               for number, name in enumerate(content())}
    out = path.parent / "two.safetensors"
    headrace.save_file(tensors, out, threads=3)
    check(out)
    shards = path.parent / "shards"
    shards.mkdir()
    headrace.save_file(tensors, shards / "s.safetensors", shard_size="1KB", align=4096)
    check(shards)
    assert headrace.save(tensors) == out.read_bytes()
    del tensors
    headrace.release()
    wait_until(lambda: live().allocation_bytes == 0)
    assert live().registered_bytes == live().pinned_count == 0


@on_fake_gpu()
def test_a_driver_that_fails(path):
    tensors = headrace.load(path, device=0)
    out = path.parent / "failing" / "f.safetensors"
    out.parent.mkdir(exist_ok=True)
    driver().fake_cuda_fail_nth(30, 719)
    with pytest.raises(headrace.errors.DeviceError) as caught:
        for _ in range(100):
            headrace.save_file(tensors, out, threads=1)
            out.unlink()
    assert caught.value.tensor in content()
    assert os.listdir(out.parent) == []


def real_gpu(name):
    framework = pytest.importorskip(name)
    try:
        headrace.probe(device="cuda", seconds=0.01)
    except headrace.HeadraceError as error:
        pytest.skip(str(error))
    return framework


@pytest.mark.parametrize("name", ["torch", "cupy", "jax"])
def test_frameworks(path, tmp_path, name):
    real_gpu(name)
    holds = {"torch": headrace._dtypes.TORCH, "cupy": headrace._dtypes.NUMPY, "jax": headrace._dtypes.NUMPY}[name]
    names = [key for key, (dtype, *_) in content().items() if dtype in holds and (name != "jax" or "64" not in dtype)]
    tensors = headrace.load(path, names, framework=name, device="cuda")
    if name == "torch":
        torch = pytest.importorskip("torch")
        tensors["late"] = torch.ones(1 << 26, device="cuda")
        for _ in range(100):
            tensors["late"] += 1  # still running when the file is written
    headrace.save_file(tensors, tmp_path / "x.safetensors")
    loaded = headrace.load(tmp_path / "x.safetensors")
    for key in names:
        assert bytes(memoryview(loaded[key].raw())) == content()[key][2], key
    if name == "torch":
        assert (numpy.asarray(loaded["late"]) == 101).all()
