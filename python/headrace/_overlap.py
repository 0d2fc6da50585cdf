"""Memory that several tensors would be loaded into at once, in no order. What is found overlaps for certain: a tensor
in one piece is known whole, of strided memory only the first element, so views that interleave pass. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Area(NamedTuple):
    """Bytes from `begin` to `end` on a device."""

    device: str
    begin: int
    end: int
    name: str  # of the tensor that goes there


def of_torch(name: str, tensor: Any) -> Area:
    """The area of a PyTorch tensor that has memory."""
    begin = tensor.data_ptr()
    size = min(tensor.nbytes, tensor.element_size()) if not tensor.is_contiguous() else tensor.nbytes
    return Area(str(tensor.device), begin, begin + size, name)


def pairs(areas: Iterable[Area]) -> Iterator[tuple[str, str]]:
    """Names of areas that overlap; each one that overlaps any other is in one of them."""
    farthest: Area | None = None
    for area in sorted(areas):
        if area.begin == area.end:
            continue
        if farthest is None or area.device != farthest.device:
            farthest = area
            continue
        if area.begin < farthest.end:
            yield farthest.name, area.name
        if area.end > farthest.end:
            farthest = area
