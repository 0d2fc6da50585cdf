"""JAX: load_file() and load() with the behaviour of safetensors.flax, but that 64-bit tensors are refused while
jax_enable_x64 is off, where they would lose half of their bits."""

from __future__ import annotations

import jax as _jax
import jax.numpy as _jnp

from . import _api, _files
from . import numpy as _ours


def load_file(filename: _files.Filename) -> dict[str, _jax.Array]:
    """Loads a safetensors file: {name: array}, in host memory, imported by DLPack.

    Raises FileNotFound (a FileNotFoundError), the kinds of headrace.errors for bad files, Unsupported when jax has no
    such dtype.
    """
    return _api.load(filename, framework="jax")


def load(data: bytes) -> dict[str, _jax.Array]:
    """Loads a safetensors file that is given as bytes. Errors as load_file()."""
    return {name: _jnp.asarray(array) for name, array in _ours.load(data).items()}
