"""PyTorch: load_file() and load() with the behaviour of safetensors.torch."""

from __future__ import annotations

from typing import Any, Union

import torch as _torch

from . import _dtypes, _files, _request, errors


def load_file(
    filename: _files.Filename, device: Union[str, int] = "cpu", *, backend: str = "mmap", eager: bool = False
) -> dict[str, _torch.Tensor]:
    """Loads a safetensors file: {name: tensor}.

    Tensors are views of a private, writable mapping of the file, read when touched; with `eager=True` (or
    backend="pread") the engine reads them into memory of their own. F4 tensors are float4_e2m1fn_x2, whose last
    dimension is half of the format's.

    Raises FileNotFound (a FileNotFoundError), the kinds of headrace.errors for bad files, Unsupported when torch has
    no such dtype, DeviceUnavailable for devices other than "cpu".
    """
    return _files.load_file(filename, "pt", device, backend, eager)


def load(data: bytes) -> dict[str, _torch.Tensor]:
    """Loads a safetensors file that is given as bytes. Every tensor has memory of its own. Errors as load_file()."""
    core = _files.open_bytes(data)
    return {name: _tensor(data, *core.info(index)) for index, name in enumerate(core.names())}


def _tensor(data: bytes, name: str, dtype: str, shape: Any, file_index: int, offset: int, nbytes: int) -> _torch.Tensor:
    kind = _dtypes.torch_dtype(_torch, dtype)
    if kind is None:
        message = f"tensor '{name}': torch {_torch.__version__} has no dtype for {dtype}; {_dtypes.RAW}"
        raise errors.make("Unsupported", message, tensor=name)
    packed = _request.packed_shape(name, dtype, shape)
    if nbytes == 0:
        return _torch.empty(packed, dtype=kind, device="cpu")
    own = bytearray(memoryview(data)[offset : offset + nbytes])
    return _torch.frombuffer(own, dtype=_torch.uint8).view(kind).reshape(packed)
