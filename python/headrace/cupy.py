"""CuPy: load_file(), load(), save_file() and save() in the manner of safetensors.numpy, into and from GPU memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

import cupy as _cupy

from . import _api, _files, _save
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


def save_file(
    tensor_dict: Mapping[str, _cupy.ndarray],
    filename: _files.Filename,
    metadata: Union[Mapping[str, str], None] = None,
    *,
    align: Union[int, None] = None,
    shard_size: Union[int, str, None] = None,
    sync: bool = True,
) -> None:
    """Writes arrays into a safetensors file, from GPU memory piece by piece; they must be contiguous. See
    headrace.save_file(), also for the errors."""
    _save.save_file(tensor_dict, filename, metadata, align=align, shard_size=shard_size, sync=sync)


def save(tensor_dict: Mapping[str, _cupy.ndarray], metadata: Union[Mapping[str, str], None] = None) -> bytes:
    """The bytes that save_file() would write."""
    return _save.save(tensor_dict, metadata)
