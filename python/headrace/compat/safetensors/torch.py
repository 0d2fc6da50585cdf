"""safetensors.torch by headrace. Names that are not here are those of the safetensors package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

import torch as _torch

from ... import _hub, _save
from ... import torch as _ours
from .. import _aside
from . import _errors
from ._open import Filename, device_of
from ._open import safe_open as safe_open

Metadata = Union[Mapping[str, str], None]


def load_file(
    filename: Filename, device: Union[str, int] = "cpu", *, backend: str = "mmap"
) -> dict[str, _torch.Tensor]:
    """Loads a safetensors file: {name: tensor}. See headrace.torch.load_file()."""

    def ours() -> dict[str, _torch.Tensor]:
        return _ours.load_file(filename, device_of("pt", device), backend=backend)

    return _errors.run("torch.load_file", ours, _errors.HEADER, filename, device, backend=backend)


def load(data: bytes) -> dict[str, _torch.Tensor]:
    """Loads a safetensors file that is given as bytes."""
    return _errors.run("torch.load", lambda: _ours.load(data), _errors.BYTES, data)


def save_file(tensors: dict[str, _torch.Tensor], filename: Filename, metadata: Metadata = None) -> None:
    """Writes tensors into a safetensors file, atomically. See headrace.torch.save_file()."""

    def ours() -> None:
        _ours._check(tensors)
        _save.write_file(tensors, filename, _errors.metadata_of(metadata))

    _errors.run("torch.save_file", ours, _errors.WRITE, tensors, filename, metadata)


def save(tensors: dict[str, _torch.Tensor], metadata: Metadata = None) -> bytes:
    """The bytes that save_file() would write."""

    def ours() -> bytes:
        return _ours.save(tensors, _errors.metadata_of(metadata))

    return _errors.run("torch.save", ours, _errors.WRITE, tensors, metadata)


def save_model(
    model: _torch.nn.Module, filename: str, metadata: Metadata = None, force_contiguous: bool = True
) -> None:
    """Writes a model's state, of tensors that share memory one. See headrace.torch.save_model()."""

    def ours() -> None:
        _ours._save_model(model, filename, _errors.metadata_of(metadata), force_contiguous, write)

    def write(tensors: dict[str, _torch.Tensor], filename: _hub.PathLike, metadata: Metadata) -> None:
        _ours._check(tensors)
        _save.write_file(tensors, filename, metadata)

    _errors.run("torch.save_model", ours, _errors.WRITE, model, filename, metadata, force_contiguous)


def load_model(
    model: _torch.nn.Module,
    filename: Filename,
    strict: bool = True,
    device: Union[str, int] = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Loads a file that save_model() wrote into a model. See headrace.torch.load_model()."""

    def ours() -> tuple[set[str], list[str]]:
        return _ours.load_model(model, filename, strict, device_of("pt", device), backend=backend)

    return _errors.run("torch.load_model", ours, _errors.HEADER, model, filename, strict, device, backend=backend)


def __getattr__(name: str) -> Any:
    found = None if name.startswith("__") else _aside.original("safetensors.torch", name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
