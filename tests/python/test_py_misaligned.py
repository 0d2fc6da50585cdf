"""Tensors at odd offsets of a file: on every route and in every memory they come out bit for bit, on 256 bytes where
the library makes the memory, and are read once."""

import numpy
import pytest
import reference
from fake_gpu import on_fake_gpu

import headrace

#: The first is misaligned by the header's length, the others also by odd tensors before them.
SHAPES = [("F32", [1021, 333]), ("U8", [3]), ("F64", [4099]), ("U8", [1]), ("BF16", [5, 70_001]), ("I64", [2, 9])]


def tensors() -> dict[str, reference.Tensor]:
    random = numpy.random.default_rng(17)
    return {f"t{number}": reference.random_tensor(random, *shape) for number, shape in enumerate(SHAPES)}


def write(folder, padding: int):
    return reference.write_by_hand(folder / f"padded-{padding}.safetensors", tensors(), padding)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """One whose F32 starts at no multiple of 4."""
    folder = tmp_path_factory.mktemp("misaligned")
    paths = [write(folder, padding) for padding in range(2)]
    return next(path for path in paths if headrace.open(path)["t0"].offset % 2)


@pytest.mark.parametrize("route", ["auto", "pread", "uring", "mmap"])
@pytest.mark.parametrize("padding", range(8))
def test_host(tmp_path, route, padding):
    checkpoint = headrace.open(write(tmp_path, padding))
    loader = headrace.Loader(route=route)
    loaded = checkpoint.load(loader=loader)
    arrays = checkpoint.load([f"t{number}" for number in (0, 1, 2, 3, 5)], framework="np", loader=loader)
    for name, (_, _, data) in tensors().items():
        assert bytes(memoryview(loaded[name].raw())) == data
        assert route == "mmap" or loaded[name].data_ptr() % 256 == 0
        if name in arrays:
            assert arrays[name].tobytes() == data and arrays[name].flags.aligned
    if route in ("pread", "uring"):
        assert checkpoint.last_stats.bytes_read == sum(array.nbytes for array in arrays.values())


def gpu_loads(path):
    for route in ("auto", "pread", "uring"):
        loader = headrace.Loader(route=route, chunk_bytes=65536)
        loaded = headrace.load(path, device="cuda:0", loader=loader)
        assert [tensor.data_ptr() % 256 for tensor in loaded.values()] == [0] * len(SHAPES)
        assert headrace.verify(path, device="cuda:0", loader=loader) == headrace.open(path).nbytes


@on_fake_gpu()
def test_gpu(path):
    gpu_loads(path)


@on_fake_gpu("no_kernel=1")
def test_gpu_without_the_kernel(path):
    gpu_loads(path)
