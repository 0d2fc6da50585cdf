"""from_table: tensors in files of any format, described by the caller."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from . import _checks, _core, _dtypes, _hub, errors
from ._checkpoint import Checkpoint

#: (name, dtype, shape, file, offset): the dtype as of `dtype=` ("F32", torch.float32), the file as its position in the
#: list of paths, the offset of the first byte from the start of that file.
Extent = tuple[str, Any, Sequence[int], int, int]

_LARGEST = (1 << 64) - 1


def from_table(paths: _hub.Source, extents: Iterable[Extent]) -> Checkpoint:
    """A checkpoint of tensors in files of any format, which are not parsed: GGUF, raw dumps, archives.

    Args:
        paths: a regular file or several.
        extents: (name, dtype, shape, file, offset) of each tensor: `dtype` is what `dtype=` takes ("BF16",
            torch.bfloat16; "U8" for what has none, as quantized blocks), `file` a position in `paths`, `offset` that of
            the first byte, of any alignment. Tensors may overlap and leave holes; names must differ.

    The files must stay as they are from this call on. The checkpoint has no metadata and lists its tensors in the order
    of files and offsets; otherwise it is like one that open() gives.

    Raises InvalidArgument, DuplicateTensor, NameHasNul, RankTooLarge, ValidationOverflow, MisalignedSlice,
    MetadataIncompleteBuffer (past the end of the file), with .tensor, .file and .offset; IoError, NotARegularFile.
    """
    if not isinstance(extents, Iterable):
        message = f"extents are a list of (name, dtype, shape, file, offset), not {extents!r}"
        raise errors.make("InvalidArgument", message)
    files = [os.fsdecode(paths)] if _hub.is_path(paths) else _hub.paths_of(paths)
    core = _core.from_table([os.fsencode(path) for path in files], [_row(extent) for extent in extents])
    return Checkpoint(core, files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more")


def _row(extent: Extent) -> tuple[str, int, tuple[int, ...], int, int]:
    if not isinstance(extent, Sequence) or len(extent) != 5 or not isinstance(extent[0], str):
        raise errors.make("InvalidArgument", f"an extent is (name, dtype, shape, file, offset), not {extent!r}")
    name, dtype, shape, file, offset = extent
    found = _dtypes.name_of(dtype)
    if found is None:
        message = f"tensor '{name}': its dtype is {dtype!r}; known are {', '.join(_dtypes.CODES)}"
        raise errors.make("InvalidArgument", message, tensor=name)
    if not isinstance(shape, Iterable):
        raise errors.make("InvalidArgument", f"tensor '{name}': its shape is {shape!r}, which is no list", tensor=name)
    extents = tuple(_number(name, "an extent", value) for value in shape)
    return name, _dtypes.CODES[found], extents, _number(name, "its file", file), _number(name, "its offset", offset)


def _number(name: str, what: str, value: Any) -> int:
    number = _checks.whole_number(value)
    if number is None or not 0 <= number <= _LARGEST:
        message = f"tensor '{name}': {what} is {value!r}; it must be a whole number between 0 and 2^64 - 1"
        raise errors.make("InvalidArgument", message, tensor=name)
    return number
