"""A running load: tensors by name, by readiness, as futures; its end, its statistics, its progress bar.

A tensor is handed out once and then is the caller's alone: a job keeps none of them, so that a window bounds the
memory in use. A job that is dropped, closed or interrupted stops reading at once; what still runs when the
interpreter exits is stopped first.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any, Union

from . import _checks, _core, _frameworks, _parts, _probe, errors
from ._frameworks import Framework, Scope
from ._request import Request

logger = logging.getLogger("headrace")

ORDERS = ("ready", "file", "name")
EXIT_SECONDS_MAX = 5.0

Progress = Union[bool, Callable[[int, int, int, int], object]]


@dataclass(frozen=True)
class Stats:
    """What a load did. Times are nanoseconds; those of reading are summed over the reader threads."""

    bytes_needed: int  #: as they are stored
    bytes_ready: int
    bytes_read: int
    bytes_direct: int  #: of bytes_read: past the page cache, with O_DIRECT
    bytes_allocated: int
    peak_window_bytes: int
    item_count: int
    file_count: int
    chunk_count: int
    read_count: int
    plan_ns: int
    allocate_ns: int
    wait_ns: int
    read_ns: int
    place_ns: int
    idle_ns: int
    total_ns: int
    thread_count: int
    route: str
    route_reason: str
    bottleneck: str
    bytes_converted: int  #: of bytes_needed: of tensors that got another dtype
    conversion: str  #: who converted them: "readers", "GPU", or why not the GPU; "" when nothing was converted
    storage: str  #: how what the page cache did not hold was read, and why not better; "" when it held all
    bytes_sent: int  #: GPUs: over the link
    copy_count: int  #: GPUs: copies, one for each range of memory
    kernel_count: int  #: GPUs: launches of the kernel that places small and strided ranges
    staging_bytes: int  #: GPUs: pinned memory of the loader
    copy_wait_ns: int  #: GPUs: readers waiting for copies
    cpu_ns: int  #: processor time of the readers
    staging: str  #: GPUs: kind of the pinned memory, and why not a better one
    placement: str  #: GPUs: the NUMA node of readers and pinned memory, or why they are not bound
    bytes_received: int  #: groups: by collectives, of this rank's own reading and of the others'
    bytes_spread: int  #: groups: of bytes_ready: came by collectives
    collective_count: int  #: groups: that this rank took part in
    group_bytes: int  #: groups: memory for collectives
    group_wait_ns: int  #: groups: waiting for collectives, and so for other ranks
    rank: int  #: in the group; 0: alone
    world: int  #: ranks of the group; 1: alone
    device: str  #: "cpu" or "cuda:N"; of several: "cuda:0,cuda:1"
    device_name: str  #: "NVIDIA H200"; of several, each name once

    @property
    def seconds(self) -> float:
        """From the start to the last tensor ready."""
        return self.total_ns / 1e9

    @property
    def gigabytes_per_second(self) -> float:
        """10^9 bytes of tensors a second."""
        return self.bytes_ready / max(self.total_ns, 1)

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" to {self.device} ({self.device_name})"
        if self.world > 1:
            share = 100 * self.bytes_spread / max(self.bytes_ready, 1)
            where += f" as rank {self.rank} of {self.world} ({share:.0f} % spread)"
        return (f"{self.item_count} tensors, {self.bytes_ready / 1e9:.3f} GB{where} in {self.seconds:.3f} s, "
                f"{self.gigabytes_per_second:.2f} GB/s, route {self.route} ({self.route_reason}), "
                f"bottleneck: {self.bottleneck}")


_STATS_FIELDS = tuple(field.name for field in fields(Stats))
_live: weakref.WeakSet[_core.Load] = weakref.WeakSet()


def _stop_at_exit() -> None:
    loads = list(_live)
    for load in loads:
        load.close()
    deadline = time.monotonic() + EXIT_SECONDS_MAX
    while any(not load.idle for load in loads) and time.monotonic() < deadline:
        time.sleep(0.001)


atexit.register(_stop_at_exit)


DEADLINE_SECONDS_MAX = 1e9


def _deadline_ns(seconds: float | None) -> int:
    if seconds is None:
        return 0
    return max(1, int(_checks.seconds("deadline", seconds, DEADLINE_SECONDS_MAX) * 1e9))


def _within(scope: Scope | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` in a context of the framework's, if it has one: memory comes from the allocator's pool of the stream that
    was current where the load was started, since that is the stream whose work the load waits for before it writes."""
    if scope is None:
        return call

    def called(*arguments: Any) -> Any:
        with scope():
            return call(*arguments)

    return called


class Job:
    """A running load, made by start(). Any thread may use it; leaving its `with` block closes it."""

    def __init__(
        self,
        checkpoint: Any,
        loader: _core.Loader,
        request: Request,
        frameworks: list[Framework],
        *,
        window_bytes: int = 0,
        deadline: float | None = None,
        lazy: bool = False,
        order: str = "ready",
        progress: Progress = False,
        group: Any = None,
        group_bytes: int = 0,
    ) -> None:
        if order not in ORDERS:
            raise errors.make("InvalidArgument", f"order {order!r} is none of {', '.join(ORDERS)}")
        self._checkpoint = checkpoint
        self._core: _core.Checkpoint = checkpoint._core
        self._request = request
        # what is handed out of what the load gives for an item, alike on every device; None: that itself
        self._convert = _parts.taken if request.owners else frameworks[0].convert
        self._parts = _parts.Parts(len(request), request.owners) if request.owners else None
        self._order = order
        self._positions: dict[int, int] | None = None
        self._futures: dict[str, Future[Any]] = {}
        self._given: set[int] = set()  # positions that were handed out, or that somebody waits for
        self._waiter: _Waiter | None = None
        self._lock = threading.Lock()
        self._finished = False
        self._quiet = False  # set for one of thousands of small loads: no line in the log
        self._drained = False  # all were handed out: there is nothing more to give, which is no error
        self._bar = _Bar(progress) if progress else None
        streams, scope = _frameworks.capture_all(frameworks)
        streams = [request.streams.get(device, stream) for device, stream in zip(request.devices, streams)]
        facts = loader.devices()
        rank, world = (0, 1) if group is None else (group.member.rank, group.member.world)
        self._facts: dict[str, Any] = {"device": ",".join(request.devices),
                                       "device_name": ", ".join(dict.fromkeys(fact["name"] for fact in facts)),
                                       "rank": rank, "world": world}
        self._device_uuid: str = facts[0]["uuid"] if len(facts) == 1 else ""
        self._load = _core.Load(
            loader, self._core, request.items(), request.item_places(), request.ranges, request.shards, request.shapes,
            request.dtype_codes(), request.into, _frameworks.maker_of(frameworks), window_bytes, _deadline_ns(deadline),
            lazy, self._bar, streams, None if group is None else group.use(request.devices[0]), group_bytes,
        )
        self._wait, self._wait_all, self._next = (
            _within(scope, call) for call in (self._load.wait, self._load.wait_all, self._load.next)
        )
        if self._parts is not None:
            self._wait = self._parts.waiting(self._wait)
        self._left = len(request)
        _live.add(self._load)

    # ------------------------------------------------------------------------------------------------ tensors

    def names(self) -> list[str]:
        """The names of the job's tensors, in file order."""
        if self._request.indices is None:
            return self._core.names()
        return [self._core.info(index)[0] for index in self._request.indices]

    def __len__(self) -> int:
        return len(self._request)

    def get(self, name: str) -> Any:
        """Waits for a tensor and hands it out, once. It is read next, wherever it lies in the file.

        Raises TensorNotFound when the job has no such tensor, InvalidArgument when it was handed out before, and
        whatever ended the load.
        """
        with self._lock:
            future = self._futures.get(name)
        return self._take(self._position(name)) if future is None else future.result()

    def future(self, name: str) -> Future[Any]:
        """A concurrent.futures.Future of a tensor. A second call with the same name gives the same future.

        Futures are completed by one thread of the job, in the order in which they were asked for, also when the job
        was dropped in the meantime. Iterating and wait() begin when those that were asked for are complete, and give
        the rest.
        """
        with self._lock:
            future = self._futures.get(name)
            if future is None:
                position = self._position(name)
                if position in self._given:
                    future = Future()
                    future.set_exception(self._gone(position))
                    return future
                self._waiter = self._waiter or _Waiter(self._wait, self._convert)
                future = self._futures[name] = self._waiter.submit(position)
        return future

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """(name, tensor) of what was not handed out yet, in the job's order. Closing the iterator closes the job."""
        return self._pairs()

    def _pairs(self) -> Generator[tuple[str, Any], None, None]:
        if self._drained:
            return
        try:
            self._await_futures()
            yield from self._in_readiness() if self._order == "ready" else self._in_order()
            self._drained = True
        finally:
            self.close()

    def wait(self) -> dict[str, Any]:
        """Waits for all tensors and hands out those that were not yet: {name: tensor}. No window bounds this call."""
        if self._drained:
            return {}
        self._await_futures()
        convert, given = self._convert, self._given
        rest = [(name, tensor) for position, (name, tensor) in enumerate(zip(self.names(), self._wait_all()))
                if position not in given and not _parts.is_gone(tensor)]
        result = {name: tensor if convert is None else convert(tensor) for name, tensor in rest}
        self._drained = True
        self.close()
        return result

    def _in_readiness(self) -> Iterator[tuple[str, Any]]:
        convert, names, step, parts = self._convert, self.names(), self._next, self._parts
        while (ready := step()) is not None:
            position, tensor = ready
            del ready
            if parts is not None:
                complete = parts.arrived(position)
                if complete is None:
                    continue
                position = complete
            self._given.add(position)
            yield names[position], tensor if convert is None else convert(tensor)
            del tensor  # before the next one is waited for

    def _ready(self) -> Iterator[int]:
        """Positions of tensors as they are ready, without handing them out."""
        while (position := self._load.next_index()) is not None:
            yield position

    def _in_order(self) -> Iterator[tuple[str, Any]]:
        order = list(enumerate(self.names()))
        if self._order == "name":
            order.sort(key=lambda entry: entry[1])
        for position, name in order:
            if position not in self._given:
                yield name, self._take(position)

    def _await_futures(self) -> None:
        """What futures were asked for is theirs, and nothing takes it before them; but a callback of theirs, where
        waiting for them would never end."""
        with self._lock:
            asked = dict(self._futures)
        if self._waiter is not None and not self._waiter.is_current():
            futures.wait(asked.values())
        self._given.update(self._position(name) for name, future in asked.items()
                           if future.done() and not future.cancelled())

    def _take(self, position: int) -> Any:
        self._claim(position)
        try:
            tensor = self._wait(position)
        except BaseException:
            self._given.discard(position)
            raise
        if self._convert is not None:
            tensor = self._convert(tensor)
        self._left -= 1
        if self._left == 0 and self._waiter is None:
            self._finish()
        return tensor

    def _claim(self, position: int) -> None:
        with self._lock:
            if position in self._given:
                raise self._gone(position)
            self._given.add(position)

    def _gone(self, position: int) -> Exception:
        return _parts.handed_out_before(self._core.info(self._request.index_of(position))[0])

    def _position(self, name: str) -> int:
        index = self._core.find(name) if isinstance(name, str) else -1
        if self._request.indices is not None and index >= 0:
            if self._positions is None:
                self._positions = {index: position for position, index in enumerate(self._request.indices)}
            index = self._positions.get(index, -1)
        if index < 0:
            raise errors.make("TensorNotFound", f"the load has no tensor named '{name}'", tensor=name)
        return index

    # -------------------------------------------------------------------------------------------------- its end

    def cancel(self) -> None:
        """Stops reading, without waiting for it. Waiting for what is not ready raises Cancelled."""
        self._load.cancel()

    def close(self) -> None:
        """Stops reading and gives everything back but the tensors that were handed out."""
        try:
            self._finish()
        finally:
            self._load.close()
            if self._waiter is not None:
                self._waiter.stop()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        waiter = getattr(self, "_waiter", None)
        if waiter is not None:
            waiter.stop()  # after the futures that were asked for

    def stats(self) -> Stats | None:
        """What the load did so far; None once it is closed (then: Checkpoint.last_stats)."""
        values = self._load.stats()
        if values is None:
            return None
        values["item_count"] = len(self)
        return Stats(**values, **self._facts)

    def _finish(self) -> None:
        with self._lock:
            stats = None if self._finished else self.stats()
            self._finished = True
        if stats is None:
            return
        self._checkpoint.last_stats = stats
        if self._bar is not None:
            self._bar.close(stats)
        if not self._quiet and logger.isEnabledFor(logging.INFO):
            share = _probe.share(self._device_uuid, stats.bytes_ready, stats.total_ns)
            logger.info("%s: %s%s", self._checkpoint.label, stats, share)


class _Waiter:
    """The thread that completes a job's futures. It knows the load's wait(), not the job: a job can be dropped, and the
    thread ends behind its last future."""

    def __init__(self, wait: Callable[[int], Any], convert: Callable[[Any], Any] | None) -> None:
        self._wait = wait
        self._convert = convert
        self._queue: queue.SimpleQueue[tuple[int, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-futures", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # as Ctrl-C, which may come when it runs already
            self.stop()
            raise

    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def submit(self, position: int) -> Future[Any]:
        future: Future[Any] = Future()
        self._queue.put((position, future))
        return future

    def stop(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            position, future = entry
            del entry
            if future.set_running_or_notify_cancel():
                self._complete(position, future)
            del future

    def _complete(self, position: int, future: Future[Any]) -> None:
        try:
            tensor = self._wait(position)
            future.set_result(tensor if self._convert is None else self._convert(tensor))
        except BaseException as error:
            future.set_exception(error)
            self = future = None  # type: ignore[assignment]  # of this frame, which the exception keeps


class _Bar:
    """Progress of a load: the caller's function, or a bar when tqdm is installed, or nothing."""

    def __init__(self, progress: Progress) -> None:
        self._call = progress if callable(progress) else None
        self._tqdm: Any = None
        if self._call is None:
            try:
                tqdm = importlib.import_module("tqdm.auto").tqdm
            except ImportError:
                return
            self._tqdm = tqdm(unit="B", unit_scale=True, desc="headrace")

    def __call__(self, bytes_done: int, bytes_total: int, item_done: int, item_count: int) -> None:
        if self._call is not None:
            self._call(bytes_done, bytes_total, item_done, item_count)
        elif self._tqdm is not None:
            self._tqdm.total = bytes_total
            self._tqdm.update(bytes_done - self._tqdm.n)

    def close(self, stats: Stats) -> None:
        self(stats.bytes_ready, stats.bytes_needed, stats.item_count, stats.item_count)
        if self._tqdm is not None:
            self._tqdm.close()
