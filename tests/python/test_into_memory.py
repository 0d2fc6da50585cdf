"""Memory to load into that is not there, is too small, shows other values than it holds, or is two tensors' at once:
all of it is refused before anything is read, by every way that takes memory."""

import importlib.util

import numpy
import pytest
import reference

import headrace
from headrace import errors

torch = pytest.importorskip("torch") if importlib.util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")

SHAPE = (4, 6)
DATA = numpy.arange(24, dtype=numpy.float32).reshape(SHAPE)


@pytest.fixture
def path(tmp_path):
    tensors = {name: ("F32", list(SHAPE), DATA.tobytes()) for name in ("a", "b")}
    tensors["c"] = "C64", [3, 4], DATA.tobytes()
    return reference.write_by_hand(tmp_path / "x.safetensors", tensors)


def refused(path, into, text, kind=errors.InvalidArgument, name="a", **options):
    """By load(), and as the memory of a range; nothing is read, so nothing is written to what else is to be loaded."""
    other = numpy.full(SHAPE, -1, numpy.float32)
    for memory in (into, [(slice(None), into)]):
        with pytest.raises(kind, match=text) as caught:
            headrace.load(path, into={"b": other, name: memory}, **options)
        assert caught.value.tensor == name and (other == -1).all()


# --------------------------------------------------------------------------------------------- memory that is not there


def shrunk(nbytes, make=None):
    tensor = torch.zeros(SHAPE) if make is None else make()
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(SHAPE)


def wrapper():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, SHAPE)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

        __torch_function__ = torch._C._disabled_torch_function_impl

    return Wrapper()


NOT_THERE = {
    "emptied": (lambda: shrunk(0), "spans 96 bytes .* has 0"),
    "64 of 96": (lambda: shrunk(64), "spans 96 bytes .* has 64"),
    "one byte less": (lambda: shrunk(95), "spans 96 bytes .* has 95"),
    "a parameter": (lambda: shrunk(64, lambda: torch.nn.Parameter(torch.zeros(SHAPE))), "Parameter of .*has 64"),
    "a view at an offset": (lambda: shrunk(96, lambda: torch.zeros(30)[6:].view(SHAPE)), "spans 120 bytes .* has 96"),
    "a transposed view": (lambda: shrunk(92, lambda: torch.zeros(6, 4).t()), "spans 96 bytes .* has 92"),
    "columns": (lambda: shrunk(180, lambda: torch.zeros(4, 12)[:, ::2]), "spans 188 bytes .* has 180"),
    "meta": (lambda: torch.empty(SHAPE, device="meta"), r"\(4, 6\) that spans 96 bytes .* on meta"),
    "fake": (fake, "FakeTensor .* on meta"),
    "zeros without memory": (lambda: torch._efficientzerotensor(SHAPE), "no address"),
    "a wrapper": (wrapper, "Wrapper of"),
}


@needs_torch
@pytest.mark.parametrize("case", NOT_THERE)
def test_torch_tensors_without_all_their_memory(path, case):
    make, text = NOT_THERE[case]
    refused(path, make(), text)


@needs_torch
@pytest.mark.parametrize("case", sorted(set(NOT_THERE) - {"meta", "a transposed view", "columns"}))
def test_saving_what_is_not_there(tmp_path, case):
    make, text = NOT_THERE[case]
    with pytest.raises(errors.InvalidArgument, match=text) as caught:
        headrace.save_file({"a": make()}, tmp_path / "y.safetensors")
    assert caught.value.tensor == "a" and not (tmp_path / "y.safetensors").exists()


@needs_torch
def test_torch_memory_that_is_just_enough(path):
    for tensor in (shrunk(96), shrunk(120, lambda: torch.zeros(40)[6:30].view(SHAPE)),
                   shrunk(188, lambda: torch.zeros(4, 12)[:, ::2])):
        headrace.load(path, into={"a": tensor})
        assert numpy.array_equal(tensor.numpy(), DATA)
    empty = torch.zeros(0, 6)
    empty.untyped_storage().resize_(0)
    headrace.load(path, slices={"a": slice(0, 0)}, into={"a": empty})


def test_numpy_arrays_beyond_their_owner(path):
    stride = numpy.lib.stride_tricks.as_strided
    owner = numpy.zeros(24, numpy.float32)
    refused(path, stride(owner[4:], SHAPE, (24, 4)), "spans 96 bytes from byte 16 of an array that has 96")
    refused(path, stride(owner[:2], SHAPE, (48, 4)), "from byte 0 of an array that has 96")
    refused(path, stride(owner[2:], SHAPE, (-24, 4)), "from byte -64 of")
    fitting = stride(owner[:2], SHAPE, (24, 4))  # beyond the view, and within what it is a view of
    headrace.load(path, into={"a": fitting})
    assert numpy.array_equal(owner.reshape(SHAPE), DATA)


def test_arrays_that_the_format_has_no_dtype_for(path):
    for array in (numpy.zeros(SHAPE, object), numpy.zeros(SHAPE, "U4"), numpy.zeros(SHAPE, "V4")):
        refused(path, array, "dtype that the format lacks", errors.Unsupported)


# --------------------------------------------------------------------------------------- memory that shows other values


@needs_torch
def test_conjugated_and_negated_views(path):
    memory = torch.zeros(3, 4, dtype=torch.complex64)
    negated = torch.zeros(SHAPE, dtype=torch.complex64).conj().imag
    assert memory.conj().is_conj() and negated.is_neg()
    refused(path, memory.conj(), r"conjugated view .*\.resolve_conj\(\)", name="c")
    refused(path, negated, r"negated view .*\.resolve_neg\(\)")
    assert not memory.any()
    target = memory.conj().resolve_conj()
    headrace.load(path, into={"c": target})
    assert numpy.array_equal(target.numpy(), DATA.view(numpy.complex64).reshape(3, 4))


# ------------------------------------------------------------------------------------------------ memory of two tensors


def overlapping():
    flat = numpy.zeros(60, numpy.float32)
    grid = numpy.zeros((8, 12), numpy.float32)
    return {
        "the same": (flat[:24].reshape(SHAPE), flat[:24].reshape(SHAPE)),
        "one element": (flat[:24].reshape(SHAPE), flat[23:47].reshape(SHAPE)),
        "the other way round": (flat[23:47].reshape(SHAPE), flat[:24].reshape(SHAPE)),
        "columns of the same": (grid[::2, ::2], grid[::2, ::2]),
        "columns that begin within the other": (flat[:24].reshape(SHAPE), flat[12:60].reshape(4, 12)[:, ::2]),
        "in one list": (flat[30:54].reshape(SHAPE), [(slice(0, 2), flat[:12].reshape(2, 6)),
                                                     (slice(2, 4), flat[6:18].reshape(2, 6))]),
    }


@pytest.mark.parametrize("case", overlapping())
def test_two_tensors_into_the_same_memory(path, case):
    one, other = overlapping()[case]
    with pytest.raises(errors.InvalidArgument, match="'[ab]' .*same memory"):
        headrace.load(path, into={"a": one, "b": other})


def test_memory_that_only_touches_or_interleaves(path):
    flat = numpy.zeros(48, numpy.float32)
    headrace.load(path, into={"a": flat[24:].reshape(SHAPE), "b": flat[:24].reshape(SHAPE)})
    assert numpy.array_equal(flat, numpy.concatenate([DATA.ravel()] * 2))
    grid = numpy.zeros((4, 12), numpy.float32)
    headrace.load(path, into={"a": grid[:, ::2], "b": grid[:, 1::2]})
    assert numpy.array_equal(grid[:, ::2], DATA) and numpy.array_equal(grid[:, 1::2], DATA)
    stacked = numpy.zeros((2, 6, 4), numpy.float32)
    rows = [(slice(0, 1), stacked[1].T[:1]), (slice(1, 4), stacked[1].T[1:])]
    headrace.load(path, into={"a": stacked[0].T, "b": rows})
    assert numpy.array_equal(stacked[0].T, DATA) and numpy.array_equal(stacked[1].T, DATA)
