"""PyTorch: load_file() and load() with the behaviour of safetensors.torch; load_into_module() for any torch.nn.Module;
warm_up() for its allocator on GPUs."""

from __future__ import annotations

from typing import Any, Union

import torch as _torch

from . import _api, _devices, _dtypes, _files, _hub, _into_module, _options, _request, _warm_up, errors
from ._into_module import ModuleReport as ModuleReport


def load_file(
    filename: _files.Filename,
    device: Union[str, int, _torch.device] = "cpu",
    *,
    backend: str = "mmap",
    eager: bool = False,
) -> dict[str, _torch.Tensor]:
    """Loads a safetensors file: {name: tensor}.

    In host memory tensors are views of a private, writable mapping of the file, read when touched; with `eager=True`
    (or backend="pread"), and on a GPU, the engine reads them into memory of their own: torch.empty. F4
    tensors are float4_e2m1fn_x2, whose last dimension is half of the format's.

    Raises FileNotFound (a FileNotFoundError), the kinds of headrace.errors for bad files, Unsupported when torch has
    no such dtype, DeviceUnavailable for a device that is not there.
    """
    return _files.load_file(filename, "pt", device, backend, eager)


def load(data: bytes) -> dict[str, _torch.Tensor]:
    """Loads a safetensors file that is given as bytes. Every tensor has memory of its own. Errors as load_file()."""
    core = _files.open_bytes(data)
    return {name: _tensor(data, *core.info(index)) for index, name in enumerate(core.names())}


def load_into_module(
    module: _torch.nn.Module,
    source: _hub.Source,
    *,
    device_map: Any = None,
    dtype: Any = None,
    strict: bool = True,
    revision: Union[str, None] = None,
    window_bytes: Union[int, None] = None,
    loader: Union[_options.Loader, None] = None,
) -> ModuleReport:
    """Loads a checkpoint into a module, whose names must be the checkpoint's.

    Parameters and persistent buffers on meta are replaced, wherever they are tied to; others are filled where they
    are, in their dtype. Of tied ones the checkpoint needs one of the names. Names and shapes are checked first.

    Args:
        module: its parameters may be on meta (`with torch.device("meta"): module = ...`) or on any device.
        source: what headrace.open() takes.
        device_map: where what is on meta goes: a device, or {prefix of names: device}, of which the longest prefix
            wins and "" is the rest; None: "cpu".
        dtype: of what is on meta: None: its own; "auto": as stored; or a dtype, which floating ones are cast to.
        strict: missing and unexpected names are an error.
        revision: branch, tag or commit of a hub id.
        window_bytes: most bytes that are read ahead of their use; None: HEADRACE_WINDOW_BYTES, else 1 GiB.
        loader: a Loader of one's own instead of the process's.

    Returns what was replaced, filled, missing, unexpected, and is still on meta. Raises TensorNotFound (strict),
    InvalidArgument for another shape, and what open() and load() raise; an error of reading leaves some tensors new
    and some old.
    """
    with _api.open(source, revision=revision) as checkpoint:
        return _into_module.load(module, checkpoint, device_map, dtype, strict, window_bytes, loader)


def warm_up(
    source: Union[_hub.Source, int],
    device: Any = "cuda",
    *,
    names: _request.Names = None,
    revision: Union[str, None] = None,
) -> int:
    """Lets PyTorch's allocator take what a load needs in one piece, into its cache, as Transformers does for a model.

    Args:
        source: what headrace.open() takes, or a number of bytes.
        device: as for load().
        names: of the tensors that will be loaded; None: all.

    Returns the bytes that were taken: none when the cache holds enough, never the last free memory, 0 without CUDA.
    Raises what open() raises.
    """
    if not _torch.cuda.is_available() or (place := _devices.name_of(device)) == "cpu":
        return 0
    if isinstance(source, int):
        return _warm_up.take(place, [source])
    with _api.open(source, revision=revision) as checkpoint:
        return _warm_up.take(place, _warm_up.sizes(checkpoint._core, _request.make(checkpoint._core, names)))


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
