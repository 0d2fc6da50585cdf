"""Which elements of a tensor are wanted: NumPy's indices, shards and picks, resolved to exact ranges. Pure.

A Cut has, for each dimension of the stored tensor, ranges whose elements are laid one behind the other. With one range
in each it is a slice; with several it comes in parts, which are the product of the dimensions' ranges.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import _checks, errors

Bounds = tuple[int, int, int]  # start, stop, step
Ranges = tuple[Bounds, ...]  # one a dimension
EMPTY: Bounds = (0, 0, 1)


@dataclass(frozen=True)
class Shard:
    """The block of one dimension that belongs to a rank; see shard()."""

    dim: int
    rank: int
    world: int
    sizes: tuple[int, ...] | None = None


def shard(dim: int, rank: int, world: int, sizes: Sequence[int] | None = None) -> Shard:
    """The block of dimension `dim` that belongs to `rank` of `world`, for `slices=`.

    Blocks have ceil(extent / world) elements; the last ones may be shorter or empty. `dim` may be negative. With
    `sizes`, sections that make up the dimension (query, key and value; gate and up), it is the block of each section,
    one behind the other.
    """
    sections = None if sizes is None else tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)
    wrong = [number for number in (dim, rank, world, *(sections or ())) if _checks.whole_number(number) is None]
    if wrong:
        message = f"the dimension, rank, world and sizes of a shard are integers, not {wrong[0]!r}"
        raise errors.make("InvalidArgument", message)
    dim, rank, world = map(operator.index, (dim, rank, world))
    if world < 1:
        raise errors.make("InvalidArgument", f"world is {world}; it is the number of ranks, at least 1")
    if not 0 <= rank < world:
        raise errors.make("InvalidArgument", f"rank {rank} is not between 0 and {world - 1} (world {world})")
    return Shard(dim, rank, world, None if sections is None else tuple(map(operator.index, sections)))


@dataclass(frozen=True)
class Pick:
    """Ranges of one dimension; see pick()."""

    dim: int
    ranges: tuple[tuple[int, int], ...]


def pick(
    dim: int, indices: Iterable[int] | None = None, *, ranges: Iterable[tuple[int, int]] | None = None
) -> Pick:
    """These indices, or (start, stop) ranges, of dimension `dim`, one behind the other, for `slices=`: lists of
    experts, parts of a fused tensor. In any order; negative ones count from the end: (-2, 0) is the last two. None is
    clamped. Only these bytes are read."""
    if (indices is None) == (ranges is None):
        raise errors.make("InvalidArgument", "pick() takes indices or ranges=, one of both")
    if _checks.whole_number(dim) is None:
        raise errors.make("InvalidArgument", f"the dimension of a pick is an integer, not {dim!r}")
    try:
        if indices is not None:
            return Pick(dim, tuple((operator.index(index), operator.index(index) + 1) for index in indices))
        return Pick(dim, tuple((operator.index(start), operator.index(stop)) for start, stop in ranges or ()))
    except (TypeError, ValueError) as error:
        message = f"pick() takes integers, or (start, stop) pairs of them as ranges= ({error})"
        raise errors.make("InvalidArgument", message) from error


@dataclass(frozen=True)
class Cut:
    """What is wanted of a tensor."""

    dims: tuple[tuple[Bounds, ...], ...]  # of each stored dimension, at least one range
    dropped: frozenset[int] = frozenset()  # dimensions that an integer takes away

    @functools.cached_property
    def extents(self) -> tuple[int, ...]:
        """Elements of each stored dimension."""
        return tuple(sum(map(extent, bounds)) for bounds in self.dims)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents without dropped dimensions."""
        return tuple(size for dim, size in enumerate(self.extents) if dim not in self.dropped)

    @functools.cached_property
    def is_slice(self) -> bool:
        """Whether it is in one part."""
        return all(len(bounds) == 1 for bounds in self.dims)

    @functools.cached_property
    def part_ranges(self) -> tuple[Ranges, ...]:
        """The ranges of each part."""
        return tuple(itertools.product(*self.dims))

    def parts(self) -> Iterator[tuple[Ranges, tuple[int, ...]]]:
        """Each part's ranges, and where it begins in what is wanted, in elements of each dimension."""
        placed = []
        for bounds in self.dims:
            starts = itertools.accumulate(map(extent, bounds), initial=0)
            placed.append(list(zip(bounds, starts)))
        for part in itertools.product(*placed):
            yield tuple(bounds for bounds, _ in part), tuple(start for _, start in part)

    def narrow(self, dim: int, blocks: Iterable[tuple[int, int]]) -> Cut:
        """Of dimension `dim` only these (begin, end) of its wanted elements."""
        bounds = [part for begin, end in blocks for part in _narrow(self.dims[dim], begin, end)]
        return self._with(dim, bounds or [EMPTY])

    def block(self, part: Shard) -> Cut:
        """The block of a rank. Raises InvalidArgument."""
        dim, sizes = self._sections(part)
        return self.narrow(dim, _blocks(sizes, part.rank, part.world))

    def sections(self, part: Shard) -> tuple[Cut, Cut]:
        """The sections that a shard is of, and the block of a rank, both with a range for each section, whichever rank
        it is. Raises InvalidArgument, and Unsupported for several ranges of that dimension."""
        dim, sizes = self._sections(part)
        if len(self.dims[dim]) > 1:
            raise errors.make("Unsupported", f"dimension {dim} is picked from and sharded in a group; shard another "
                                             "dimension, or load without group=")
        whole, own, at = [], [], 0
        for size in sizes:
            block = -(-size // part.world)
            first, last = min(part.rank * block, size), min((part.rank + 1) * block, size)
            whole += list(_narrow(self.dims[dim], at, at + size)) or [EMPTY]
            own += list(_narrow(self.dims[dim], at + first, at + last)) or [EMPTY]
            at += size
        return self._with(dim, whole), self._with(dim, own)

    def _with(self, dim: int, bounds: list[Bounds]) -> Cut:
        return Cut((*self.dims[:dim], tuple(bounds), *self.dims[dim + 1 :]), self.dropped)

    def _sections(self, part: Shard) -> tuple[int, tuple[int, ...]]:
        dim = dimension(part.dim, len(self.dims))
        if dim in self.dropped:
            raise errors.make("InvalidArgument", f"dimension {part.dim} is sharded, and an index drops it")
        size = self.extents[dim]
        sizes = (size,) if part.sizes is None else part.sizes
        if sum(sizes) != size or min(sizes, default=0) < 0:
            raise errors.make("InvalidArgument", f"sizes={sizes} do not add up to dimension {dim}, of {size}")
        return dim, sizes


def extent(bounds: Bounds) -> int:
    """Elements of a range."""
    start, stop, step = bounds
    return -(-(stop - start) // step)


def count(ranges: Ranges) -> int:
    """Elements of ranges, one a dimension."""
    return math.prod(map(extent, ranges))


def _narrow(ranges: tuple[Bounds, ...], begin: int, end: int) -> Iterator[Bounds]:
    """Elements begin .. end of ranges that are laid one behind the other."""
    at = 0
    for start, stop, step in ranges:
        count = extent((start, stop, step))
        first, last = max(begin - at, 0), min(end - at, count)
        if first < last:
            yield start + first * step, min(start + last * step, stop), step
        at += count


def _blocks(sizes: tuple[int, ...], rank: int, world: int) -> Iterator[tuple[int, int]]:
    """A rank's block of each section; neighbours as one."""
    at, begin, end = 0, 0, 0
    for size in sizes:
        block = -(-size // world)
        first, last = at + min(rank * block, size), at + min((rank + 1) * block, size)
        if first != end:
            yield begin, end
            begin = first
        at, end = at + size, last
    yield begin, end


def dimension(dim: int, rank: int) -> int:
    """`dim`, which may be negative, of a tensor of `rank` dimensions. Raises InvalidArgument."""
    if not -rank <= dim < rank:
        raise errors.make("InvalidArgument", f"there is no dimension {dim} in a tensor of {rank} dimensions")
    return dim % rank


def whole(shape: tuple[int, ...]) -> Cut:
    """All of a tensor."""
    return Cut(tuple(((0, size, 1),) for size in shape))


def cut(shape: tuple[int, ...], index: Any) -> Cut:
    """What `index` wants of a tensor: a Shard, a Pick, or by NumPy's rules integers (which drop their dimension),
    slices of positive step with negative and clamped bounds, one ellipsis. Raises InvalidArgument."""
    if isinstance(index, Shard):
        return whole(shape).block(index)
    if isinstance(index, Pick):
        return _picked(shape, index)
    parts = list(index) if isinstance(index, tuple) else [index]
    ellipses = [at for at, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise errors.make("InvalidArgument", "only one ellipsis (...) is allowed in a slice")
    given = len(parts) - len(ellipses)
    if given > len(shape):
        raise errors.make("InvalidArgument", f"{given} indices for a tensor of {len(shape)} dimensions {shape}")
    at = ellipses[0] if ellipses else len(parts)
    parts[at : at + len(ellipses)] = [slice(None)] * (len(shape) - given)
    dims = tuple((_bounds(part, dim, size),) for dim, (part, size) in enumerate(zip(parts, shape)))
    return Cut(dims, frozenset(dim for dim, part in enumerate(parts) if not isinstance(part, slice)))


def _bounds(part: Any, dim: int, size: int) -> Bounds:
    try:
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            if step < 1:
                raise errors.make("InvalidArgument", f"dimension {dim}: the step must be positive, it is {step}")
            return start, max(start, stop), step
        if isinstance(part, bool):
            raise TypeError
        number = operator.index(part)
    except errors.HeadraceError:
        raise
    except (TypeError, ValueError) as error:
        message = (f"dimension {dim}: an index is an integer, a slice of positive step or ..., not {part!r}; lists are "
                   "for headrace.pick()")
        raise errors.make("InvalidArgument", message) from error
    if not -size <= number < size:
        raise errors.make("InvalidArgument", f"dimension {dim}: index {number} is out of bounds for size {size}")
    number %= size
    return number, number + 1, 1


def _picked(shape: tuple[int, ...], wanted: Pick) -> Cut:
    dim = dimension(wanted.dim, len(shape))
    blocks: list[tuple[int, int]] = []
    for start, stop in wanted.ranges:
        begin, end = (start + shape[dim], stop + shape[dim]) if start < 0 else (start, stop)
        if not 0 <= begin <= end <= shape[dim]:
            found = f"index {start} is" if stop == start + 1 else f"range {start} to {stop} is"
            raise errors.make("InvalidArgument", f"dimension {dim}: {found} out of bounds for size {shape[dim]}")
        if blocks and blocks[-1][1] == begin:
            blocks[-1] = blocks[-1][0], end
        else:
            blocks.append((begin, end))
    return whole(shape).narrow(dim, blocks)
