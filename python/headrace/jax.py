"""JAX: load_file() and load() with the behaviour of safetensors.flax, but that 64-bit tensors are refused while
jax_enable_x64 is off, where they would lose half of their bits."""

from __future__ import annotations

from typing import Any

import jax as _jax
import jax.numpy as _jnp

from . import _api, _files
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
