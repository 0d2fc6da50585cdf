"""Options of loads, from arguments and from HEADRACE_* variables, and the loader that all loads of a process share.

An argument wins over the environment, and both over the library's default. The C library reads no environment.
After a fork the child has a loader of its own, made when first needed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from . import _checks, _core, _devices, _places, _read_ahead, errors

ROUTES = ("auto", "pread", "uring", "mmap", "gds")


class Loader:
    """What loads share: reader threads, chunk size, route, and pinned memory for the GPUs that they went to. Pass it as
    `loader=` to keep loads apart from others.

    Args:
        device: where loads go that name no device, as for start(); None: "cpu".
        threads: reader threads of each load; None: the cores this process may use, at most 16, and with one GPU 12.
        route: "auto", "pread", "uring" (io_uring), "mmap" (private mappings, read when touched) or "gds"
            (GPUDirect Storage, to GPUs).
        chunk_bytes: the grid of reads, 64 KiB to 1 GiB (with a GPU: 64 MiB); None: 4 MiB or less.
        queue_depth: io_uring: reads in flight per thread, at most 256; None: 8.
        arena_bytes: largest allocation that holds several tensors (framework=None); None: 256 MiB, with GPUs 512.
        staging_bytes: most pinned memory for a GPU, kept between loads; None: what is fastest, at most 256 MiB.
        lanes: streams for copies to a GPU, at most 16; None: what its copy engines want.
        keep_cache: leave what storage delivers in the page cache, for the next who reads it.
        numa: bind reader threads and pinned memory to the GPU's NUMA node where that helps; False: bind nothing.

    All but `device` and `numa` may also be given by the environment: HEADRACE_THREADS, HEADRACE_ROUTE,
    HEADRACE_CHUNK_BYTES, HEADRACE_QUEUE_DEPTH, HEADRACE_ARENA_BYTES, HEADRACE_STAGING_BYTES, HEADRACE_LANES,
    HEADRACE_KEEP_CACHE (0 or 1). Any thread may use a loader. A loader made before a fork raises Forked in the child.

    Raises InvalidArgument for a value out of range, naming it, and DeviceUnavailable.
    """

    def __init__(
        self,
        *,
        device: Any = None,
        threads: int | None = None,
        route: str | None = None,
        chunk_bytes: int | None = None,
        queue_depth: int | None = None,
        arena_bytes: int | None = None,
        staging_bytes: int | None = None,
        lanes: int | None = None,
        keep_cache: bool | None = None,
        numa: bool = True,
    ) -> None:
        name = route if route is not None else os.environ.get("HEADRACE_ROUTE") or "auto"
        number = _core.route_find(name) if isinstance(name, str) else -1
        if number < 0:
            raise errors.make("InvalidArgument", f"route {name!r} is none of {', '.join(ROUTES)}")
        self._reading = (
            number,
            number_option("threads", threads, 0xFFFFFFFF),
            number_option("chunk_bytes", chunk_bytes),
            number_option("queue_depth", queue_depth, 0xFFFFFFFF),
            number_option("arena_bytes", arena_bytes),
        )
        self._sending = (
            number_option("staging_bytes", staging_bytes),
            number_option("lanes", lanes, 0xFFFFFFFF),
            int(not _checks.flag("numa", numa)),
            number_option("keep_cache", None if keep_cache is None else int(_checks.flag("keep_cache", keep_cache)), 1),
        )
        self.device = None if device is None else _devices.name_of(device)
        self._cores: dict[_places.Devices, _core.Loader] = {}
        self._core_of((self.device or "cpu",))  # refuse wrong options now, not at the first load

    def _core_of(self, devices: _places.Devices) -> _core.Loader:
        """The library's loader for devices in their order, made on first use."""
        core = self._cores.get(devices)
        if core is None:
            core = self._cores.setdefault(devices, _core.Loader(*self._reading, devices, *self._sending))
        return core

    def _core_for(self, checkpoint: _core.Checkpoint, devices: _places.Devices) -> _core.Loader:
        """The same for a load of a whole checkpoint, whose reading begins while a GPU's driver starts."""
        if devices not in self._cores and devices != ("cpu",):
            _read_ahead.start(checkpoint, _read_ahead.WHILE_STARTING_BYTES)
        return self._core_of(devices)

    def trim(self) -> int:
        """Gives back the pinned memory that no load uses now, and returns its bytes; it grows again when needed."""
        return sum(core.trim() for core in list(self._cores.values()))


def number_option(name: str, value: int | None, most: int = 2**64 - 1) -> int:
    """`value`, else HEADRACE_<NAME>, else 0, which is the library's default."""
    if value is not None:
        return _checks.number(f"{name}=", value, most)
    variable = f"HEADRACE_{name.upper()}"
    text = os.environ.get(variable) or "0"
    try:
        number = int(text)
    except ValueError:
        raise errors.make("InvalidArgument", f"{variable}: {text!r} is not a whole number") from None
    return _checks.number(variable, number, most)


def checked_loader(loader: Any) -> Loader:
    """The caller's loader, else the process's. Raises InvalidArgument."""
    if loader is None:
        return shared_loader()
    if not isinstance(loader, Loader):
        raise errors.make("InvalidArgument", f"loader= is a headrace.Loader or None, not {loader!r}")
    return loader


_lock = threading.Lock()
_shared: Loader | None = None
_releases: list[Callable[[], None]] = []  # of other modules, which this one does not know


def shared_loader() -> Loader:
    """The process's loader, made on first use."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Loader()
        return _shared


def release() -> None:
    """Gives back what is kept between loads: for GPUs pinned memory and streams, and links of process groups. Running
    loads keep what they use until they end; the next load makes it anew."""
    global _shared
    with _lock:
        loader, _shared = _shared, None
    if loader is not None:
        loader.trim()
    for call in _releases:
        call()


def _after_fork() -> None:
    global _lock, _shared
    _core.after_fork()
    _lock, _shared = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
