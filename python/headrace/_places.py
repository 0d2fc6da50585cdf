"""Which device each tensor of a load goes to: device maps, as accelerate and Transformers spell them.

A key is a tensor's name, a shell pattern, or a module's name, which covers all that is in it; "" covers everything.
Of several keys an exact name goes first, then patterns in their order, then the longest module. A pattern that matches
nothing is an error; a module need not have tensors, as rotary embeddings, activations and tied heads of real maps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from . import _checks, _core, _devices, errors

logger = logging.getLogger("headrace")

NO_DEVICES = ("disk", "meta")  # which accelerate's maps may have
NAMED_MAX = 3  # of the tensors in an error

Devices = tuple[str, ...]  # resolved names, each once, host memory first


def in_order(devices: Iterable[str]) -> Devices:
    """The distinct ones in the one order that a loader of these devices has."""
    return tuple(sorted(set(devices), key=lambda name: (name != "cpu", len(name), name)))


def check_map(device_map: Any) -> Mapping[str, Any]:
    """Refuses what is no map. Raises InvalidArgument."""
    what = "{name, module or pattern: device}"
    if isinstance(device_map, Mapping):
        return _checks.table("device_map", device_map, what)
    hint = "device= is for one device; which layer goes where, accelerate.infer_auto_device_map finds out"
    raise errors.make("InvalidArgument", f"device_map= is {what}, not {device_map!r}; {hint}")


def resolve(
    core: _core.Checkpoint, indices: list[int] | None, device_map: Mapping[str, Any], default: str | None
) -> list[str]:
    """The device of each position. What no key covers goes to `default`; without one it is an error that names the
    tensors. Raises InvalidArgument, TensorNotFound for a pattern that matches nothing, DeviceUnavailable."""
    device_map = check_map(device_map)
    names, matched = core.names(), _match(core, device_map)
    resolved: dict[str, str] = {}
    places: list[str] = []
    uncovered: list[str] = []
    for index in range(len(names)) if indices is None else indices:
        key = _key_of(names[index], matched.get(index), device_map)
        if key is None:
            uncovered.append(names[index])
            places.append(default or "")
        else:
            if key not in resolved:
                resolved[key] = _device_of(key, device_map[key], names[index])
            places.append(resolved[key])
    if uncovered and default is None:
        raise _uncovered(uncovered)
    unused = [key for key in device_map if key and key not in resolved]
    if unused:
        logger.info("device_map=: %s name no tensor of this load", _listed(unused))
    return places


def _match(core: _core.Checkpoint, device_map: Mapping[str, Any]) -> dict[int, str]:
    """The first pattern that matches a tensor, by its index."""
    matched: dict[int, str] = {}
    for key in device_map:
        if any(character in key for character in "*?[") and core.find(key) < 0:
            found = core.match(key)
            if not found and len(core) > 0 and key != "*":
                raise errors.make("TensorNotFound", f"device_map=: no tensor's name matches '{key}'")
            for index in found:
                matched.setdefault(index, key)
    return matched


def _key_of(name: str, pattern: str | None, device_map: Mapping[str, Any]) -> str | None:
    if name in device_map:
        return name
    if pattern is not None:
        return pattern
    module = name
    while module:
        module = module.rpartition(".")[0]
        if module in device_map:
            return module
    return None


def _device_of(key: str, value: Any, tensor: str) -> str:
    where = f"device_map= puts '{key}' on {value!r}"
    if value in NO_DEVICES:
        message = f"{where}, which is no device: leave tensor '{tensor}' out by names=, or load it to 'cpu'"
        raise errors.make("InvalidArgument", message, tensor=tensor)
    try:
        return _devices.name_of(value)
    except errors.HeadraceError as error:
        raise errors.make(error.kind, f"{where}: {error}", tensor=tensor) from None


def _listed(names: list[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:NAMED_MAX])
    return listed + (f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")


def _uncovered(names: list[str]) -> errors.HeadraceError:
    remedy = "add keys for them ('' covers everything), or give device="
    message = f"no key of device_map= covers {_listed(names)}: {remedy}"
    return errors.make("InvalidArgument", message, tensor=names[0])
