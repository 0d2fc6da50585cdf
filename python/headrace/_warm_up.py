"""Lets PyTorch's allocator take what a load needs in one piece, and give it to its cache: one call of the driver
instead of hundreds, and fewer gaps. By PyTorch's public functions only."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

from . import _core, _dtypes, _request

ROUNDING_BYTES = 512  # of PyTorch's blocks
SMALL_BYTES = 1 << 20  # up to here they come out of segments of 2 MiB, whatever larger one is free
SPARED_BYTES = 1 << 30  # of free memory: for kernels, libraries and others


def sizes(core: _core.Checkpoint, request: _request.Request) -> Iterator[int]:
    """Bytes of each tensor of a request; each is there once, however many names a model has for it."""
    for position in range(len(core) if request.indices is None else len(request.indices)):
        _, stored, shape, _, _, nbytes = core.info(request.index_of(position))
        dtype = request.dtypes.get(position, stored)
        if position in request.ranges or dtype != stored:
            extents = map(_request.extent, request.ranges[position]) if position in request.ranges else shape
            nbytes = math.prod(extents) * _dtypes.BITS[dtype] // 8
        yield nbytes


def take(device: str, tensor_sizes: Iterable[int]) -> int:
    """Fills the allocator's cache of a GPU for tensors of these sizes and returns the bytes that it took: less what the
    cache holds already, and none of the last free memory."""
    torch: Any = importlib.import_module("torch")
    needed = sum(-(-size // ROUNDING_BYTES) * ROUNDING_BYTES for size in tensor_sizes if size > SMALL_BYTES)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    count = min(needed - unused, torch.cuda.mem_get_info(device)[0] - SPARED_BYTES)
    if count <= 0:
        return 0
    try:
        torch.empty(count, dtype=torch.uint8, device=device)  # and goes at once, into the cache
    except torch.OutOfMemoryError:
        return 0  # the load may need less than this, or says what is missing
    return int(count)
