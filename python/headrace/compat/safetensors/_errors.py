"""Errors in the words of the safetensors package, and the way to it: run() tries ours and then the package's own."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, TypeVar

from ... import errors
from .. import _aside

Result = TypeVar("Result")


class _OwnError(Exception):
    """What is raised where the safetensors package is not installed."""


_OwnError.__name__ = _OwnError.__qualname__ = "SafetensorError"

SafetensorError: type[Exception] = _aside.original("safetensors", "SafetensorError") or _OwnError

HEADER = "Error while deserializing header"
BYTES = "Error while deserializing"
WRITE = "Error while serializing"

# After these the package would fail too, and might destroy what is at the path while it does.
_FINAL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}

_WORDS = {
    "HeaderTooSmall": "header too small",
    "HeaderTooLarge": "header too large",
    "InvalidHeaderLength": "invalid header length",
    "InvalidHeader": "invalid UTF-8 in header",
    "InvalidHeaderDeserialization": "invalid JSON in header",
    "MetadataIncompleteBuffer": "incomplete metadata, file not fully covered",
    "TensorInvalidInfo": "invalid shape, data type, or offset for tensor",
    "ValidationOverflow": "overflow computing buffer size from shape and/or element type",
    "MisalignedSlice": "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, "
                       "this is invalid.",
    "IoError": "I/O error",
}  # fmt: skip


def translated(error: errors.HeadraceError, action: str) -> Exception:
    """What the safetensors package raises where headrace raises `error`; `action` is one of the above."""
    if isinstance(error, FileNotFoundError) and action != WRITE:
        return FileNotFoundError(f"No such file or directory: {error.file}")
    if error.kind == "TensorNotFound":
        return SafetensorError(f"File does not contain tensor {error.tensor}")
    if error.kind == "IoError" and error.errno is not None and action != WRITE:
        return OSError(error.errno, str(error))
    if error.kind == "InvalidOffset":
        return SafetensorError(f"{action}: invalid offset for tensor `{error.tensor}`")
    words = _WORDS.get(error.kind)
    return SafetensorError(f"{action}: {words}: {error}" if words else str(error))


def run(name: str, ours: Callable[[], Result], action: str, *arguments: Any, **keywords: Any) -> Result:
    """The result of `ours`; if that raises a HeadraceError, what the function `name` ("torch.load_file") of the package
    makes of the arguments, with its own exceptions."""
    module, _, function = f"safetensors.{name}".rpartition(".")
    original = _aside.original(module, function)
    if keywords.get("backend") == "mmap":  # the default, which versions before 0.8 do not know
        del keywords["backend"]
    if original is not None and _aside.is_running():
        theirs: Result = _aside.call(original, arguments, keywords)
        return theirs
    try:
        return ours()
    except errors.HeadraceError as error:
        if original is None or error.errno in _FINAL:
            raise translated(error, action) from error
        theirs = _aside.call(original, arguments, keywords)
        _aside.say(f"safetensors.{name}", error)
        return theirs


def metadata_of(metadata: Any) -> Any:
    """Refuses keys and values that are no text as the package does."""
    for item in [part for pair in (metadata or {}).items() for part in pair]:
        if not isinstance(item, str):
            raise TypeError(f"argument 'metadata': '{type(item).__name__}' object is not an instance of 'str'")
    return metadata

