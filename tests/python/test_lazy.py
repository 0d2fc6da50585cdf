"""Lazy tensors against ordinary ones: whatever is done with them, the same elements, and no byte too many."""

import gc
import itertools
import random

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

import headrace  # noqa: E402
from headrace import _lazy  # noqa: E402

LAZY = {
    "whole": lambda x: x,
    "narrow": lambda x: x.narrow(1, 2, 3),
    "steps": lambda x: x[1:5:2, 3, ..., ::3],
    "negative": lambda x: x[-2:, -1],
    "chunk": lambda x: x.chunk(3, 1)[1],
    "split": lambda x: x.split([1, 5], 0)[1],
    "unbind": lambda x: x.unbind(2)[4],
    "transpose": lambda x: x.transpose(0, 2)[3:7],
    "permute": lambda x: x.permute(2, 0, 1).narrow(1, 1, 2),
    "size 1": lambda x: x.unsqueeze(1).view(6, 1, 8, 1, 10)[:, 0],
    "squeeze": lambda x: x[2:3].squeeze(0).t(),
    "data": lambda x: x.data.detach()[2],
}
READ = {
    "flat": lambda x: x.reshape(-1),
    "merged": lambda x: x.view(48, 10),
    "of a part": lambda x: x.narrow(1, 2, 3).reshape(-1),
    "by list": lambda x: x[[0, 2]],
    "times": lambda x: 2 * x,
    "expanded": lambda x: x.expand(2, 6, 8, 10),
    "as_strided": lambda x: x.narrow(1, 2, 3).as_strided((2, 3), (1, 4), 7),
    "stacked": lambda x: torch.stack([x, x + 1]),
    "to": lambda x: x.to(torch.float64),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
}


@pytest.fixture(scope="module")
def tensor():
    torch.manual_seed(2)
    return torch.randn(6, 8, 10)


@pytest.fixture
def source(tensor, tmp_path):
    safetensors_torch.save_file({"a": tensor, "h": tensor.half(), "n": torch.empty(0, 3)}, tmp_path / "a.safetensors")
    return _lazy.Source(headrace.open(tmp_path / "a.safetensors"), headrace.Loader(threads=1))


def lazy_of(source, name="a", dtype=torch.float32):
    return source.tensor(source._checkpoint[name], dtype)


def strided(shape, dtype):
    """Memory whose elements do not lie side by side."""
    return torch.full((*shape, 2), 7).to(dtype)[..., 1]


@pytest.mark.parametrize("name", LAZY)
def test_views_are_read_exactly_and_into_place(source, tensor, name):
    view, expected = LAZY[name](lazy_of(source)), LAZY[name](tensor)
    assert type(view) is _lazy.LazyTensor
    assert (view.shape, view.stride(), view.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert source.bytes_copied == 0
    for memory in (torch.empty(expected.shape), strided(expected.shape, torch.float32)):
        before = source.bytes_copied
        assert memory.copy_(view) is memory
        assert torch.equal(memory, expected)
        assert source.bytes_copied - before == expected.nbytes
    beside = strided(expected.shape, torch.float32)
    beside.copy_(view)
    assert (beside._base[..., 0] == 7).all()


@pytest.mark.parametrize("name", READ)
def test_other_operations_read_first(source, tensor, name):
    result = READ[name](lazy_of(source))
    assert type(result) is torch.Tensor and torch.equal(result, READ[name](tensor))


def random_view(generator, shape):
    """A view of a tensor of this shape, as a function."""
    kind = generator.choice(["narrow", "step", "transpose", "select", "unsqueeze"]) if shape else "unsqueeze"
    if kind == "unsqueeze":
        return lambda x: x.unsqueeze(0)
    dim, other = generator.randrange(len(shape)), generator.randrange(len(shape))
    start = generator.randrange(shape[dim])
    index = (*[slice(None)] * dim, slice(start, None, generator.randint(1, 3)))
    return {
        "narrow": lambda x: x.narrow(dim, start, x.shape[dim] - start),
        "step": lambda x: x[index],
        "transpose": lambda x: x.transpose(dim, other),
        "select": lambda x: x.select(dim, start),
    }[kind]


def test_views_of_views_at_random(source, tensor):
    generator = random.Random(3)
    for _ in range(150):
        view, expected = lazy_of(source), tensor
        for _ in range(generator.randint(1, 5)):
            operation = random_view(generator, expected.shape)
            view, expected = operation(view), operation(expected)
        assert type(view) is _lazy.LazyTensor
        memory = torch.empty(expected.shape)
        memory.copy_(view)
        assert torch.equal(memory, expected)


def test_boxes_of_all_small_views():
    """box_of() gives exactly the elements of the view, or None."""
    base = torch.arange(24)
    for shape in ((2, 3, 4), (24,), (4, 6), (1, 2, 12), (2, 1, 3, 4)):
        whole, extents = base.view(shape), range(1, 4)
        for sizes, strides, offset in itertools.product(
            itertools.product(extents, repeat=2), itertools.product((1, 2, 3, 4, 6, 12), repeat=2), range(0, 13)
        ):
            last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides))
            if last >= 24:
                continue
            view = base.as_strided(sizes, strides, offset)
            box = _lazy.box_of(shape, view)
            if box is not None:
                memory = torch.empty(sizes, dtype=torch.int64)
                _lazy._target(box, memory).copy_(whole[box.slices])
                assert torch.equal(memory, view), (shape, sizes, strides, offset)


def test_another_dtype_is_read_and_cast(source, tensor):
    memory = torch.empty(6, 4, 10)
    memory.copy_(lazy_of(source, "h", torch.float16).narrow(1, 4, 4))
    assert torch.equal(memory, tensor.half().narrow(1, 4, 4).float())
    assert source.bytes_copied == 6 * 4 * 10 * 2


VIEWED = {
    "floats as integers": ("F32", lambda x: x.view(torch.int32)),
    "a part as bytes": ("F32", lambda x: x[:2, :4].view(torch.uint8)),
    "halves as integers": ("F16", lambda x: x.view(torch.int16)),
    "halves as bfloat16": ("F16", lambda x: x.narrow(0, 1, 3).view(torch.bfloat16)),
    "pairs as numbers": ("F16", lambda x: x.view(torch.float32)),
    "scales as bytes": ("F8_E8M0", lambda x: x.view(torch.uint8)),
    "bytes as floats of 8 bits": ("U8", lambda x: x.t().view(torch.float8_e4m3fn)),
    "real and imaginary": ("C64", lambda x: torch.view_as_real(x[:4, 0])),
    "conjugated": ("C64", lambda x: x.conj()),
    "conjugated, imaginary": ("C64", lambda x: x.conj().imag),
}


@pytest.mark.parametrize("name", VIEWED)
@pytest.mark.parametrize("is_read_before", [False, True])
def test_views_of_other_values_have_the_bits_of_the_file(tmp_path, name, is_read_before):
    dtype, view = VIEWED[name]
    stored = {"F32": torch.randn(8, 16), "F16": torch.randn(8, 16).half(), "C64": torch.randn(8, 16) + 1j,
              "U8": torch.randint(0, 127, (8, 16), dtype=torch.uint8),
              "F8_E8M0": torch.randint(0, 255, (8, 16), dtype=torch.uint8).view(torch.float8_e8m0fnu)}[dtype]
    safetensors_torch.save_file({"x": stored}, tmp_path / "x.safetensors")
    source = _lazy.Source(headrace.open(tmp_path / "x.safetensors"), headrace.Loader(threads=1))
    lazy, expected = lazy_of(source, "x", stored.dtype), view(stored)
    if is_read_before:
        lazy.clone()
    seen = view(lazy)
    for memory in (torch.empty_like(expected), torch.zeros((*expected.shape, 2), dtype=expected.dtype)[..., 1]):
        memory.copy_(seen)
        assert raw(memory) == raw(expected)
    assert raw(seen.clone()) == raw(expected) and seen.dtype == expected.dtype


def raw(tensor):
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_what_was_read_of_a_view_follows_the_whole(source, tensor):
    """Whichever was read first, and whichever is written to, they are one memory, as of ordinary tensors."""
    def shared(x):
        view, other = x.narrow(0, 1, 3), x[2]
        bits, array = view.view(torch.int32), other.numpy()
        seen = [view.mean(), other.sum()]
        view.mul_(2)
        seen += [x.sum(), other.sum(), view.sum()]
        x[2].zero_()
        seen += [x.sum(), other.sum(), view.sum(), bits.sum(), torch.from_numpy(array).sum()]
        other.add_(1)
        copy = torch.empty(3, 8, 10)
        copy.copy_(view)
        return [*seen, copy.sum(), x.sum(), bits.sum(), torch.from_numpy(array).sum()]

    for found, expected in zip(shared(lazy_of(source)), shared(tensor.clone()), strict=True):
        assert torch.equal(torch.as_tensor(found), expected)


def test_views_that_are_read_and_written_to_at_random(source, tensor):
    """Any number of views of one tensor, lazy or not by now, in any order: as of one memory."""
    generator = random.Random(5)
    for _ in range(120):
        ordinary = tensor.clone()
        views = [(lazy_of(source), ordinary)]
        for _ in range(generator.randint(2, 12)):
            lazy, expected = generator.choice(views)
            kind = generator.choice(["view", "view", "read", "scale", "fill", "copy", "bits", "flat"])
            if kind == "view" and expected.dtype == torch.float32:
                operation = random_view(generator, expected.shape)
                views.append((operation(lazy), operation(expected)))
            elif kind == "bits" and expected.dtype == torch.float32:
                views.append((lazy.view(torch.int32), expected.view(torch.int32)))
            elif kind == "flat" and expected.is_contiguous():
                views.append((lazy.view(-1), expected.view(-1)))
            elif kind == "scale":
                lazy.mul_(2)
                expected.mul_(2)
            elif kind == "fill" and expected.dim():
                lazy[..., :1].fill_(3)
                expected[..., :1].fill_(3)
            elif kind == "copy":
                memory = torch.empty(expected.shape, dtype=expected.dtype)
                memory.copy_(lazy)
                assert raw(memory) == raw(expected)
            else:
                assert raw(lazy.clone()) == raw(expected)
        for lazy, expected in views:
            assert raw(lazy.clone()) == raw(expected)


def test_a_part_is_read_alone(source, tensor):
    """Also where it is viewed in a way that is none of these, and only once."""
    lazy = lazy_of(source)
    part = lazy.narrow(0, 1, 2)
    assert torch.equal(part.view(-1), tensor.narrow(0, 1, 2).reshape(-1)) and source.bytes_copied == 2 * 8 * 10 * 4
    assert torch.equal(lazy[2].view(torch.int32), tensor[2].view(torch.int32))
    assert torch.equal(part.sum(), tensor.narrow(0, 1, 2).sum()) and source.bytes_copied == 2 * 8 * 10 * 4


def test_parameters_of_what_was_read_and_what_was_not(source, tensor):
    for is_read in (False, True):
        lazy = lazy_of(source)
        if is_read:
            lazy.sum()
        parameter = torch.nn.Parameter(lazy, requires_grad=False)
        memory = torch.empty_like(tensor)
        memory.copy_(parameter)
        assert torch.equal(memory, tensor)


def test_writing_to_a_lazy_tensor_shows_in_its_views(source, tensor):
    lazy = lazy_of(source)
    view = lazy[2]
    assert lazy.mul_(2) is lazy
    assert torch.equal(view + 0, tensor[2] * 2) and torch.equal(lazy + 0, tensor * 2)
    view.zero_()
    memory = torch.empty(6, 8, 10)
    memory.copy_(lazy)
    assert not memory[2].any() and torch.equal(memory[3], tensor[3] * 2)


def test_memory_is_there_for_those_that_ask(source, tensor):
    assert lazy_of(source).data_ptr() != 0
    assert (lazy_of(source).numpy() == tensor.numpy()).all()
    assert lazy_of(source)[0, 0].tolist() == tensor[0, 0].tolist()
    assert lazy_of(source)[1, 2, 3].item() == tensor[1, 2, 3].item()
    assert lazy_of(source, "n").sum() == 0
    assert len(lazy_of(source)) == 6 and lazy_of(source).is_contiguous()


def test_shapes_that_differ_are_an_error_of_pytorch(source):
    with pytest.raises(RuntimeError, match="size"):
        torch.empty(5, 8, 10).copy_(lazy_of(source))
    wide = torch.empty(2, 6, 8, 10)
    wide.copy_(lazy_of(source))
    assert torch.equal(wide[0], wide[1])


def test_copies_together_are_done_by_flush(tensor, source):
    together = _lazy.Source(source._checkpoint, source._loader, together=True)
    first, second, again = torch.zeros(6, 8, 10), torch.zeros(6, 8, 10, dtype=torch.half), torch.zeros(2, 8, 10)
    first.copy_(lazy_of(together))
    second.copy_(lazy_of(together, "h", torch.float16))
    assert not first.any() and not second.any()
    again.copy_(lazy_of(together)[2:4])  # a tensor twice: what was noted is done first
    assert torch.equal(first, tensor) and not again.any()
    together.flush()
    assert torch.equal(again, tensor[2:4]) and torch.equal(second, tensor.half())


def test_settle_reads_what_is_kept_and_was_not_copied(source, tensor):
    kept, copied = lazy_of(source), lazy_of(source)
    lazy_of(source)
    torch.empty(6, 8, 10).copy_(copied)
    gc.collect()
    before = source.bytes_copied
    source.settle()
    assert source.bytes_copied - before == tensor.nbytes
    assert kept._value is not None and copied._value is None
