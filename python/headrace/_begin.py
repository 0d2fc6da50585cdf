"""begin(): headers and bytes on their way while the process still imports frameworks and builds its model.

A thread opens the checkpoint, has it read ahead and starts a GPU's driver; the next open() of the same source takes the
table over, unless a file changed in between.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from . import _checks, _core, _devices, _hub, _options, _places, _read_ahead, errors
from ._checkpoint import Checkpoint, open_core

Key = tuple[object, ...]

_lock = threading.Lock()
_begun: dict[Key, Beginning] = {}


class Beginning:
    """A checkpoint on its way; made by begin()."""

    def __init__(
        self,
        source: _hub.Source,
        revision: str | None,
        strict: bool,
        allow_trailing: bool,
        read_ahead_bytes: int | None,
        devices: list[Any],
    ) -> None:
        self._devices = devices
        self._arguments = (source, revision, strict, allow_trailing, 0)
        self._read_ahead_bytes = read_ahead_bytes
        self._result: tuple[_core.Checkpoint, str] | None = None
        self._error: Exception | None = None
        self._identities: list[tuple[int, ...]] = []
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-begin", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            core, label = open_core(*self._arguments)
            self._identities = [identity(row[0]) for row in core.files()]
            self._result = core, label
        except Exception as error:
            self._error = error
            return
        finally:
            self._opened.set()
        if self._read_ahead_bytes != 0:
            _read_ahead.start(core, self._read_ahead_bytes or 0)
        if self._devices:
            start_devices(self._devices)

    def result(self) -> tuple[_core.Checkpoint, str]:
        """Waits for the headers. Raises what opening raised."""
        self._opened.wait()
        if self._result is None:
            assert self._error is not None
            raise self._error
        return self._result

    def is_over(self) -> bool:
        """Whether opening failed, or its files are others now. Does not wait."""
        return self._opened.is_set() and not self.is_fresh()

    def checkpoint(self) -> Checkpoint:
        """The Checkpoint, once its headers are read. Raises what open() raises."""
        return Checkpoint(*self.result())

    def is_fresh(self) -> bool:
        """Whether opening worked and the files are still those that were opened."""
        self._opened.wait()
        if self._result is None:
            return False
        try:
            return [identity(row[0]) for row in self._result[0].files()] == self._identities
        except OSError:
            return False


def identity(path: str) -> tuple[int, ...]:
    """What tells whether a path is still the same file."""
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def start_devices(devices: Iterable[Any]) -> None:
    """Makes what the process's loader keeps for these devices: the driver takes a part of a second to start."""
    try:
        _options.shared_loader()._core_of(_places.in_order(map(_devices.name_of, devices)))
    except errors.HeadraceError:
        return  # the load will say what is wrong


def key_of(source: _hub.Source, revision: str | None, strict: bool, allow_trailing: bool) -> Key | None:
    """What makes two opens equal; None for lists that can be walked only once."""
    if _hub.is_path(source):
        names: object = os.path.abspath(os.fsdecode(source))
    elif isinstance(source, (list, tuple)):
        names = tuple(map(os.path.abspath, _hub.paths_of(source)))
    else:
        return None
    return names, revision, strict, allow_trailing


def begin(
    source: _hub.Source,
    *,
    revision: str | None = None,
    strict: bool = True,
    allow_trailing: bool = False,
    read_ahead_bytes: int | None = None,
    device: Any = None,
    device_map: Mapping[str, Any] | None = None,
) -> Beginning:
    """Starts to read headers and tensors, and returns at once; call it before `import torch`.

    The next open(), load(), stream() or start() of the same source takes over what was begun. The kernel reads the
    first `read_ahead_bytes` into the page cache (None: a quarter of the memory that is available; 0: none), until the
    load starts, which copies them from there and lets go of them. GPUs that `device` or `device_map` name are started
    meanwhile. Errors come from the call that takes over. A source that was begun and not taken over is not begun anew.
    """
    if read_ahead_bytes is not None:
        read_ahead_bytes = _checks.number("read_ahead_bytes=", read_ahead_bytes, 2**64 - 1)
    _options.shared_loader()
    if not _hub.is_path(source):
        source = _hub.paths_of(source)
    devices = [] if device_map is None else list(_places.check_map(device_map).values())
    devices += [] if device is None else [device]
    key = key_of(source, revision, strict, allow_trailing)
    with _lock:
        beginning = None if key is None else _begun.get(key)
        if beginning is None or beginning.is_over():
            beginning = Beginning(source, revision, strict, allow_trailing, read_ahead_bytes, devices)
            devices = []
            if key is not None:
                _begun[key] = beginning
    if devices:
        threading.Thread(target=start_devices, args=(devices,), name="headrace-begin", daemon=True).start()
    return beginning


def take_over(
    source: _hub.Source, revision: str | None, strict: bool, allow_trailing: bool
) -> tuple[_core.Checkpoint, str] | None:
    """What begin() made of this source, once, or None."""
    if not _begun:
        return None
    key = key_of(source, revision, strict, allow_trailing)
    with _lock:
        beginning = None if key is None else _begun.pop(key, None)
    return beginning.result() if beginning is not None and beginning.is_fresh() else None


def take_over_files(paths: list[str]) -> tuple[_core.Checkpoint, str] | None:
    """What begin() made of these files, however its source named them, once, or None."""
    wanted = sorted(map(os.path.abspath, paths))
    for key, beginning in list(_begun.items()):
        if not beginning.is_fresh():
            continue
        core, label = beginning.result()
        if sorted(os.path.abspath(row[0]) for row in core.files()) == wanted:
            with _lock:
                _begun.pop(key, None)
            return core, label
    return None


def _after_fork() -> None:
    """The threads that fill the table do not exist in the child."""
    global _lock
    _lock = threading.Lock()
    _begun.clear()


os.register_at_fork(after_in_child=_after_fork)
