"""The exceptions, one tree, one class for each kind of the library's error list.

`HeadraceError` is the root. A class is named after its kind (`InvalidOffset`, `ShardMissing`, ...) and, where Python
has a fitting built-in class, inherits from that as well, so that `except KeyError` or `except OSError` do what one
expects. The classes are made from the list in the C library: a new kind there is a new class here.
"""

from __future__ import annotations

import errno as _errno
import os as _os
from typing import Any

from . import _core


class HeadraceError(Exception):
    """Root of all exceptions of this package.

    Attributes:
        kind: the kind's name, for example "InvalidOffset".
        code: the library's number, negative.
        file: path of the file concerned, or None.
        tensor: name of the tensor concerned, or None. Names over 255 bytes are cut and end in "...".
        offset: byte offset from the start of the file, or None.
        errno: number of the failed system call, or None.
        driver_code: the device driver's number, or None.
    """

    kind: str = "HeadraceError"
    code: int = 0
    file: str | None = None
    tensor: str | None = None
    offset: int | None = None
    errno: int | None = None
    driver_code: int | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else self.kind


# What a kind also is. Everything else is a HeadraceError only.
_BUILTIN_BASES: dict[str, tuple[type, ...]] = {
    "TensorNotFound": (KeyError,),
    "IoError": (OSError,),
    "ShortRead": (EOFError,),
    "OutOfMemory": (MemoryError,),
    "InvalidArgument": (ValueError,),
    "Unsupported": (NotImplementedError,),
    "DeadlineExceeded": (TimeoutError,),
}

_CLASSES: dict[int, type[HeadraceError]] = {}


def _make_classes() -> None:
    for code, kind, text in _core.error_list():
        if kind == "End":
            continue  # the end of an iteration, never raised
        bases = (HeadraceError, *_BUILTIN_BASES.get(kind, ()))
        body = {"__doc__": f"{text[0].upper()}{text[1:]}.", "__module__": __name__, "kind": kind, "code": code}
        _CLASSES[code] = type(kind, bases, body)
        globals()[kind] = _CLASSES[code]


_make_classes()


class FileNotFound(_CLASSES[-34], FileNotFoundError):  # type: ignore[misc]
    """There is no such file or folder (an IoError whose errno is ENOENT)."""


_BY_NAME = {cls.kind: cls for cls in _CLASSES.values()}


def from_core(
    code: int, message: str, file: str | None, tensor: str | None, offset: int | None, sys_errno: int, driver_code: int
) -> HeadraceError:
    """The exception for an error of the library; called by the extension. Its text names tensor and file."""
    if tensor is not None and f"'{tensor}'" not in message:
        message = f"tensor '{tensor}': {message}"
    # a bare name may be any word of it
    if file is not None and not (_os.sep in file and file in message) and not message.startswith(f"{file}: "):
        message = f"{file}: {message}"
    cls = _CLASSES.get(code, HeadraceError)
    if cls.kind == "IoError" and sys_errno == _errno.ENOENT:
        cls = FileNotFound
    error = cls(message)
    fields: dict[str, Any] = {"file": file, "tensor": tensor, "offset": offset}
    fields |= {"errno": sys_errno or None, "driver_code": driver_code or None}
    for name, value in fields.items():
        if value is not None:
            setattr(error, name, value)
    return error


def make(kind: str, message: str, **fields: Any) -> HeadraceError:
    """An exception of this package's own making; `fields` are attributes of HeadraceError."""
    error = _BY_NAME[kind](message)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


_core.set_error_factory(from_core)

__all__ = ["HeadraceError", "FileNotFound", *sorted(_BY_NAME)]
