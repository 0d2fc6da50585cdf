"""JAX: load_file(), load(), save_file() and save() with the behaviour of safetensors.flax, but that 64-bit tensors are
refused while jax_enable_x64 is off, where they would lose half of their bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

import jax as _jax
import jax.numpy as _jnp

from . import _api, _files, _save
from . import numpy as _ours


def load_file(filename: _files.Filename, device: Any = "cpu") -> dict[str, _jax.Array]:
    """Loads a safetensors file: {name: array}, imported by DLPack. `device` is as for headrace.load().

    Raises FileNotFound (a FileNotFoundError), the kinds of headrace.errors for bad files, Unsupported when jax has no
    such dtype, DeviceUnavailable.
    """
    return _api.load(filename, framework="jax", device=device)


def load(data: bytes) -> dict[str, _jax.Array]:
    """Loads a safetensors file that is given as bytes. Errors as load_file()."""
    return {name: _jnp.asarray(array) for name, array in _ours.load(data).items()}


def save_file(
    tensors: Mapping[str, _jax.Array],
    filename: _files.Filename,
    metadata: Union[Mapping[str, str], None] = None,
    *,
    align: Union[int, None] = None,
    shard_size: Union[int, str, None] = None,
    sync: bool = True,
) -> None:
    """Writes arrays into a safetensors file; those that are spread over devices are gathered in host memory before. See
    headrace.save_file(), also for the errors."""
    _save.save_file(tensors, filename, metadata, align=align, shard_size=shard_size, sync=sync)


def save(tensors: Mapping[str, _jax.Array], metadata: Union[Mapping[str, str], None] = None) -> bytes:
    """The bytes that save_file() would write."""
    return _save.save(tensors, metadata)
