"""Devices: the names by which they are given, and what of a framework must be the same device.

A resolved name is "cpu" or "cuda:N", where N counts what CUDA_VISIBLE_DEVICES leaves, as in PyTorch and CuPy. Nothing
is asked of a driver before a GPU is named.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _core, errors

_resolved: dict[str, str] = {"cpu": "cpu", "cpu:0": "cpu"}


def name_of(device: Any) -> str:
    """The resolved name of `device`: a name ("cpu", "cuda", "cuda:N", "auto", a PCI address, a UUID), a number N, or a
    torch.device, which without an index is PyTorch's current one. Raises DeviceUnavailable with the reason."""
    text = _text_of(device)
    if text not in _resolved:
        found = str(_core.device_find(text)["device"])
        if text == "auto" and found == "cpu":
            return found  # a GPU may be there later
        _resolved[text] = found
    return _resolved[text]


def _text_of(device: Any) -> str:
    if isinstance(device, str):
        return device
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return f"cuda:{device}"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(device, torch.device):
        if device.type == "cuda" and device.index is None:
            return f"cuda:{torch.cuda.current_device()}"
        return str(device)
    message = f"device= is a name ('cpu', 'cuda:0'), a number or a torch.device, not {device!r}"
    raise errors.make("InvalidArgument", message)


def index_of(name: str) -> int:
    """N of "cuda:N"."""
    return int(name.partition(":")[2])


def check_same(name: str, framework: str, uuid: str) -> None:
    """Refuses to mix devices up, should a framework number them otherwise than the driver that we ask. A part of a GPU
    (MIG) has an id of its own, which frameworks do not all tell."""
    ours = str(_core.device_find(name)["uuid"])
    if ours.startswith("GPU-") and uuid and ours.removeprefix("GPU-").lower() != uuid.removeprefix("GPU-").lower():
        message = f"{name} is {ours} here, but {uuid} in {framework}: CUDA_VISIBLE_DEVICES was changed in between"
        raise errors.make("DeviceUnavailable", message)
