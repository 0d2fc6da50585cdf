"""A checkpoint into a torch.nn.Module: parameters and buffers on meta are replaced by what is read, others are filled
where they are. All is checked before anything is changed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from . import _devices, _dtypes, _into, _places, errors
from ._checkpoint import Checkpoint, TensorInfo
from ._options import Loader, number_option

SHOWN_COUNT = 3  # names in a message
WINDOW_BYTES = 1 << 30


@dataclass(frozen=True)
class ModuleReport:
    """What load_into_module() did. Names are those of state_dict(); of tied ones the first that the checkpoint has."""

    replaced: list[str]  #: were on meta
    filled: list[str]  #: had memory, which has the new values now
    missing: list[str]  #: the checkpoint has them not, under any of their names
    unexpected: list[str]  #: the module has them not
    on_meta: list[str]  #: still are, of all parameters and buffers


@dataclass
class _Target:
    """A parameter or buffer, and all the places in the module that it is tied to."""

    tensor: Any
    names: list[str] = field(default_factory=list)
    places: list[tuple[Any, str]] = field(default_factory=list)  # module, attribute


def load(
    module: Any,
    checkpoint: Checkpoint,
    device_map: Any,
    dtype: Any,
    strict: bool,
    window_bytes: Union[int, None],
    loader: Union[Loader, None],
) -> ModuleReport:
    """See headrace.torch.load_into_module()."""
    torch: Any = importlib.import_module("torch")
    targets = list(_targets(module))
    known = {name for target in targets for name in target.names}
    found = {name: target for target in targets if (name := _first(target.names, checkpoint)) is not None}
    missing = [target.names[0] for target in targets if _first(target.names, checkpoint) is None]
    unexpected = [name for name in checkpoint if name not in known]
    if strict:
        _check_names(checkpoint, missing, unexpected)
    for name, target in found.items():
        _check_shape(checkpoint[name], target)
    live = {name: target.tensor for name, target in found.items() if not target.tensor.is_meta}
    meta = {name: target for name, target in found.items() if target.tensor.is_meta}
    devices = _devices_of(checkpoint, device_map, list(meta))
    with torch.no_grad():
        _fill(checkpoint, live, window_bytes, loader)
        torch.autograd.graph.increment_version(list(live.values()))
        _replace(torch, checkpoint, meta, devices, dtype, window_bytes, loader)
    return ModuleReport(list(meta), list(live), missing, unexpected, _on_meta(module))


# ------------------------------------------------------------------------------------------------ what there is


def _targets(module: Any) -> Iterator[_Target]:
    """Parameters and persistent buffers, each once, in the order of state_dict()."""
    by_id: dict[int, _Target] = {}
    for prefix, child in module.named_modules(remove_duplicate=False):
        skipped = child._non_persistent_buffers_set
        buffers = {name: tensor for name, tensor in child._buffers.items() if name not in skipped}
        for attribute, tensor in {**child._parameters, **buffers}.items():
            if tensor is None:
                continue
            target = by_id.setdefault(id(tensor), _Target(tensor))
            target.names.append(f"{prefix}.{attribute}" if prefix else attribute)
            target.places.append((child, attribute))
    yield from by_id.values()


def _first(names: list[str], checkpoint: Checkpoint) -> Union[str, None]:
    return next((name for name in names if name in checkpoint), None)


def _on_meta(module: Any) -> list[str]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [name for name, tensor in tensors if tensor.is_meta]


def _check_names(checkpoint: Checkpoint, missing: list[str], unexpected: list[str]) -> None:
    problems = [f"{text} {_some(names)}" for text, names in
                (("the checkpoint lacks", missing), ("the module has no", unexpected)) if names]
    if problems:
        message = f"{checkpoint.label}: {'; '.join(problems)}; strict=False loads what both have"
        raise errors.make("TensorNotFound", message, tensor=(missing or unexpected)[0])


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_COUNT} more" if len(names) > SHOWN_COUNT else ""
    return ", ".join(f"'{name}'" for name in names[:SHOWN_COUNT]) + more


def _check_shape(info: TensorInfo, target: _Target) -> None:
    stored, wanted = _into.packed_shape(info.name, info.dtype, info.shape), tuple(target.tensor.shape)
    if stored != wanted:
        message = f"tensor '{info.name}' in {info.file} has shape {stored}, and in the module {wanted}"
        raise errors.make("InvalidArgument", message, tensor=info.name, file=info.file)


def _devices_of(checkpoint: Checkpoint, device_map: Any, names: list[str]) -> dict[str, str]:
    """Where what is on meta goes: to one device, or as a map says."""
    if not isinstance(device_map, Mapping):
        return dict.fromkeys(names, "cpu" if device_map is None else _devices.name_of(device_map))
    core = checkpoint._core
    devices = dict(zip(names, _places.resolve(core, [core.find(name) for name in names], device_map, "")))
    for name in (name for name, device in devices.items() if not device):
        raise errors.make("InvalidArgument", f"device_map= names no device for '{name}'; the key '' is for the rest",
                          tensor=name)
    return devices


# ----------------------------------------------------------------------------------------------------- loading


def _fill(checkpoint: Checkpoint, live: dict[str, Any], window: Union[int, None], loader: Union[Loader, None]) -> None:
    """Into the memory that is there; what a load does not cast, PyTorch does."""
    direct = {name: tensor.detach() for name, tensor in live.items()
              if _dtypes.casts(checkpoint[name].dtype, str(_dtypes.name_of(tensor.dtype)))}
    if direct:
        checkpoint.load(into=direct, loader=loader)
    others = {name: str(tensor.device) for name, tensor in live.items() if name not in direct}
    for name, tensor in _stream(checkpoint, others, {}, window, loader):
        live[name].copy_(tensor)


def _stream(
    checkpoint: Checkpoint,
    devices: dict[str, str],
    dtypes: dict[str, Any],
    window: Union[int, None],
    loader: Union[Loader, None],
) -> Iterator[tuple[str, Any]]:
    """Tensors by name, each to its device."""
    if not devices:
        return iter(())
    most = number_option("window_bytes", window) or WINDOW_BYTES
    return checkpoint.stream(list(devices), framework="torch", device_map=devices, dtype=dtypes, window_bytes=most,
                             loader=loader)


def _replace(
    torch: Any,
    checkpoint: Checkpoint,
    meta: dict[str, _Target],
    devices: dict[str, str],
    dtype: Any,
    window: Union[int, None],
    loader: Union[Loader, None],
) -> None:
    wanted = {name: _dtype_for(target.tensor, checkpoint[name].dtype, dtype) for name, target in meta.items()}
    cast = {name: wanted[name] for name in meta if _dtypes.casts(checkpoint[name].dtype, wanted[name])}
    for name, tensor in _stream(checkpoint, devices, cast, window, loader):
        _put(torch, meta[name], tensor.to(_dtypes.torch_dtype(torch, wanted[name])))


def _dtype_for(old: Any, stored: str, dtype: Any) -> str:
    """The format's name of what a tensor on meta becomes."""
    if dtype == "auto":
        return stored
    if dtype is None or stored not in _dtypes.FLOATS:
        return str(_dtypes.name_of(old.dtype))
    name = _dtypes.name_of(dtype)
    if name is None:
        raise errors.make("InvalidArgument", f"dtype= is a dtype, 'auto' or None, not {dtype!r}")
    return name


def _put(torch: Any, target: _Target, tensor: Any) -> None:
    old = target.tensor
    if isinstance(old, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad=old.requires_grad)
        tensor.__dict__.update(old.__dict__)
    for module, attribute in target.places:
        registered = module._parameters if attribute in module._parameters else module._buffers
        registered[attribute] = tensor
