"""What of a checkpoint is asked for: names and globs, slices and shards, dtypes, and memory to load into, resolved to
the items that the engine takes: positions and exact ranges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from . import _core, _dtypes, _into, _parts, _slices, errors
from ._frameworks import Framework
from ._slices import Cut, Ranges

Names = Union[str, Iterable[str], None]
Block = tuple[int, int, int]  # dimension, rank, world


@dataclass
class Request:
    """What _core.Load takes. A position counts the tensors of the request, and is the number of their first items."""

    core: _core.Checkpoint
    indices: list[int] | None = None  # of tensors; None: all
    cuts: dict[int, Cut] = field(default_factory=dict)  # of tensors that are not wanted whole
    ranges: dict[int, Ranges] = field(default_factory=dict)  # of items
    # In a group items are the same on all ranks: ranges of what is sharded, and whose block is meant.
    is_spread: bool = False
    sharded: dict[int, tuple[Cut, Block]] = field(default_factory=dict)  # of tensors
    shards: dict[int, Block] = field(default_factory=dict)  # of items
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # where it has not a dimension for each stored one
    into: dict[int, tuple[Any, int, tuple[int, ...] | None]] = field(default_factory=dict)  # of items
    owners: list[int] = field(default_factory=list)  # positions of the items behind the first ones
    exports: list[Any] = field(default_factory=list)  # keeps the buffers of `into` from being resized
    device: str | None = None  # where the memory of `into` must be; None: not known yet
    stream: int | None = None  # CUDA: what the memory of `into` was used on last; None: nowhere that matters

    def __len__(self) -> int:
        return len(self.core) if self.indices is None else len(self.indices)

    def index_of(self, position: int) -> int:
        return position if self.indices is None else self.indices[position]

    def items(self) -> list[int] | None:
        """The tensor of each item; None: every tensor is one."""
        if not self.owners:
            return self.indices
        return [self.index_of(position) for position in [*range(len(self)), *self.owners]]

    def cut_of(self, position: int, shape: tuple[int, ...]) -> Cut:
        return self.cuts.get(position) or _slices.whole(shape)

    def add(self, position: int, holder: Any, cut: Cut, address: int, strides: tuple[int, ...] | None) -> None:
        """Adds the parts of a cut as items that are loaded into memory of `holder`."""
        dtype = self.core.info(self.index_of(position))[1]
        for part, (ranges, start, steps) in enumerate(_parts.place(cut, dtype, address, strides)):
            item = position
            if position in self.into:
                item = len(self) + len(self.owners)
                self.owners.append(position)
            self.set_ranges(item, position, part, ranges)
            self.into[item] = holder, start, steps

    def set_ranges(self, item: int, position: int, part: int, ranges: Ranges) -> None:
        """`ranges` are those of a part of the cut of a tensor."""
        self.ranges[item] = ranges
        if position in self.sharded:
            whole, self.shards[item] = self.sharded[position]
            self.ranges[item] = next(itertools.islice(whole.parts(), part, None))[0]

    def shard(self, position: int, cut: Cut, part: _slices.Shard) -> None:
        """Leaves a rank's block of a cut of a tensor. Raises InvalidArgument and Unsupported."""
        if not self.is_spread:
            self.cuts[position] = cut.block(part)
            return
        whole, self.cuts[position] = cut.sections(part)
        dim = _slices.dimension(part.dim, len(cut.dims))
        self.sharded[position] = whole, (dim, part.rank, part.world)


def make(
    core: _core.Checkpoint,
    names: Names = None,
    slices: Mapping[str, Any] | None = None,
    dtype: Any = None,
    into: Mapping[str, Any] | None = None,
    device: str | None = None,
    shard: Mapping[str, Any] | int | None = None,
    rank: int | None = None,
    world: int | None = None,
    group: tuple[int, int] | None = None,
) -> Request:
    """Resolves the arguments of a load. `device` is the resolved name of the one that was asked for; `group` is (rank,
    world) in a group that loads together."""
    request = Request(core, select(core, names), device=device, is_spread=group is not None and group[1] > 1)
    if group is not None and shard is not None and rank is None and world is None:
        rank, world = group
    if into is not None:
        given = [_find(core, name) for name in into]
        wanted = None if request.indices is None else set(request.indices)
        left_out = [name for name, index in zip(into, given) if wanted is not None and index not in wanted]
        if left_out:
            raise errors.make("InvalidArgument", f"into= has '{left_out[0]}', which names= does not ask for",
                              tensor=left_out[0])
        request.indices = sorted(given)
    if slices:
        _add_slices(request, slices)
    if (shard is None) != (rank is None) or (rank is None) != (world is None):
        raise errors.make("InvalidArgument", "shard=, rank= and world= go together: which dimension, and "
                                             "whose block; with group= rank and world may be left out")
    if shard is not None and rank is not None and world is not None:
        _add_shards(request, shard, rank, world)
    _settle(request)
    if dtype is not None:
        _check_dtypes(request, dtype if isinstance(dtype, Mapping) else {"*": dtype})
    if into is not None:
        _add_into(request, into)
    return request


def _find(core: _core.Checkpoint, name: str) -> int:
    index = core.find(name)
    if index < 0:
        raise errors.make("TensorNotFound", f"no tensor is named '{name}'", tensor=name)
    return index


def match(core: _core.Checkpoint, pattern: str) -> list[int]:
    """Indices of the tensor of this name, or of those that the glob matches; none is an error."""
    index = core.find(pattern)
    if index >= 0:
        return [index]
    if not any(character in pattern for character in "*?["):
        return [_find(core, pattern)]
    found = core.match(pattern)
    if not found:
        raise errors.make("TensorNotFound", f"no tensor's name matches '{pattern}'")
    return found


def select(core: _core.Checkpoint, names: Names) -> list[int] | None:
    """Indices in file order, each once; None for all."""
    if names is None or names == "*":
        return None
    patterns = [names] if isinstance(names, str) else names
    return sorted({index for pattern in patterns for index in match(core, pattern)})


def _by_pattern(request: Request, table: Mapping[str, Any]) -> dict[int, Any]:
    """position -> value of the first key that names or matches the tensor; an exact name goes before globs."""
    core = request.core
    positions = None if request.indices is None else {index: at for at, index in enumerate(request.indices)}
    result: dict[int, Any] = {}
    exact = [key for key in table if core.find(key) >= 0]
    for pattern in [*exact, *(key for key in table if core.find(key) < 0)]:
        for index in [] if pattern == "*" and len(core) == 0 else match(core, pattern):
            position = index if positions is None else positions.get(index)
            if position is not None:
                result.setdefault(position, table[pattern])
    return result


def _in_tensor(name: str, error: errors.HeadraceError) -> Exception:
    """The same error, with the tensor that it is about."""
    return errors.make(error.kind, f"tensor '{name}': {error}", tensor=name)


# ------------------------------------------------------------------------------------------------ slices and shards


def _add_slices(request: Request, slices: Mapping[str, Any]) -> None:
    for position, index in _by_pattern(request, slices).items():
        name, _, shape, *_ = request.core.info(request.index_of(position))
        try:
            if isinstance(index, _slices.Shard):
                request.shard(position, _slices.whole(shape), index)
            else:
                request.cuts[position] = _slices.cut(shape, index)
        except errors.HeadraceError as error:
            raise _in_tensor(name, error) from None


def _add_shards(request: Request, shard: Mapping[str, Any] | int, rank: int, world: int) -> None:
    """The block of a rank, of what slices leave. What a pattern matches and has not the dimension stays whole."""
    _slices.shard(0, rank, world)  # refuses a wrong rank also where nothing is sharded
    table = shard if isinstance(shard, Mapping) else {"*": shard}
    for position, wanted in _by_pattern(request, table).items():
        name, _, shape, *_ = request.core.info(request.index_of(position))
        dim, sizes = wanted if isinstance(wanted, tuple) else (wanted, None)
        try:
            part = _slices.shard(dim, rank, world, sizes)
            if name in table or -len(shape) <= part.dim < len(shape):
                if position in request.sharded:
                    raise errors.make("Unsupported", "slices= has a shard() for it, and shard= another")
                request.shard(position, request.cut_of(position, shape), part)
        except errors.HeadraceError as error:
            raise _in_tensor(name, error) from None


def _settle(request: Request) -> None:
    """Slices are for the engine; what comes in several parts is given memory first."""
    for position, cut in request.cuts.items():
        if cut.dropped:
            name, dtype, *_ = request.core.info(request.index_of(position))
            request.shapes[position] = _into.packed_shape(name, dtype, cut.shape)
        if cut.is_slice:
            request.set_ranges(position, position, 0, next(cut.parts())[0])


def _check_dtypes(request: Request, dtypes: Mapping[str, Any]) -> None:
    for position, dtype in _by_pattern(request, dtypes).items():
        name, stored, *_ = request.core.info(request.index_of(position))
        wanted = _dtypes.name_of(dtype)
        if wanted is None:
            raise errors.make("InvalidArgument", f"dtype {dtype!r} is none of {', '.join(_dtypes.BITS)}")
        if wanted != stored:
            raise errors.make("Unsupported", f"tensor '{name}' is stored as {stored}; this version converts no dtypes "
                                             f"(asked for: {wanted})", tensor=name)


# ----------------------------------------------------------------------------------------------- memory for tensors


def _add_into(request: Request, into: Mapping[str, Any]) -> None:
    for position, index in enumerate(request.indices or ()):
        name, dtype, shape, *_ = request.core.info(index)
        target = into[name]
        try:
            if isinstance(target, (list, tuple)):
                _add_targets(request, position, dtype, shape, target)
                continue
            cut = request.cut_of(position, shape)
            place = _into.address(request, target, dtype, cut.extents, request.shapes.get(position))
            request.add(position, target, cut, *place)
        except errors.HeadraceError as error:
            raise _in_tensor(name, error) from None


def _add_targets(
    request: Request, position: int, dtype: str, shape: tuple[int, ...], targets: list[Any] | tuple[Any, ...]
) -> None:
    """Memory for each of several (index, memory) of a tensor."""
    if position in request.cuts:
        raise errors.make("InvalidArgument", "into= has a list for it, whose indices count; leave it out of "
                                             "slices= and shard=")
    if not targets:
        raise errors.make("InvalidArgument", "the list to load into is empty; give (index, memory) pairs")
    for entry in targets:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise errors.make("InvalidArgument", f"a list to load into has (index, memory) pairs, not {entry!r}")
        cut = _slices.cut(shape, entry[0])
        dropped = _into.packed_shape("", dtype, cut.shape) if cut.dropped else None
        request.add(position, targets, cut, *_into.address(request, entry[1], dtype, cut.extents, dropped))


def make_parted(request: Request, framework: Framework) -> None:
    """Lets the framework make the tensors that come in several parts, as cells to load into."""
    for position, cut in request.cuts.items():
        if cut.is_slice or position in request.into:
            continue
        name, dtype, *_ = request.core.info(request.index_of(position))
        dropped = request.shapes.get(position)
        try:
            tensor = framework.empty(dtype, cut.shape)
            place = _into.address(request, tensor, dtype, cut.extents, dropped)
            request.add(position, _parts.Cell(name, tensor), cut, *place)
        except errors.HeadraceError as error:
            raise _in_tensor(name, error) from None
