"""safetensors.flax by headrace. Names that are not here are those of the safetensors package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

import jax as _jax

from ... import _files, _save
from ... import jax as _ours
from .. import _aside
from . import _errors
from ._open import Filename
from ._open import safe_open as safe_open

Metadata = Union[Mapping[str, str], None]


def load_file(filename: Filename, *, backend: str = "mmap") -> dict[str, _jax.Array]:
    """Loads a safetensors file: {name: array} on JAX's default device. See headrace.jax.load_file()."""

    def ours() -> dict[str, _jax.Array]:
        return _files.load_file(filename, "flax", _default_device(), backend, True)

    return _errors.run("flax.load_file", ours, _errors.HEADER, filename, backend=backend)


def load(data: bytes) -> dict[str, _jax.Array]:
    """Loads a safetensors file that is given as bytes."""
    return _errors.run("flax.load", lambda: _ours.load(data), _errors.BYTES, data)


def save_file(tensors: dict[str, _jax.Array], filename: Filename, metadata: Metadata = None) -> None:
    """Writes arrays into a safetensors file, atomically. See headrace.jax.save_file()."""

    def ours() -> None:
        _save.write_file(tensors, filename, _errors.metadata_of(metadata))

    _errors.run("flax.save_file", ours, _errors.WRITE, tensors, filename, metadata)


def save(tensors: dict[str, _jax.Array], metadata: Metadata = None) -> bytes:
    """The bytes that save_file() would write."""

    def ours() -> bytes:
        return _save.save(tensors, _errors.metadata_of(metadata))

    return _errors.run("flax.save", ours, _errors.WRITE, tensors, metadata)


def _default_device() -> str:
    """Where JAX puts arrays that nobody placed. A GPU that is not of CUDA is refused when it is used."""
    config: Any = _jax.config
    device = config.jax_default_device or _jax.local_devices()[0]
    if isinstance(device, str) or device.platform == "cpu":
        return "cpu"
    return f"cuda:{device.local_hardware_id}"


def __getattr__(name: str) -> Any:
    found = None if name.startswith("__") else _aside.original("safetensors.flax", name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
