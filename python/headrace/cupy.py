"""CuPy: load_file() and load() in the manner of safetensors.numpy, into GPU memory."""

from __future__ import annotations

from typing import Any

import cupy as _cupy

from . import _api, _files
from . import numpy as _ours


def load_file(filename: _files.Filename, device: Any = None) -> dict[str, _cupy.ndarray]:
    """Loads a safetensors file: {name: array}, imported by DLPack. `device` is as for headrace.load(); None: CuPy's
    current one.

    BF16 needs CuPy 14 and the package ml_dtypes. CuPy has no F8, F6 and F4: framework=None gives headrace.Tensor
    objects, and cupy.from_dlpack(tensor.raw()) their bytes as uint8.

    Raises FileNotFound (a FileNotFoundError), the kinds of headrace.errors for bad files, Unsupported when CuPy has no
    such dtype, DeviceUnavailable.
    """
    return _api.load(filename, framework="cupy", device=device)


def load(data: bytes) -> dict[str, _cupy.ndarray]:
    """Loads a safetensors file that is given as bytes, onto the current device. Errors as load_file()."""
    return {name: _cupy.asarray(array) for name, array in _ours.load(data).items()}
