"""Tensors that come in several parts: what a pick or a shard of sections wants, or ranges that go to memory of their
own. The engine sees an item for each part, which it loads into its place; a tensor is there when all its parts are.

Items 0, 1, ... are the first parts, in the order of the request's tensors; the others follow them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import _dtypes, errors
from ._slices import Cut, Ranges


def handed_out_before(name: str) -> Exception:
    """What is raised for a tensor that is asked for a second time."""
    message = f"tensor '{name}' was handed out before; a load gives each tensor once"
    return errors.make("InvalidArgument", message, tensor=name)


class Cell:
    """Holds a tensor that was made for a load until it is handed out, once. The load keeps the cell, not the tensor."""

    def __init__(self, name: str, tensor: Any) -> None:
        self._name = name
        self._tensors = [tensor]  # pop() is atomic

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def take(self) -> Any:
        try:
            return self._tensors.pop()
        except IndexError:
            raise handed_out_before(self._name) from None


def taken(item: Any) -> Any:
    """The tensor of what a load gave for an item."""
    return item.take() if isinstance(item, Cell) else item


def is_gone(item: Any) -> bool:
    """Whether wait_all() gave nothing for an item, since its tensor was handed out before."""
    return item is None or (isinstance(item, Cell) and not item)


def row_major(extents: tuple[int, ...], bits: int) -> tuple[int, ...]:
    """Strides in bits."""
    strides = []
    for size in reversed(extents):
        strides.append(bits)
        bits *= size
    return tuple(reversed(strides))


def place(
    cut: Cut, dtype: str, address: int, strides: tuple[int, ...] | None
) -> Iterator[tuple[Ranges, int, tuple[int, ...] | None]]:
    """Ranges, address and strides of each part in memory of these strides in bytes (None: row-major). Raises
    Unsupported where elements smaller than a byte would not lie on bytes."""
    if cut.is_slice:
        yield cut.part_ranges[0], address, strides
        return
    bits = _dtypes.BITS[dtype]
    steps = row_major(cut.extents, bits) if strides is None else tuple(stride * 8 for stride in strides)
    for ranges, starts in cut.parts():
        offset = sum(start * step for start, step in zip(starts, steps))
        if bits % 8 == 0:
            yield ranges, address + offset // 8, tuple(step // 8 for step in steps)
        elif offset % 8 == 0 and is_compact(ranges, steps, bits):
            yield ranges, address + offset // 8, None
        else:
            raise errors.make("Unsupported", f"parts of elements of {bits} bits must each fill whole bytes in a row; "
                                             "pick along the first dimension, or load the parts by themselves")


def is_compact(ranges: Ranges, steps: tuple[int, ...], bits: int) -> bool:
    """Whether a part lies row-major in memory of these strides in bits."""
    sizes = Cut(tuple((bounds,) for bounds in ranges)).extents
    own = row_major(sizes, bits)
    return all(size < 2 or a == b for size, a, b in zip(sizes, own, steps))


class Parts:
    """Which items belong to which tensor of a request, and which of them have come."""

    def __init__(self, count: int, owners: list[int]) -> None:
        """`owners` are the positions of the items from `count` on."""
        self._count = count
        self._owners = owners
        self._others: dict[int, list[int]] = {}
        for item, position in enumerate(owners, count):
            self._others.setdefault(position, []).append(item)
        self._missing = {position: len(items) + 1 for position, items in self._others.items()}
        self._lock = threading.Lock()

    def arrived(self, item: int) -> int | None:
        """The position of the tensor that is complete with this item, or None."""
        position = item if item < self._count else self._owners[item - self._count]
        if position not in self._missing:
            return position
        with self._lock:
            self._missing[position] -= 1
            return None if self._missing[position] else position

    def waiting(self, wait: Callable[[int], Any]) -> Callable[[int], Any]:
        """`wait`, which waits for an item, for whole tensors."""

        def wait_for_all(position: int) -> Any:
            for item in self._others.get(position, ()):
                wait(item)
            return wait(position)

        return wait_for_all
