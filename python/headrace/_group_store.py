"""The traffic with a process group's store while ranks load together: a heartbeat of each rank, and messages.

Everything goes over one thread with a connection of its own: where the store does not answer (its host has stopped),
that thread blocks and nobody else. A store is a table of keys and bytes: TCPStore, FileStore, HashStore.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

BEAT_SECONDS = 0.5
SILENCE_SECONDS = 10.0  # of a heartbeat that stands still: the rank is taken for dead

ENDED = b"end"  # heartbeats that are none: the rank is through with this load,
FAILED = b"fail:"  # or has ended it for all, and says why
LATE = "late"  # a key of loads that some rank has not begun in time


class StoreSilent(Exception):
    """The store does not answer, or it answers with an error."""


class StoreThread:
    """Runs calls on the store, and beats in between, from begin() on. `failed` is why it has ended by itself, or
    None."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.store = store
        self._is_sound = True  # no call on the store has failed
        self._prefix: str | None = None  # of the load's keys
        self._rank = rank
        self._others = [other for other in range(world) if other != rank]
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._count = 0
        self._changed: dict[int, tuple[bytes, float]] = {}  # of others: heartbeat, and when it was new here
        self._last_word: bytes | None = None
        self.looked = time.monotonic()  # at all heartbeats
        self.failed: str | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-group-store", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ from other threads

    def call(self, operation: Callable[[Any], Any], seconds: float = SILENCE_SECONDS) -> Any:
        """operation(store). Raises StoreSilent when it does not return in time, or fails."""
        future: Future[Any] = Future()
        self._calls.put((operation, future))
        end = time.monotonic() + seconds
        while True:
            try:
                return future.result(timeout=min(0.2, max(0.0, end - time.monotonic())))
            except FutureTimeout:
                pass
            except RuntimeError as error:
                raise StoreSilent(f"the group's store fails: {error}") from error
            if self.failed is not None:
                raise StoreSilent(self.failed)
            if time.monotonic() >= end:
                raise StoreSilent(f"the group's store does not answer within {seconds:.0f} s")

    def begin(self, number: int) -> bool:
        """Takes part in the load of this number, unless others gave up waiting for this rank in it: then False."""

        def operation(store: Any) -> bool:
            if store.check([f"{number}/{LATE}"]):
                return False
            self._prefix = f"{number}/"
            return True

        begun: bool = self.call(operation)
        return begun

    def has_begun(self) -> bool:
        return self._prefix is not None

    def set(self, name: str, value: bytes) -> None:
        self.call(lambda store: store.set(f"{self._prefix}{name}", value))

    def take(self, names: list[str]) -> dict[str, bytes]:
        """Those of the messages that are there."""

        def operation(store: Any) -> dict[str, bytes]:
            there = {}
            for name in names:
                if store.check([f"{self._prefix}{name}"]):
                    there[name] = bytes(store.get(f"{self._prefix}{name}"))
            return there

        result: dict[str, bytes] = self.call(operation)
        return result

    def forget(self, names: list[str]) -> None:
        """Deletes keys of whatever prefix."""
        self.call(lambda store: [store.delete_key(name) for name in names])

    def silent(self) -> dict[int, float]:
        """Rank -> seconds that its heartbeat stands still, where that is too long."""
        now = time.monotonic()
        if now - self.looked > BEAT_SECONDS * 4:
            return {}  # this process has not looked in the meantime: it was stopped itself, or the store is slow
        return {
            rank: now - since
            for rank, (value, since) in list(self._changed.items())
            if now - since > SILENCE_SECONDS and value != ENDED and not value.startswith(FAILED)
        }

    def said(self) -> str | None:
        """Why another rank has ended the load, or None."""
        for value, _ in list(self._changed.values()):
            if value.startswith(FAILED):
                return value[len(FAILED) :].decode(errors="replace")
        return None

    def has_ended(self, rank: int) -> bool:
        """Whether a rank is through with this load."""
        return self._changed.get(rank, (b"", 0.0))[0] == ENDED

    def stop(self, last_word: bytes = ENDED) -> None:
        """Ends the thread behind what it has to do; the last word, the first one given, stays as the heartbeat."""
        if self._last_word is None:
            self._last_word = last_word
        self._calls.put(None)

    def join(self, seconds: float) -> bool:
        """Waits for the end of the thread. Whether `store` can be used by others then."""
        self._thread.join(seconds)
        return self._is_sound and not self._thread.is_alive()

    # ---------------------------------------------------------------------------------------------- on the thread

    def _run(self) -> None:
        due = 0.0
        try:
            while self._last_word is None or not self._calls.empty():
                if self._prefix is None:
                    self._serve(BEAT_SECONDS)
                    self.looked = time.monotonic()
                    continue
                if time.monotonic() >= due:
                    self._beat()
                    due = time.monotonic() + BEAT_SECONDS
                self._serve(max(0.0, due - time.monotonic()))
            if self._prefix is not None:
                self.store.set(self._key(self._rank), self._last_word)
        except Exception as error:
            self._is_sound = False
            self.failed = f"the group's store is gone ({first_line(error)}); its host, often rank 0, may have ended"

    def _serve(self, seconds: float) -> None:
        try:
            entry = self._calls.get(timeout=seconds)
        except queue.Empty:
            return
        if entry is None:
            return
        operation, future = entry
        try:
            future.set_result(operation(self.store))
        except Exception as error:
            self._is_sound = False
            future.set_exception(RuntimeError(first_line(error)))

    def _key(self, rank: int) -> str:
        return f"{self._prefix}beat/{rank}"

    def _beat(self) -> None:
        self._count += 1
        self.store.set(self._key(self._rank), str(self._count).encode())
        for rank in self._others:
            if not self.store.check([self._key(rank)]):
                continue  # get() would wait for it
            value = bytes(self.store.get(self._key(rank)))
            if rank not in self._changed or self._changed[rank][0] != value:
                self._changed[rank] = value, time.monotonic()
        self.looked = time.monotonic()


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
