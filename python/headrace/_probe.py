"""probe(): the ceilings of this machine; storage(): how a path would be read; and what share of the link's a load
reached, where that was measured: here, or by `headrace probe`, which keeps its results in a file."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from . import _checks, _core, _devices, _hub


@dataclass(frozen=True)
class Limits:
    """What a machine can do, in bytes a second, the best of a few trials; 0: not measured, the details say why."""

    time: int  #: seconds since 1970
    device: dict[str, Any]  #: "device" ("cuda:0"), "name", "uuid", "pci", "memory_bytes", ...
    core_count: int
    page_cache_threads: int  #: with which `page_cache` was reached
    memory_copy: int  #: one thread, host to host
    page_cache: int  #: resident pages of the file into touched host memory
    page_cache_fresh: int  #: into memory that is touched by it for the first time
    storage: int  #: O_DIRECT reads of the file
    to_device: dict[int, int]  #: {bytes of a copy: bytes a second}: pinned memory to the device
    from_device: int
    page_cache_to_device: int  #: page cache, pinned memory and device together
    pin: int  #: touched memory registered with the device
    page_cache_detail: str
    storage_detail: str
    device_detail: str


def storage(path: _hub.PathLike) -> str:
    """How a load of `path` (a file, a folder, an index) would read what the page cache does not hold: "direct, else
    dontcache: ext4; ...", with what the filesystem refuses and wants. One block is read. Raises as open() does."""
    return _core.storage(os.fsencode(_hub.path_of(path)))


SECONDS_MAX = 3600
_measured: dict[str, tuple[int, int]] = {}  # uuid: time, bytes a second over the link


def probe(
    path: _hub.PathLike | None = None, device: Any = "auto", *, threads: int = 0, seconds: float = 5.0
) -> Limits:
    """Measures the ceilings of this machine. It takes about `seconds` and uses the processor and the link fully.

    Args:
        path: a file to read, best one of some GiB, or a checkpoint, as for open(), of which the largest file is read;
            None: neither storage nor page cache is measured.
        device: as for load(); "auto": the first GPU if there is one, else "cpu".
        threads: most threads; 0: the cores this process may use, at most 16.
        seconds: over 0, at most 3600.

    Raises FileNotFound, what open() raises for a folder, DeviceUnavailable, InvalidArgument, OutOfMemory. What cannot
    be measured is 0 and has its reason.
    """
    budget_ns = max(1, int(_checks.seconds("seconds", seconds, SECONDS_MAX) * 1e9))
    thread_count = _checks.number("threads=", threads, 0xFFFFFFFF)
    name = device if isinstance(device, str) else _devices.name_of(device)
    file = None if path is None else os.fsencode(_file_of(path))
    limits = Limits(**_core.probe(name, file, thread_count, budget_ns))
    if limits.device["uuid"]:
        _measured[limits.device["uuid"]] = limits.time, max(limits.to_device.values())
    return limits


def _file_of(path: _hub.PathLike) -> str:
    """The file to read: of a folder, an index or a model of the hub cache the largest."""
    found = _hub.resolve_one(path)
    if not os.path.isdir(found) and not found.endswith(".json"):
        return found
    files = _core.open([os.fsencode(found)], 0, 0, 0).files()
    return max(files, key=lambda row: row[1])[0]


def _kept(uuid: str) -> tuple[int, int] | None:
    """What `headrace probe` kept of this host's device."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        with open(os.path.join(folder, "headrace", "limits.json"), encoding="utf-8") as file:
            entries = json.load(file)["limits"]
        found = [
            (int(entry["time"]), max(entry["to_device"]))
            for entry in entries
            if entry["device_uuid"] == uuid and entry["host"] == socket.gethostname()
        ]
        return max(found, default=None)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never measured, or nothing that we know


def share(uuid: str, bytes_ready: int, total_ns: int) -> str:
    """", 93 % of the link's 55.1 GB/s (probed 2030-01-31)", or "" when that is not known."""
    found = (_measured.get(uuid) or _kept(uuid)) if uuid else None
    if found is None or found[1] <= 0 or total_ns == 0:
        return ""
    when, ceiling = time.strftime("%Y-%m-%d", time.localtime(found[0])), found[1] / 1e9
    return f", {100 * bytes_ready / total_ns / ceiling:.0f} % of the link's {ceiling:.1f} GB/s (probed {when})"
