"""PyTorch: load_file(), load(), save_file(), save(), save_model() and load_model() with the behaviour of
safetensors.torch; load_into_module() for any torch.nn.Module; warm_up() for its allocator on GPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Union

import torch as _torch

from . import _api, _devices, _dtypes, _files, _hub, _into, _into_module, _options, _request, _save, _shared, _warm_up
from . import errors
from ._into_module import ModuleReport as ModuleReport

Metadata = Union[Mapping[str, str], None]


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


def save_file(
    tensors: Mapping[str, _torch.Tensor],
    filename: _files.Filename,
    metadata: Metadata = None,
    *,
    align: Union[int, None] = None,
    shard_size: Union[int, str, None] = None,
    sync: bool = True,
) -> None:
    """Writes tensors into a safetensors file, from GPUs without a copy of them in host memory. F4 tensors are
    float4_e2m1fn_x2, whose last dimension the format counts twice.

    Raises ValueError for what is no strided, contiguous tensor, RuntimeError for tensors that share memory, for which
    there is save_model(); else as headrace.save_file().
    """
    _check(tensors)
    _save.save_file(tensors, filename, metadata, align=align, shard_size=shard_size, sync=sync)


def save(tensors: Mapping[str, _torch.Tensor], metadata: Metadata = None) -> bytes:
    """The bytes that save_file() would write."""
    _check(tensors)
    return _save.save(tensors, metadata)


def _check(tensors: Mapping[str, _torch.Tensor]) -> None:
    if not isinstance(tensors, Mapping):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, _torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")


def save_model(
    model: _torch.nn.Module,
    filename: _files.Filename,
    metadata: Metadata = None,
    force_contiguous: bool = True,
    *,
    sync: bool = True,
) -> None:
    """Writes a model's state; of tensors that share memory one is written, and the metadata has {name of each other:
    name of that one}, unless it has such a key. With `force_contiguous` others are copied to be contiguous.

    Raises RuntimeError when none of the tensors that share memory covers all of it; else as save_file().
    """
    _save_model(model, filename, metadata, force_contiguous, functools.partial(save_file, sync=sync))


def _save_model(
    model: _torch.nn.Module,
    filename: _files.Filename,
    metadata: Metadata,
    force_contiguous: bool,
    write: Callable[[dict[str, _torch.Tensor], _files.Filename, Metadata], None],
) -> None:
    state = model.state_dict()
    kept = dict(metadata) if metadata is not None else {}
    for name, others in _shared.duplicates(_torch, state).items():
        for other in others:
            kept.setdefault(other, name)
            del state[other]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        write(state, filename, kept if metadata is not None or kept else None)
    except ValueError as error:
        if force_contiguous or isinstance(error, errors.HeadraceError):
            raise
        hint = " Or use save_model(..., force_contiguous=True), read the docs for potential caveats."
        raise ValueError(str(error) + hint) from None


def load_model(
    model: _torch.nn.Module,
    filename: _files.Filename,
    strict: bool = True,
    device: Union[str, int] = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Loads a file that save_model() wrote into a model. Returns the names that the file lacks and those that the model
    lacks; with `strict` there must be none, else it is a RuntimeError. Errors of reading as load_file()."""
    state = load_file(filename, device, backend=backend)
    dropped = _shared.duplicates(_torch, model.state_dict(), state)
    result = model.load_state_dict(state, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for other in (name for others in dropped.values() for name in others):
        if other in missing:
            missing.remove(other)
        else:
            unexpected.append(other)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                listed = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {listed}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


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
    are, in their dtype. Of tied ones the checkpoint needs one of the names; of several the last one counts, as in
    load_state_dict(). Names, shapes, options and the memory that is filled are checked first.

    Args:
        module: its parameters may be on meta (`with torch.device("meta"): module = ...`) or on any device.
        source: what headrace.open() takes.
        device_map: where what is on meta goes: a device, or a map as headrace.load() takes it: {name, pattern or
            module: device}, "" for the rest; None: "cpu".
        dtype: of what is on meta: None: its own; "auto": as stored; or a dtype, which floating ones are cast to.
        strict: missing and unexpected names are an error.
        revision: branch, tag or commit of a hub id.
        window_bytes: most bytes that are read ahead of their use; None: HEADRACE_WINDOW_BYTES, else 1 GiB.
        loader: a Loader of one's own instead of the process's.

    Returns what was replaced, filled, missing, unexpected, and is still on meta. Raises TensorNotFound (strict),
    InvalidArgument for another shape or memory that is not there, and what open() and load() raise; an error of
    reading leaves some tensors new and some old.
    """
    with _api.open(source, revision=revision) as checkpoint:
        return _into_module.load(module, checkpoint, device_map, dtype, strict, window_bytes, loader)


def warm_up(
    source: Union[_hub.Source, int],
    device: Any = None,
    *,
    names: _request.Names = None,
    revision: Union[str, None] = None,
    device_map: Union[Mapping[str, Any], None] = None,
) -> int:
    """Lets PyTorch's allocator take what a load needs in one piece, into its cache, as Transformers does for a model.

    Args:
        source: what headrace.open() takes, or a number of bytes.
        device: as for load(); None: the first GPU.
        names: of the tensors that will be loaded; None: all.
        device_map: as for load(); for a source that is a checkpoint.

    Returns the bytes that were taken: none when the cache holds enough, never the last free memory, 0 without CUDA.
    Raises what open() raises.
    """
    if not _torch.cuda.is_available():
        return 0
    if device is None and device_map is None:
        device = "cuda"
    place = None if device is None else _devices.name_of(device)
    if isinstance(source, int):
        if device_map is not None:
            raise errors.make("InvalidArgument", "device_map= wants a checkpoint, not a number of bytes")
        return 0 if place in ("cpu", None) else _warm_up.take(str(place), [source])
    with _api.open(source, revision=revision) as checkpoint:
        core = checkpoint._core
        return _warm_up.take_all(core, _request.make(core, names, device=place, device_map=device_map))


def _tensor(data: bytes, name: str, dtype: str, shape: Any, file_index: int, offset: int, nbytes: int) -> _torch.Tensor:
    kind = _dtypes.torch_dtype(_torch, dtype)
    if kind is None:
        message = f"tensor '{name}': torch {_torch.__version__} has no dtype for {dtype}; {_dtypes.RAW}"
        raise errors.make("Unsupported", message, tensor=name)
    packed = _into.packed_shape(name, dtype, shape)
    if nbytes == 0:
        return _torch.empty(packed, dtype=kind, device="cpu")
    own = bytearray(memoryview(data)[offset : offset + nbytes])
    return _torch.frombuffer(own, dtype=_torch.uint8).view(kind).reshape(packed)
