"""`--slice` against numpy on what the safetensors package reads: dimensions, steps, ellipsis, negative, clamping."""

import numpy
import pytest
import reference

SHAPE = [6, 5, 4, 3]
INDICES = [
    "...", ":", "1:3", "2", "-1", "-3:-1", "::2", "1::3", "4:100", "-100:2", "3:1", "0:0", "5:5",
    ":,1:4", ":,2", ":,:,1:3", ":,:,:,1:2", "...,1", "...,0:2", "1:5,...,2:", "2,...,::2", "::5,::4,::3,::2",
    "1:2,2:3,3:4,0:1", "0,0,0,0", "-1,-1,-1,-1", "1:4,1:4,1:4,1:", ":,::2,:,::2", "...,-2:",
]


def index_of(text: str) -> tuple:
    """The Python index that the text writes; an integer keeps its dimension, as a range of one."""
    index = eval(f"numpy.s_[{text}]", {"numpy": numpy})
    return index if isinstance(index, tuple) else (index,)


@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "F64"])
def test_slices(headrace, tmp_path, dtype):
    tensors = {"w": reference.random_tensor(numpy.random.default_rng(11), dtype, SHAPE)}
    path = reference.write_by_hand(tmp_path / "slices.safetensors", tensors, 1)
    data = reference.read(path)["w"][2]
    words = numpy.frombuffer(data, f"V{reference.DTYPE_BITS[dtype] // 8}").reshape(SHAPE)
    for text in INDICES:
        expected = {"w": reference.hash_of(words[index_of(text)].tobytes())}
        assert headrace.hashes(path, "--slice", f"w=[{text}]") == expected, text


@pytest.mark.parametrize("route", ["pread", "uring", "mmap"])
def test_slices_of_a_large_tensor(headrace, tmp_path, route):
    """Rows and columns that cross the borders of chunks."""
    shape = [1500, 2048]
    tensors = {"before": ("U8", [3], b"abc"), "w": reference.random_tensor(numpy.random.default_rng(12), "F16", shape)}
    path = reference.write_by_hand(tmp_path / "large.safetensors", tensors)
    words = numpy.frombuffer(reference.read(path)["w"][2], "V2").reshape(shape)
    for text in ["100:1400", ":,512:1024", "3::7,5:2000:3", "::1400", "...,2047:", "749:751,1:2047"]:
        expected = reference.hash_of(words[index_of(text)].tobytes())
        options = ["--slice", f"w=[{text}]", "--match", "w", "--route", route, "--chunk", "64KiB", "--threads", "3"]
        assert headrace.hashes(path, *options) == {"w": expected}, text


def test_packed_elements_slice_on_bytes(headrace, tmp_path):
    tensors = {"w": reference.random_tensor(numpy.random.default_rng(13), "F4", [6, 8])}
    path = reference.write_by_hand(tmp_path / "packed.safetensors", tensors)
    data = numpy.frombuffer(reference.read(path)["w"][2], numpy.uint8).reshape(6, 4)
    assert headrace.hashes(path, "--slice", "w=[1:3]") == {"w": reference.hash_of(data[1:3].tobytes())}
    assert headrace.hashes(path, "--slice", "w=[:,2:6]") == {"w": reference.hash_of(data[:, 1:3].tobytes())}
    assert headrace.run("hash", path, "--slice", "w=[:,1:4]").returncode != 0
