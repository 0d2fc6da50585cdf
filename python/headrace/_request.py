"""What of a checkpoint is asked for: names and globs, slices and shards, dtypes, and memory to load into, resolved to
the items that the engine takes: positions and exact ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from . import _checks, _core, _dtypes, _into, _overlap, _parts, _places, _slices, errors
from ._frameworks import Framework
from ._into import Target
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
    dtypes: dict[int, str] = field(default_factory=dict)  # of items that are converted, or were asked for by a dtype
    into: dict[int, tuple[Any, int, tuple[int, ...] | None]] = field(default_factory=dict)  # of items
    owners: list[int] = field(default_factory=list)  # positions of the items behind the first ones
    exports: list[Any] = field(default_factory=list)  # keeps the buffers of `into` from being resized
    devices: _places.Devices = ()  # where the tensors go; (): nobody said
    places: dict[int, str] = field(default_factory=dict)  # of items: its device; what is not here is on the first
    areas: list[_overlap.Area] = field(default_factory=list)  # of the memory of `into`
    streams: dict[str, int] = field(default_factory=dict)  # of each GPU: what used the memory of `into` last
    # Layers are alike, so cuts of one shape are made once.
    wholes: dict[tuple[int, ...], Cut] = field(default_factory=dict)
    blocks: dict[tuple[Cut, _slices.Shard], tuple[Cut, Cut]] = field(default_factory=dict)  # what it is of, and itself

    def __len__(self) -> int:
        return len(self.core) if self.indices is None else len(self.indices)

    def index_of(self, position: int) -> int:
        return position if self.indices is None else self.indices[position]

    def device_of(self, item: int) -> str:
        return self.places.get(item, self.devices[0])

    def dtype_of(self, position: int) -> str:
        """What a tensor becomes."""
        return self.dtypes.get(position) or self.core.info(self.index_of(position))[1]

    def dtype_codes(self) -> dict[int, int]:
        return {item: _dtypes.CODES[name] for item, name in self.dtypes.items()}

    def items(self) -> list[int] | None:
        """The tensor of each item; None: every tensor is one."""
        if not self.owners:
            return self.indices
        return [self.index_of(position) for position in [*range(len(self)), *self.owners]]

    def item_places(self) -> bytes | None:
        """The index of each item's device; None: all go to the first."""
        if len(self.devices) <= 1:
            return None
        index = {name: number for number, name in enumerate(self.devices)}
        return bytes(index[self.device_of(item)] for item in range(len(self) + len(self.owners)))

    def cut_of(self, position: int, shape: tuple[int, ...]) -> Cut:
        return self.cuts.get(position) or self.whole(shape)

    def whole(self, shape: tuple[int, ...]) -> Cut:
        return self.wholes.get(shape) or self.wholes.setdefault(shape, _slices.whole(shape))

    def add(self, position: int, holder: Any, cut: Cut, target: Target) -> None:
        """Adds the parts of a cut as items that are loaded into memory of `holder`, and become what that holds."""
        if target.stream is not None and self.streams.setdefault(target.device, target.stream) != target.stream:
            raise errors.make("InvalidArgument", "the memory to load into is in use on two CUDA streams of "
                                                 f"{target.device}; synchronize one, or use a load for each")
        for part, (ranges, start, steps) in enumerate(
            _parts.place(cut, target.dtype, target.address, target.strides)
        ):
            self.areas.append(_area(self.core.info(self.index_of(position))[0], target, ranges, start, steps))
            item = position
            if position in self.into:
                item = len(self) + len(self.owners)
                self.owners.append(position)
            self.set_ranges(item, position, part, ranges)
            self.dtypes[item] = target.dtype
            self.into[item] = holder, start, steps
            self.places[item] = target.device

    def set_ranges(self, item: int, position: int, part: int, ranges: Ranges) -> None:
        """`ranges` are those of a part of the cut of a tensor."""
        self.ranges[item] = ranges
        if position in self.sharded:
            whole, self.shards[item] = self.sharded[position]
            self.ranges[item] = whole.part_ranges[part]

    def shard(self, position: int, cut: Cut, part: _slices.Shard) -> None:
        """Leaves a rank's block of a cut of a tensor. Raises InvalidArgument and Unsupported."""
        found = self.blocks.get((cut, part))
        if found is None:
            found = cut.sections(part) if self.is_spread else (cut, cut.block(part))
            self.blocks[cut, part] = found
        whole, self.cuts[position] = found
        if self.is_spread:
            dim = _slices.dimension(part.dim, len(cut.dims))
            self.sharded[position] = whole, (dim, part.rank, part.world)


def _area(name: str, target: Target, ranges: Ranges, start: int, steps: tuple[int, ...] | None) -> _overlap.Area:
    bits, count = _dtypes.BITS[target.dtype], _slices.count(ranges)
    if steps is not None and not _parts.is_compact(ranges, tuple(8 * step for step in steps), bits):
        count = min(count, 1)
    return _overlap.Area(target.device, start, start + count * bits // 8, name)


def make(
    core: _core.Checkpoint,
    names: Names = None,
    slices: Mapping[str, Any] | None = None,
    dtype: Any = None,
    into: Mapping[str, Any] | None = None,
    device: str | None = None,
    device_map: Mapping[str, Any] | None = None,
    shard: Mapping[str, Any] | int | None = None,
    rank: int | None = None,
    world: int | None = None,
    group: tuple[int, int] | None = None,
) -> Request:
    """Resolves the arguments of a load. `device` is the resolved name of the one that was asked for; `group` is (rank,
    world) in a group that loads together."""
    is_spread = group is not None and group[1] > 1
    request = Request(core, select(core, names), devices=() if device is None else (device,), is_spread=is_spread)
    if group is not None and shard is not None and rank is None and world is None:
        rank, world = group
    if into is not None:
        _checks.table("into", into, "{name: tensor, array, buffer or list of (index, memory)}")
        given = [_find(core, name) for name in into]
        wanted = None if request.indices is None else set(request.indices)
        left_out = [name for name, index in zip(into, given) if wanted is not None and index not in wanted]
        if left_out:
            raise errors.make("InvalidArgument", f"into= has '{left_out[0]}', which names= does not ask for",
                              tensor=left_out[0])
        request.indices = sorted(given)
    if slices is not None:
        _checks.table("slices", slices, "{name or pattern: index, shard() or pick()}")
        _add_slices(request, slices)
    if (shard is None) != (rank is None) or (rank is None) != (world is None):
        raise errors.make("InvalidArgument", "shard=, rank= and world= go together: which dimension, and "
                                             "whose block; with group= rank and world may be left out")
    if shard is not None and rank is not None and world is not None:
        _add_shards(request, shard, rank, world)
    _settle(request)
    if dtype is not None:
        _add_dtypes(request, dtype)
    if device_map is not None:
        request.places = dict(enumerate(_places.resolve(core, request.indices, device_map, device)))
    if into is not None:
        _add_into(request, into, device)
    if request.places:
        request.devices = _places.in_order(request.places.values())
    return request


def _find(core: _core.Checkpoint, name: str) -> int:
    _check_text(name)
    index = core.find(name)
    if index < 0:
        raise errors.make("TensorNotFound", f"no tensor is named '{name}'", tensor=name)
    return index


def _check_text(name: Any) -> None:
    if not isinstance(name, str):
        raise errors.make("InvalidArgument", f"names and patterns of tensors are text, not {name!r}")


def match(core: _core.Checkpoint, pattern: str) -> list[int]:
    """Indices of the tensor of this name, or of those that the glob matches; none is an error."""
    _check_text(pattern)
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
    if names is None or (isinstance(names, str) and names == "*" and core.find("*") < 0):
        return None
    patterns = [names] if isinstance(names, str) else names
    if not isinstance(patterns, Iterable):
        raise errors.make("InvalidArgument", f"names= is a name, a pattern or a list of them, not {names!r}")
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
                request.shard(position, request.whole(shape), index)
            else:
                request.cuts[position] = _slices.cut(shape, index)
        except errors.HeadraceError as error:
            raise _in_tensor(name, error) from None


def _add_shards(request: Request, shard: Mapping[str, Any] | int, rank: int, world: int) -> None:
    """The block of a rank, of what slices leave. What no key names and has not the dimension stays whole."""
    _slices.shard(0, rank, world)  # refuses a wrong rank also where nothing is sharded
    if isinstance(shard, Mapping):
        table = _checks.table("shard", shard, "{name or pattern: dimension or (dimension, sizes)}")
        sharded = _by_pattern(request, table)
    else:
        table, sharded = {}, dict.fromkeys(range(len(request)), shard)
    for position, wanted in sharded.items():
        name, _, shape, *_ = request.core.info(request.index_of(position))
        try:
            if isinstance(wanted, tuple) and len(wanted) != 2:
                raise errors.make("InvalidArgument", f"shard= is a dimension or (dimension, sizes), not {wanted!r}")
            dim, sizes = wanted if isinstance(wanted, tuple) else (wanted, None)
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
            request.shapes[position] = cut.shape
        if cut.is_slice:
            request.set_ranges(position, position, 0, cut.part_ranges[0])


# ------------------------------------------------------------------------------------------------------------ dtypes


def _add_dtypes(request: Request, dtype: Any) -> None:
    """One dtype, or `"*"` of several, is for all of which no other entry speaks, and converts floats only."""
    special: dict[str, Any] = {}
    general = dtype
    if isinstance(dtype, Mapping):
        special = dict(_checks.table("dtype", dtype, "a dtype or {name or pattern: dtype}"))
        general = special.pop("*", None) if request.core.find("*") < 0 else None
    named = _by_pattern(request, special) if special else {}
    for position, dtype in named.items():
        _add_dtype(request, position, dtype, named=True)
    if _dtype_name(general) is None:
        return
    for position in range(len(request)):
        if position not in named:
            _add_dtype(request, position, general, named=False)


def _dtype_name(dtype: Any) -> str | None:
    """The format's name; None: as stored. Raises InvalidArgument."""
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return None
    name = _dtypes.name_of(dtype)
    if name is None:
        raise errors.make("InvalidArgument", f"dtype {dtype!r} is none of {', '.join(_dtypes.BITS)} and 'auto'")
    return name


def _add_dtype(request: Request, position: int, dtype: Any, named: bool) -> None:
    name, stored, *_ = request.core.info(request.index_of(position))
    wanted = _dtype_name(dtype)
    if wanted is None or (not named and stored not in _dtypes.FLOATS):
        return
    if not _dtypes.converts(stored, wanted):
        message = f"tensor '{name}' is stored as {stored}, which cannot be converted to {wanted}; say 'auto' for it"
        raise errors.make("Unsupported", message, tensor=name)
    request.dtypes[position] = wanted


# ----------------------------------------------------------------------------------------------- memory for tensors


def _add_into(request: Request, into: Mapping[str, Any], device: str | None) -> None:
    for position, index in enumerate(request.indices or ()):
        name, stored, shape, *_ = request.core.info(index)
        target, place, asked = into[name], request.places.get(position, device), request.dtypes.get(position)
        try:
            for cut, memory in _memories(request, position, shape, target):
                dropped = cut.shape if cut.dropped else None
                found = _into.target(memory, _into.Wanted(stored, asked, cut.extents, dropped), request.exports)
                if place not in (None, found.device):
                    raise errors.make("InvalidArgument", f"the memory to load into is on {found.device}, but the load "
                                                         f"goes to {place}")
                request.add(position, target, cut, found)
        except errors.HeadraceError as error:
            raise _in_tensor(name, error) from None
    for one, other in _overlap.pairs(request.areas):
        which = f"tensors '{one}' and '{other}'" if one != other else f"two ranges of tensor '{one}'"
        raise errors.make("InvalidArgument", f"{which} would be loaded into the same memory, in no order: leave one "
                                             "out, or give it memory of its own", tensor=other)


def _memories(
    request: Request, position: int, shape: tuple[int, ...], target: Any
) -> Iterator[tuple[Cut, Any]]:
    """What of a tensor goes to which memory: all to one, or each of several (index, memory)."""
    if not isinstance(target, (list, tuple)):
        yield request.cut_of(position, shape), target
        return
    if position in request.cuts:
        raise errors.make("InvalidArgument", "into= has a list for it, whose indices count; leave it out of "
                                             "slices= and shard=")
    if not target:
        raise errors.make("InvalidArgument", "the list to load into is empty; give (index, memory) pairs")
    for entry in target:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise errors.make("InvalidArgument", f"a list to load into has (index, memory) pairs, not {entry!r}")
        yield _slices.cut(shape, entry[0]), entry[1]


def make_parted(request: Request, frameworks: Sequence[Framework]) -> None:
    """Lets the framework of each device make the tensors that come in several parts, as cells to load into."""
    chosen = dict(zip(request.devices, frameworks))
    for position, cut in request.cuts.items():
        if cut.is_slice or position in request.into:
            continue
        name, stored, *_ = request.core.info(request.index_of(position))
        dtype = request.dtype_of(position)
        try:
            tensor = chosen[request.device_of(position)].empty(dtype, cut.shape)
            wanted = _into.Wanted(stored, dtype, cut.extents, request.shapes.get(position))
            found = _into.target(tensor, wanted, request.exports)
            request.add(position, _parts.Cell(name, tensor), cut, found)
        except errors.HeadraceError as error:
            raise _in_tensor(name, error) from None
