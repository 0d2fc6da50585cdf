"""numpy: load_file(), load(), save_file() and save() with the behaviour of safetensors.numpy; BF16 and F8 through
ml_dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import numpy as _numpy
import numpy.typing as _typing

from . import _dtypes, _files, _save, errors

Array = _typing.NDArray[_numpy.generic]


def load_file(filename: _files.Filename, *, eager: bool = True) -> dict[str, Array]:
    """Loads a safetensors file: {name: array}. Every array has memory of its own.

    Raises FileNotFound (a FileNotFoundError), the kinds of headrace.errors for bad files, Unsupported when numpy has
    no such dtype (BF16 and F8 need the package ml_dtypes).
    """
    return _files.load_file(filename, "np", "cpu", "mmap", eager)


def load(data: bytes) -> dict[str, Array]:
    """Loads a safetensors file that is given as bytes. Every array has memory of its own. Errors as load_file()."""
    core = _files.open_bytes(data)
    arrays: dict[str, Array] = {}
    for index, name in enumerate(core.names()):
        _, dtype, shape, _, offset, _ = core.info(index)
        kind = _dtypes.numpy_dtype(_numpy, dtype)
        if kind is None:
            raise errors.make("Unsupported", f"tensor '{name}': {_dtypes.numpy_reason(dtype)}", tensor=name)
        arrays[name] = _numpy.ndarray(shape, kind, data, offset).copy()
    return arrays


def save_file(
    tensor_dict: Mapping[str, Array],
    filename: _files.Filename,
    metadata: Union[Mapping[str, str], None] = None,
    *,
    align: Union[int, None] = None,
    shard_size: Union[int, str, None] = None,
    sync: bool = True,
) -> None:
    """Writes arrays into a safetensors file. One that is not contiguous is written in the order of its elements. See
    headrace.save_file(), also for the errors."""
    _save.save_file(tensor_dict, filename, metadata, align=align, shard_size=shard_size, sync=sync)


def save(tensor_dict: Mapping[str, Array], metadata: Union[Mapping[str, str], None] = None) -> bytes:
    """The bytes that save_file() would write."""
    return _save.save(tensor_dict, metadata)
