"""PyTorch tensors whose bytes are still in the file: for model code that takes a whole tensor and keeps a part of it.

A LazyTensor has the dtype and shape of the tensor in the file and host memory as its device. Views of it (narrow,
slices, chunk, t, size-1 dimensions ...) are lazy too: they are taken of a tensor on PyTorch's `meta` device, which
computes sizes and strides and has no memory. Copied into memory of the same dtype, exactly the bytes of the view are
read, straight to where they belong. Whatever else is done with it reads it first, and then goes on with an ordinary
tensor. So the result never depends on which operations are known here. What is read of a tensor, and of its views, lies
in one memory, as it would of an ordinary one; of a view no more is read than it has, as long as that will do.

With several ranks most of it is read ahead (_ahead.py): then the same bytes come from memory.

A view is a box of the file's tensor: it keeps the order of elements, of every dimension a range, and may permute and
drop dimensions. A view that is no box, as a flattened slice, is read first, and so is one of other values: of another
dtype, conjugated or negated.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Union

import torch

from . import _overlap
from ._ahead import Ahead, View
from ._checkpoint import Checkpoint, TensorInfo
from ._options import Loader

#: Reads up to this size are done by the thread that wants them; starting readers would cost more.
ALONE_BYTES_MAX = 1 << 20


_HOST = torch.device("cpu")


class Box(NamedTuple):
    """Which part of a tensor a view is: a slice of each dimension, and the view's dimension that it became."""

    slices: tuple[slice, ...]
    axes: tuple[Union[int, None], ...]

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((part.start, part.stop, part.step) for part in self.slices)


def box_of(shape: tuple[int, ...], view: torch.Tensor) -> Box | None:
    """The box that `view` is of a compact row-major tensor of this shape, or None. `view` has elements."""
    steps, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        steps[dim], step = step, step * shape[dim]
    starts, rest = [0] * len(shape), int(view.storage_offset())
    for dim in range(len(shape)):
        starts[dim], rest = divmod(rest, steps[dim])
    slices = [slice(start, start + 1, 1) for start in starts]
    axes: list[int | None] = [None] * len(shape)
    for axis, (count, stride) in enumerate(zip(view.shape, view.stride())):
        if count == 1:
            continue
        found = _dim_of(shape, steps, starts, axes, count, stride)
        if found is None:
            return None
        step = stride // steps[found]
        slices[found] = slice(starts[found], starts[found] + (count - 1) * step + 1, step)
        axes[found] = axis
    return Box(tuple(slices), tuple(axes))


def _dim_of(
    shape: tuple[int, ...], steps: list[int], starts: list[int], axes: list[int | None], count: int, stride: int
) -> int | None:
    for dim, step in enumerate(steps):
        fits = stride >= step and stride % step == 0 and starts[dim] + (count - 1) * (stride // step) < shape[dim]
        if fits and axes[dim] is None:
            return dim
    return None


def _are_apart(one: Box, other: Box) -> bool:
    """Whether no element is in both; False where that takes more than a look."""
    return any(a.stop <= b.start or b.stop <= a.start for a, b in zip(one.slices, other.slices))


def _is_within(inner: Box, outer: Box) -> bool:
    """Whether all elements of one are in the other; False where that takes more than a look."""
    return all(a.start >= b.start and a.stop <= b.stop and b.step == 1 for a, b in zip(inner.slices, outer.slices))


class Source:
    """Where the lazy tensors of a checkpoint take their bytes from.

    With `together`, copies are only noted, and done by flush(), all in one load: for callers that know that nobody
    looks at the memory before. With `ahead`, what that has read is copied from there; close() ends it.
    """

    def __init__(
        self, checkpoint: Checkpoint, loader: Loader, together: bool = False, ahead: Ahead | None = None
    ) -> None:
        self._checkpoint = checkpoint
        self._loader = loader
        self._together = together
        self._ahead = ahead
        self._lock = threading.Lock()
        self._noted: dict[str, dict[str, tuple[Box, torch.Tensor]]] = {}  # device -> name -> what goes where
        self._alive: dict[int, weakref.ref[LazyTensor]] = {}
        self.bytes_read = 0
        self.bytes_copied = 0
        self.load_count = 0

    def tensor(self, info: TensorInfo, dtype: torch.dtype) -> LazyTensor:
        """A lazy tensor of the whole of `info`, about to be handed out."""
        if self._ahead is not None:
            self._ahead.step(info.name)
        return LazyTensor(self, info, torch.empty(info.shape, dtype=dtype, device="meta"), None)

    def read(self, name: str, box: Box, memory: torch.Tensor) -> None:
        """Reads a box into memory of the view's shape, at once."""
        ahead = self._ahead
        if ahead is None or not ahead.take(name, View(box.ranges, memory.device), _target(box, memory)):
            self._load({name: (box, memory)})
            return
        with self._lock:
            self.bytes_copied += memory.nbytes

    def copy(self, name: str, box: Box, memory: torch.Tensor) -> None:
        """As read(), but later where that is allowed."""
        if not self._together:
            return self.read(name, box, memory)
        if any(name in noted for noted in self._noted.values()):
            self.flush()  # a load takes a tensor once
        self._noted.setdefault(str(memory.device), {})[name] = box, memory
        return None

    def flush(self) -> None:
        """Does the copies that are noted."""
        noted, self._noted = self._noted, {}
        for copies in noted.values():
            areas = [_overlap.of_torch(name, memory) for name, (_, memory) in copies.items()]
            if next(_overlap.pairs(areas), None) is None:
                self._load(copies)
                continue
            for name, copy in copies.items():  # into the same memory: the last one is to have its way
                self._load({name: copy})

    def close(self) -> None:
        """Ends reading ahead."""
        if self._ahead is not None:
            self._ahead.close()
            self.bytes_read += self._ahead.bytes_read
            self.load_count += self._ahead.load_count
            self._ahead = None

    def settle(self) -> None:
        """Gives tensors that somebody keeps, and that were not copied yet, memory of their own."""
        for reference in list(self._alive.values()):
            tensor = reference()
            if tensor is not None and not tensor.was_copied:
                tensor.value()

    def watch(self, tensor: LazyTensor) -> None:
        """Has settle() think of a tensor. By its id, since tensors are compared by their elements."""
        key, alive = id(tensor), self._alive
        alive[key] = weakref.ref(tensor, lambda _: alive.pop(key, None))

    def _load(self, copies: dict[str, tuple[Box, torch.Tensor]]) -> None:
        nbytes = sum(memory.nbytes for _, memory in copies.values())
        with self._checkpoint.start(
            list(copies),
            slices={name: box.slices for name, (box, _) in copies.items()},
            into={name: _target(box, memory) for name, (box, memory) in copies.items()},
            loader=self._loader,
            lazy=nbytes <= ALONE_BYTES_MAX,
        ) as job:
            job._quiet = True
            job.wait()
        stats = self._checkpoint.last_stats
        with self._lock:
            self.load_count += 1
            self.bytes_copied += nbytes
            self.bytes_read += stats.bytes_read if stats is not None else 0


def _target(box: Box, memory: torch.Tensor) -> torch.Tensor:
    """`memory`, of the view's shape, with the dimensions of the file's tensor."""
    sizes = [1 if axis is None else memory.shape[axis] for axis in box.axes]
    strides = [1 if axis is None else memory.stride(axis) for axis in box.axes]
    return memory.detach().as_strided(sizes, strides, memory.storage_offset())


def can_take(memory: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether a view's bytes can be read into `memory` as they are."""
    return (
        type(memory).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
        and memory.layout is torch.strided
        and (memory.device.type == "cpu" or is_cuda(memory))
        and memory.dtype == view.dtype
        and memory.shape == view.shape
        and not (memory.is_conj() or memory.is_neg())
        and not any(stride == 0 and extent > 1 for stride, extent in zip(memory.stride(), memory.shape))
    )


def is_cuda(memory: torch.Tensor) -> bool:
    """Whether `memory` is a CUDA device's: PyTorch for ROCm says "cuda" too."""
    return memory.device.type == "cuda" and torch.version.cuda is not None


class LazyTensor(torch.Tensor):
    """See above. Made by Source.tensor(); `_view` is its shape and strides within the file's tensor."""

    _source: Source
    _info: TensorInfo
    _view: torch.Tensor
    _box: Union[Box, None]
    _root: Union[LazyTensor, None]  # of which it is a view; None: of none, as a cycle would keep it alive
    _value: Union[torch.Tensor, None]  # of a view: a view of the root's `_memory`
    _memory: Union[torch.Tensor, None]  # of a root: for all of it, once some was read
    _parts: list[tuple[Box, torch.Tensor]]  # that were read, and may have been written to since
    was_copied: bool

    @staticmethod
    def __new__(
        cls, source: Source, info: TensorInfo, view: torch.Tensor, root: Union[LazyTensor, None]
    ) -> LazyTensor:
        self: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls, view.shape, strides=view.stride(), dtype=view.dtype, device=_HOST, requires_grad=False
        )
        self._source, self._info, self._view, self._value = source, info, view, None
        self._memory, self._parts = None, []
        self._box = box_of(info.shape, view) if view.numel() else None
        self._root = root
        self.was_copied = False
        source.watch(self)
        return self

    def __init__(self, *_: Any) -> None:
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<headrace.LazyTensor of '{self._info.name}', {tuple(self.shape)}, {self.dtype}>"

    def value(self) -> torch.Tensor:
        """An ordinary tensor with its elements, the same at each call."""
        if self._value is None:
            self._value = self._read_whole() if self._root is None else self._root._part_of(self)
        return self._value

    def value_in_whole(self) -> torch.Tensor:
        """The same, where all of the memory that it lies in is there: for what may look beside it."""
        self._whole().value()
        return self.value()

    def _read_whole(self) -> torch.Tensor:
        """What was read before stays as it is by now."""
        if self._memory is None:
            self._memory = self._read(_HOST)
        elif self._box is not None:
            kept = [part.clone() for _, part in self._parts]
            self._source.read(self._info.name, self._box, self._memory)
            for (_, part), copy in zip(self._parts, kept):
                part.copy_(copy)
        return self._memory

    def _part_of(self, lazy: LazyTensor) -> torch.Tensor:
        """The value of one of its views."""
        box = lazy._box
        if box is None:
            return torch.empty(lazy.shape, dtype=lazy.dtype)
        has_it = self._value is not None or any(_is_within(box, other) for other, _ in self._parts)
        if not has_it and not all(_are_apart(box, other) for other, _ in self._parts):
            self.value()
            has_it = True
        if self._memory is None:
            self._memory = torch.empty(self.shape, dtype=self.dtype)
        view = lazy._view
        part = self._memory.as_strided(view.shape, view.stride(), view.storage_offset())
        if not has_it:
            self._source.read(self._info.name, box, part)
            self._parts.append((box, part))
        return part

    def _whole(self) -> LazyTensor:
        return self if self._root is None else self._root

    def _read(self, device: torch.device) -> torch.Tensor:
        memory = torch.empty(self.shape, dtype=self.dtype, device=device)
        if memory.numel() and self._box is not None:
            self._source.read(self._info.name, self._box, memory)
        return memory

    def _view_as(self, view: torch.Tensor) -> LazyTensor | None:
        if view.dtype != self.dtype or view.is_conj() or view.is_neg():
            return None
        lazy = LazyTensor(self._source, self._info, view, self._whole())
        return lazy if lazy._box is not None or not view.numel() else None

    def _copy_into(self, memory: torch.Tensor) -> bool:
        """memory.copy_(self), where reading does it. What has another dtype is read to the same GPU first."""
        whole = self._whole()
        if whole._memory is not None or self._box is None:
            return False
        if can_take(memory, self):
            self._source.copy(self._info.name, self._box, memory)
        elif is_cuda(memory):
            memory.copy_(self._read(memory.device))
        else:
            return False
        self.was_copied = whole.was_copied = True
        return True

    # ------------------------------------------------------------------------------------------- what PyTorch calls

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _OF_MEMORY:
            return func(*_values(args, func in _OF_ALL_MEMORY), **_values(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        # what detaches, as torch.nn.Parameter does, wants one of the same type
        if func.is_view and isinstance(first, LazyTensor) and (first._value is None or func is _DETACH):
            views = _views(first, func(first._view, *args[1:], **kwargs))
            if views is not None:
                return views
        if func is _COPY and isinstance(args[1], LazyTensor) and not isinstance(first, LazyTensor):
            if args[1]._copy_into(args[0]):
                return args[0]
        values = _values(args, func is _AS_STRIDED)  # which counts from the start of the memory
        result = func(*values, **_values(kwargs))
        is_same = func._schema.is_mutable and isinstance(first, LazyTensor) and result is values[0]
        return first if is_same else result


_COPY = torch.ops.aten.copy_.default
_AS_STRIDED = torch.ops.aten.as_strided.default
_DETACH = torch.ops.aten.detach.default

#: What asks for memory without an operation of PyTorch's that would be seen; these for all that it lies in.
_OF_ALL_MEMORY = {
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.storage,
    torch.Tensor.__reduce_ex__,
    torch.Tensor.__deepcopy__,
    torch.Tensor.share_memory_,
}
_OF_MEMORY = _OF_ALL_MEMORY | {
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.pin_memory,
}


def _views(lazy: LazyTensor, views: Any) -> Any:
    """Lazy tensors of one view or several, or None when one of them is no box."""
    if isinstance(views, torch.Tensor):
        return lazy._view_as(views)
    made = [lazy._view_as(view) for view in views]
    return None if any(view is None for view in made) else made


def _values(tree: Any, in_whole: bool = False) -> Any:
    """`tree` with ordinary tensors instead of lazy ones."""
    if isinstance(tree, LazyTensor):
        return tree.value_in_whole() if in_whole else tree.value()
    if isinstance(tree, (list, tuple)):
        return type(tree)(_values(entry, in_whole) for entry in tree)
    if isinstance(tree, dict):
        return {key: _values(entry, in_whole) for key, entry in tree.items()}
    return tree
