"""safetensors.numpy by headrace. Names that are not here are those of the safetensors package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from ... import _files, _save
from ... import numpy as _ours
from .. import _aside
from . import _errors
from ._open import Filename
from ._open import safe_open as safe_open

Metadata = Union[Mapping[str, str], None]


def load_file(filename: Filename, *, backend: str = "mmap") -> dict[str, _ours.Array]:
    """Loads a safetensors file: {name: array}. See headrace.numpy.load_file()."""

    def ours() -> dict[str, _ours.Array]:
        return _files.load_file(filename, "np", "cpu", backend, True)

    return _errors.run("numpy.load_file", ours, _errors.HEADER, filename, backend=backend)


def load(data: bytes) -> dict[str, _ours.Array]:
    """Loads a safetensors file that is given as bytes."""
    return _errors.run("numpy.load", lambda: _ours.load(data), _errors.BYTES, data)


def save_file(tensor_dict: dict[str, _ours.Array], filename: Filename, metadata: Metadata = None) -> None:
    """Writes arrays into a safetensors file, atomically. See headrace.numpy.save_file()."""

    def ours() -> None:
        _save.write_file(tensor_dict, filename, _errors.metadata_of(metadata))

    _errors.run("numpy.save_file", ours, _errors.WRITE, tensor_dict, filename, metadata)


def save(tensor_dict: dict[str, _ours.Array], metadata: Metadata = None) -> bytes:
    """The bytes that save_file() would write."""

    def ours() -> bytes:
        return _save.save(tensor_dict, _errors.metadata_of(metadata))

    return _errors.run("numpy.save", ours, _errors.WRITE, tensor_dict, metadata)


def __getattr__(name: str) -> Any:
    found = None if name.startswith("__") else _aside.original("safetensors.numpy", name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
