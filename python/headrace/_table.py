"""from_table: tensors in files of any format, described by the caller."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any, Union

from . import _core, _dtypes, errors
from ._checkpoint import Checkpoint

#: (name, dtype, shape, file, offset): the dtype by the format's name ("F32", "U8"), the file as its position in the
#: list of paths, the offset of the first byte from the start of that file.
Extent = tuple[str, str, Sequence[int], int, int]
Path = Union[str, os.PathLike[str]]

_CODES = {name: position + 1 for position, (name, _) in enumerate(_dtypes.DTYPES)}
_LARGEST = (1 << 64) - 1


def from_table(paths: Path | Iterable[Path], extents: Iterable[Extent]) -> Checkpoint:
    """A checkpoint of tensors in files of any format, which are not parsed: GGUF, raw dumps, archives.

    Args:
        paths: a regular file or several.
        extents: (name, dtype, shape, file, offset) of each tensor: `dtype` is a name of the format ("BF16"; "U8" for
            what has none, as quantized blocks), `file` a position in `paths`, `offset` that of the first byte, of any
            alignment. Tensors may overlap and leave holes; names must differ.

    The files must stay as they are from this call on. The checkpoint has no metadata and lists its tensors in the order
    of files and offsets; otherwise it is like one that open() gives.

    Raises InvalidArgument, DuplicateTensor, NameHasNul, RankTooLarge, ValidationOverflow, MisalignedSlice,
    MetadataIncompleteBuffer (past the end of the file), with .tensor, .file and .offset; IoError, NotARegularFile.
    """
    files = [os.fspath(paths)] if isinstance(paths, (str, os.PathLike)) else [os.fspath(path) for path in paths]
    if not files:
        raise errors.make("InvalidArgument", "the list of files is empty")
    core = _core.from_table([os.fsencode(path) for path in files], [_row(extent) for extent in extents])
    return Checkpoint(core, files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more")


def _row(extent: Extent) -> tuple[str, int, tuple[int, ...], int, int]:
    name, dtype, shape, file, offset = extent
    if dtype not in _CODES:
        raise errors.make(
            "InvalidArgument", f"tensor '{name}': its dtype is {dtype!r}; known are {', '.join(_CODES)}", tensor=name
        )
    extents = tuple(_number(name, "an extent", value) for value in shape)
    return name, _CODES[dtype], extents, _number(name, "its file", file), _number(name, "its offset", offset)


def _number(name: str, what: str, value: Any) -> int:
    number = operator.index(value)
    if not 0 <= number <= _LARGEST:
        raise errors.make(
            "InvalidArgument", f"tensor '{name}': {what} is {number}; it must be between 0 and 2^64 - 1", tensor=name
        )
    return number
