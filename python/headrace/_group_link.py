"""Links: our own backends of torch.distributed between the ranks of a caller's group, NCCL for GPUs, gloo for host
memory. A link belongs to one load at a time and is kept for the next one. Ending it leaves the caller's group alone.

Ranks are those of the group here; nothing global is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from . import errors

NEVER = timedelta(days=1)  # a rank that is late is waited for; one that is dead is noticed by its heartbeat
TICK = timedelta(milliseconds=200)

# For NCCL, while a backend is made: a rank that dies must not take the process along. PyTorch reads them then.
_QUIET = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
_quiet_lock = threading.Lock()


class Failed(Exception):
    """A collective, or making the link, has failed."""


def empty(torch: Any, size: int, device: str, stream: Any) -> Any:
    """Memory for collectives that run in a stream, on 256 bytes."""
    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        memory = torch.empty(size + 256, dtype=torch.uint8, device=device)
    start = -memory.data_ptr() % 256
    return memory[start : start + size]


class Link:
    """`number` is the same on all ranks; `stream` is that of the load which uses it now, for a GPU. Made by make()."""

    def __init__(self, torch: Any, number: int, device: str, rank: int, world: int, backend: Any) -> None:
        self.number = number
        self.device = device
        self._torch = torch
        self._rank = rank
        self._world = world
        self._backend = backend
        self._is_cuda = device != "cpu"
        self.stream: Any = None

    def _scope(self) -> contextlib.AbstractContextManager[Any]:
        return self._torch.cuda.stream(self.stream) if self._is_cuda else contextlib.nullcontext()

    def all_gather(self, send: Any, receive: Any, has_failed: Callable[[], bool]) -> None:
        self._do(lambda: self._backend._allgather_base(receive, send), has_failed)

    def broadcast(self, memory: Any, root: int, has_failed: Callable[[], bool]) -> None:
        options = self._torch.distributed.BroadcastOptions()
        options.rootRank = root
        self._do(lambda: self._backend.broadcast([memory], options), has_failed)

    def scatter(self, send: Any, receive: Any, root: int, has_failed: Callable[[], bool]) -> None:
        """`send`, of the root: a part for each rank, one behind the other."""
        options = self._torch.distributed.ScatterOptions()
        options.rootRank = root
        parts = [] if send is None else [list(send.chunk(self._world))]
        self._do(lambda: self._backend.scatter([receive], parts, options), has_failed)

    def send(self, memory: Any, rank: int, has_failed: Callable[[], bool]) -> None:
        self._do(lambda: self._backend.send([memory], rank, 0), has_failed)

    def receive(self, memory: Any, rank: int, has_failed: Callable[[], bool]) -> None:
        self._do(lambda: self._backend.recv([memory], rank, 0), has_failed)

    def communicator(self) -> int:
        """The address of NCCL's communicator, for who calls NCCL past us; 0: it is not told. Makes the device current
        on this thread."""
        pointer = getattr(self._backend, "_comm_ptr", None)
        if not self._is_cuda or pointer is None:
            return 0
        self._torch.cuda.set_device(self.device)
        try:
            return int(pointer())
        except RuntimeError:
            return 0

    def _do(self, start: Callable[[], Any], has_failed: Callable[[], bool]) -> None:
        """For host memory the collective is done then; for a GPU it is in `stream`. Raises Failed."""
        try:
            with self._scope():
                work = start()
                if self._is_cuda:
                    work.wait()  # that is, the stream does
                    return
        except RuntimeError as error:
            raise Failed(_plain(error)) from error
        self._wait(work, has_failed)

    def _wait(self, work: Any, has_failed: Callable[[], bool]) -> None:
        while True:
            is_done = work.is_completed()
            try:
                work.wait() if is_done else work.wait(TICK)
                return
            except RuntimeError as error:
                if is_done:
                    raise Failed(_plain(error)) from error
            if has_failed():
                _abandon(work, self._backend)
                raise Failed("it was given up")

    def abort(self) -> None:
        """Ends what runs: kernels of NCCL return. Not used any more then."""
        with contextlib.suppress(RuntimeError):
            self._backend.abort()


def _abandon(*objects: Any) -> None:
    """Never frees them: gloo waits, when a backend goes, for what a dead rank owes it."""
    for entry in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(entry))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with _quiet_lock:
        before = {name: os.environ.get(name) for name in _QUIET}
        os.environ.update(_QUIET)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _begin_nccl(torch: Any, store: Any, device: str, rank: int, world: int) -> Any:
    options = torch.distributed.ProcessGroupNCCL.Options()
    options._timeout = NEVER
    options.group_name = "headrace"
    with torch.cuda.device(device), _quiet():
        return torch.distributed.ProcessGroupNCCL(store, rank, world, options)


def _connect_nccl(torch: Any, backend: Any, device: str, world: int) -> None:
    """Makes the communicator now, rather than while a load has device memory to make."""
    with torch.cuda.device(device):
        own = torch.zeros(1, dtype=torch.uint8, device=device)
        backend._allgather_base(own.new_empty(world), own).wait()
        torch.cuda.current_stream(device).synchronize()


def make(torch: Any, store: Any, number: int, device: str, rank: int, world: int, check: Callable[[], None]) -> Link:
    """Makes a link; all ranks do at once. `check` is called meanwhile and raises when there is no point any more.
    Raises Failed."""
    begun: list[Any] = []
    problems: list[Exception] = []

    def run() -> None:
        try:
            if device == "cpu":
                begun.append(torch.distributed.ProcessGroupGloo(store, rank, world, NEVER))
            else:
                begun.append(_begin_nccl(torch, store, device, rank, world))
                _connect_nccl(torch, begun[0], device, world)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=run, name="headrace-group-link", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
            check()
    except BaseException:
        for backend in begun:
            backend.abort()
        raise
    if problems:
        name = "gloo" if device == "cpu" else "NCCL"
        raise Failed(f"a {name} group cannot be made: {_plain(problems[0])}") from problems[0]
    return Link(torch, number, device, rank, world, begun[0])


def _plain(error: Exception) -> str:
    """What an error of PyTorch says, without its place in the source and its advice."""
    return re.sub(r"\[[^][]*:\d+\] |\. This is typically.*", "", str(error).split("\n", 1)[0])


def check_available(torch: Any, device: str) -> None:
    """Raises Unsupported when this PyTorch has no backend for a device."""
    distributed = torch.distributed
    name, there = ("gloo", distributed.is_gloo_available()) if device == "cpu" else (
        "NCCL", distributed.is_nccl_available())
    if not there:
        raise errors.make("Unsupported", f"group= on {device} needs {name}, which torch {torch.__version__} lacks")
