"""A checkpoint into a torch.nn.Module: parameters and buffers on meta are replaced by what is read, others are filled
where they are. All is checked before anything is changed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from . import _checks, _devices, _dtypes, _into, _overlap, _places, errors
from ._checkpoint import Checkpoint, TensorInfo
from ._options import Loader, checked_loader, number_option

SHOWN_COUNT = 3  # names in a message
WINDOW_BYTES = 1 << 30


@dataclass(frozen=True)
class ModuleReport:
    """What load_into_module() did. Names are those of state_dict(); of tied ones all that the checkpoint has, or the
    first where it has none."""

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

    def stored(self, checkpoint: Checkpoint) -> list[str]:
        """Those of its names that the checkpoint has."""
        return [name for name in self.names if name in checkpoint]


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
    _check_options(torch, module, device_map, dtype)
    strict = _checks.flag("strict", strict)
    window = number_option("window_bytes", window_bytes) or WINDOW_BYTES
    loader = checked_loader(loader)
    targets = list(_targets(module))
    known = {name for target in targets for name in target.names}
    missing = [target.names[0] for target in targets if not target.stored(checkpoint)]
    unexpected = [name for name in checkpoint if name not in known]
    if strict:
        _check_names(checkpoint, missing, unexpected)
    found = [target for target in targets if target.stored(checkpoint)]
    for target in found:
        _check(torch, checkpoint, target)
    # of tied ones that are stored more than once the last one counts, as in load_state_dict()
    live = {target.stored(checkpoint)[-1]: target.tensor for target in found if not target.tensor.is_meta}
    meta = {target.stored(checkpoint)[-1]: target for target in found if target.tensor.is_meta}
    firsts = [target.stored(checkpoint)[0] for target in meta.values()]
    devices = dict(zip(meta, _devices_of(checkpoint, device_map, firsts)))
    with torch.no_grad():
        _fill(checkpoint, live, window, loader)
        torch.autograd.graph.increment_version(list(live.values()))
        _replace(torch, checkpoint, meta, devices, dtype, window, loader)
    replaced = [name for target in meta.values() for name in target.stored(checkpoint)]
    filled = [name for target in found if not target.tensor.is_meta for name in target.stored(checkpoint)]
    return ModuleReport(replaced, filled, missing, unexpected, _on_meta(module))


def _check_options(torch: Any, module: Any, device_map: Any, dtype: Any) -> None:
    """Refuses wrong options also where nothing would need them."""
    if not isinstance(module, torch.nn.Module):
        raise errors.make("InvalidArgument", f"what to load into is a torch.nn.Module, not a {type(module).__name__}")
    if isinstance(device_map, Mapping):
        for device in _places.check_map(device_map).values():
            _devices.name_of(device)
    elif device_map is not None:
        _devices.name_of(device_map)
    if dtype is not None and not _is_auto(dtype) and _dtypes.name_of(dtype) is None:
        raise errors.make("InvalidArgument", f"dtype= is a dtype, 'auto' or None, not {dtype!r}")


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
            name = f"{prefix}.{attribute}" if prefix else attribute
            if hasattr(tensor, "materialize"):  # as those of torch.nn.LazyLinear
                message = f"'{name}' in the module has no shape yet; run the module once, or materialize() it"
                raise errors.make("Unsupported", message, tensor=name)
            target = by_id.setdefault(id(tensor), _Target(tensor))
            target.names.append(name)
            target.places.append((child, attribute))
    yield from by_id.values()


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


def _check(torch: Any, checkpoint: Checkpoint, target: _Target) -> None:
    """Refuses other shapes, also of a name that a later one of a tie overrules, and what has no memory."""
    names = target.stored(checkpoint)
    for name in names:
        _check_shape(checkpoint[name], target)
    if target.tensor.is_meta:
        return
    try:
        _into.check_memory(torch, target.tensor)
    except errors.HeadraceError as error:
        raise errors.make(error.kind, f"'{names[0]}' in the module: {error}", tensor=names[0]) from None


def _check_shape(info: TensorInfo, target: _Target) -> None:
    stored, wanted = _into.packed_shape(info.name, info.dtype, info.shape), tuple(target.tensor.shape)
    if stored != wanted:
        message = f"tensor '{info.name}' in {info.file} has shape {stored}, and in the module {wanted}"
        raise errors.make("InvalidArgument", message, tensor=info.name, file=info.file)


def _devices_of(checkpoint: Checkpoint, device_map: Any, names: list[str]) -> list[str]:
    """Where what is on meta goes: to one device, or as a map says."""
    if not isinstance(device_map, Mapping):
        return ["cpu" if device_map is None else _devices.name_of(device_map)] * len(names)
    core = checkpoint._core
    devices = _places.resolve(core, [core.find(name) for name in names], device_map, "")
    for name, device in zip(names, devices):
        if not device:
            message = f"device_map= names no device for '{name}'; the key '' is for the rest"
            raise errors.make("InvalidArgument", message, tensor=name)
    return devices


# ----------------------------------------------------------------------------------------------------- loading


def _fill(checkpoint: Checkpoint, live: dict[str, Any], window: int, loader: Loader) -> None:
    """Into the memory that is there, in one load. What shares memory comes afterwards, one by one, so that the last one
    has its way."""
    areas = [_overlap.of_torch(name, tensor) for name, tensor in live.items()]
    shared = {name for pair in _overlap.pairs(areas) for name in pair}
    _fill_together(checkpoint, {name: tensor for name, tensor in live.items() if name not in shared}, window, loader)
    for name in (name for name in live if name in shared):
        _fill_together(checkpoint, {name: live[name]}, window, loader)


def _fill_together(checkpoint: Checkpoint, here: dict[str, Any], window: int, loader: Loader) -> None:
    """What a load does not cast, or not see, PyTorch does."""
    direct = {name: tensor.detach() for name, tensor in here.items()
              if _dtypes.casts(checkpoint[name].dtype, str(_dtypes.name_of(tensor.dtype)))
              and not tensor.is_conj() and not tensor.is_neg()}
    if direct:
        checkpoint.load(into=direct, loader=loader)
    others = {name: str(tensor.device) for name, tensor in here.items() if name not in direct}
    for name, tensor in _stream(checkpoint, others, {}, window, loader):
        here[name].copy_(tensor)


def _stream(
    checkpoint: Checkpoint,
    devices: dict[str, str],
    dtypes: dict[str, Any],
    window: int,
    loader: Loader,
) -> Iterator[tuple[str, Any]]:
    """Tensors by name, each to its device."""
    if not devices:
        return iter(())
    return checkpoint.stream(list(devices), framework="torch", device_map=devices, dtype=dtypes, window_bytes=window,
                             loader=loader)


def _replace(
    torch: Any,
    checkpoint: Checkpoint,
    meta: dict[str, _Target],
    devices: dict[str, str],
    dtype: Any,
    window: int,
    loader: Loader,
) -> None:
    wanted = {name: _dtype_for(target.tensor, checkpoint[name].dtype, dtype) for name, target in meta.items()}
    cast = {name: wanted[name] for name in meta if _dtypes.casts(checkpoint[name].dtype, wanted[name])}
    for name, tensor in _stream(checkpoint, devices, cast, window, loader):
        _put(torch, meta[name], tensor.to(_dtypes.torch_dtype(torch, wanted[name])))


def _is_auto(dtype: Any) -> bool:
    return isinstance(dtype, str) and dtype == "auto"


def _dtype_for(old: Any, stored: str, dtype: Any) -> str:
    """The format's name of what a tensor on meta becomes."""
    if _is_auto(dtype):
        return stored
    if dtype is None or stored not in _dtypes.FLOATS:
        return str(_dtypes.name_of(old.dtype))
    return str(_dtypes.name_of(dtype))


def _put(torch: Any, target: _Target, tensor: Any) -> None:
    old = target.tensor
    if isinstance(old, torch.nn.Parameter):
        can_learn = tensor.is_floating_point() or tensor.is_complex()  # integers of quantized weights cannot
        tensor = torch.nn.Parameter(tensor, requires_grad=old.requires_grad and can_learn)
        tensor.__dict__.update(old.__dict__)
    for module, attribute in target.places:
        registered = module._parameters if attribute in module._parameters else module._buffers
        registered[attribute] = tensor
