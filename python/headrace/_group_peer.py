"""One rank in one load of a process group: the transport that the library calls.

A Peer meets the others once, before anything moves (exchange), watches their heartbeats, and when one is gone or
says that it has failed, it ends the collectives of this load. A Member is what a process keeps for a caller's group:
how many loads it took part in, which numbers them alike on all ranks, and idle links.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from . import _core, _group_link, _group_store, _options, errors
from ._group_link import Link
from ._group_store import StoreSilent, StoreThread, first_line

START_SECONDS = 600  # for other ranks to begin a load
WATCH_SECONDS = 0.2
CALL_SECONDS_MAX = 1.0  # a call of NCCL puts work into a stream and returns


class Member:
    """This process in a caller's group."""

    def __init__(self, torch: Any, group: Any) -> None:
        c10d = torch.distributed.distributed_c10d
        self.torch = torch
        self.rank: int = torch.distributed.get_rank(group)
        self.ranks: list[int] = torch.distributed.get_process_group_ranks(group)
        self.world = len(self.ranks)
        self._store = c10d._get_process_group_store(group)
        self.lock = threading.Lock()
        self.count = 0  # loads begun
        self.stores: list[Any] = []  # connections that no load uses
        self.links: list[Link] = []  # that exist, of whatever device
        self.idle: set[int] = set()  # numbers of those that no load uses
        self.suspects: set[int] = set()  # ranks that were silent in an earlier load: they are not waited for long
        self.streams: dict[str, list[Any]] = {}  # device -> idle ones; PyTorch caches memory for each
        self.old_keys: list[tuple[int, list[str]]] = []  # of loads that have ended, by number

    def store(self) -> Any:
        """A connection of its own to the store, in a corner of its own. Making one can take its host long: it asks for
        the name of each that connects."""
        with self.lock:
            if self.stores:
                return self.stores.pop()
        clone = getattr(self._store, "clone", None)
        return self.torch.distributed.PrefixStore("headrace", self._store if clone is None else clone())

    def name_of(self, rank: int) -> str:
        return f"rank {rank} (global {self.ranks[rank]})"

    def drop_links(self, numbers: set[int] | None = None) -> None:
        """Ends idle links; None: all, and idle connections to the store."""
        with self.lock:
            gone = [link for link in self.links if link.number in self.idle and (numbers is None or
                                                                                link.number in numbers)]
            self.links = [link for link in self.links if link not in gone]
            self.idle -= {link.number for link in gone}
            if numbers is None:
                self.stores.clear()
        for link in gone:
            link.abort()


class Lost(Exception):
    """The group cannot go on; the text says why."""


class Peer:
    """One rank in one load, among its peers. The library calls exchange(), alloc() ... close() as core_group.h says."""

    _open: ClassVar[set[Peer]] = set()  # until they are closed nobody clears them, whatever cycle their load is in

    def __init__(self, member: Member) -> None:
        with member.lock:
            member.count += 1
            self._number = member.count
        self.member = member
        self.device = "cpu"
        self.start_seconds: int | None = None  # for the others to begin; None: as the environment says
        self._link: Link | None = None
        self._stream: Any = None  # GPUs: of the collectives
        self._text: str | None = None  # why it has failed
        self._is_declining = False
        self._has_met = False
        self._is_behind = False  # others gave up waiting for this rank's load before
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._memory: dict[int, Any] = {}
        self._pending: float | None = None  # since when a collective runs
        self._flags = (ctypes.c_int * 2)()  # core_nccl_flags: alarm, busy
        self._is_direct = False  # collectives are made past us
        self._thread = StoreThread(member.store(), member.rank, member.world)
        self._stuck: tuple[float, int] = (0.0, 0)  # when the store was last looked at, and our looks since
        threading.Thread(target=self._watch, name="headrace-group-watch", daemon=True).start()
        Peer._open.add(self)

    # ------------------------------------------------------------------------------------------------- before it

    def use(self, device: str) -> tuple[Peer, int, int, int]:
        """Says where the load goes to. Returns what _core.Load takes."""
        _group_link.check_available(self.member.torch, device)
        self.device = device
        stream = 0
        if device != "cpu":
            idle = self.member.streams.setdefault(device, [])
            self._stream = idle.pop() if idle else self.member.torch.cuda.Stream(device)
            stream = int(self._stream.cuda_stream)
        return self, self.member.rank, self.member.world, stream

    def decline(self, error: BaseException) -> None:
        """Tells the others that this rank cannot start, unless it has met them, and ends."""
        if self._has_met or self._text is not None or self._closed.is_set():
            return
        self._is_declining = True
        code, kind = -40, type(error).__name__
        message = f"{kind}: {first_line(error)}"
        if isinstance(error, errors.HeadraceError):
            code, message = error.code, str(error)
        fields = [getattr(error, name, None) or "" for name in ("file", "tensor")]
        with contextlib.suppress(errors.HeadraceError):  # we wait for nobody
            _core.group_decline((self, self.member.rank, self.member.world, 0), code, message, *map(str, fields))
        self.close(False)

    # ------------------------------------------------------------------------------------------ what the library calls

    def exchange(self, payload: bytes) -> bytes | None:
        """Meets the others and agrees on a link. None: it has failed."""
        try:
            return self._exchange(payload)
        except _group_link.Failed as error:
            self._fail_by(first_line(error))
        except (Lost, StoreSilent) as error:
            self.fail(f"{self._text or first_line(error)}")
        except BaseException as error:
            self.fail(f"{self.member.name_of(self.member.rank)} was stopped: {type(error).__name__}")
            raise
        return None

    def alloc(self, size: int) -> int:
        try:
            memory = _group_link.empty(self.member.torch, size, self.device, self._stream)
        except (RuntimeError, MemoryError):
            return 0
        address = int(memory.data_ptr())
        self._memory[address] = memory
        return address

    def free(self, address: int) -> bool:
        del self._memory[address]
        return True

    def all_gather(self, send: int, receive: int, size: int) -> bool:
        link = self._link
        assert link is not None
        views = self._view(send, size), self._view(receive, size * self.member.world)
        return self._collective(lambda: link.all_gather(*views, self._has_failed))

    def scatter(self, send: int, receive: int, size: int, root: int) -> bool:
        link = self._link
        assert link is not None
        parts = self._view(send, size * self.member.world) if root == self.member.rank else None
        return self._collective(lambda: link.scatter(parts, self._view(receive, size), root, self._has_failed))

    def communicator(self) -> tuple[int, int] | None:
        """For collectives that are made past us: NCCL's communicator, and our flags."""
        link = self._link
        address = 0 if link is None else link.communicator()
        self._is_direct = address != 0
        return (address, ctypes.addressof(self._flags)) if self._is_direct else None

    def blame(self, text: str) -> None:
        """A collective that was made past us has failed."""
        self._fail_by(text)

    def failure(self) -> str | None:
        return self._text

    def close(self, has_failed: bool) -> None:
        """Nothing is called any more. The others are told, and the link is kept for the next load."""
        if self._closed.is_set() or (has_failed and not self._has_met and self._text is None):
            return  # decline() comes
        if has_failed:
            self.fail(f"{self.member.name_of(self.member.rank)} could not start")
        self._closed.set()
        Peer._open.discard(self)
        self._memory.clear()
        self._thread.stop()
        is_free = self._thread.join(1.0)
        member, link = self.member, self._link
        with member.lock:
            if is_free:
                member.stores.append(self._thread.store)
            if self._thread.has_begun():
                names = (f"beat/{member.rank}", f"say/{member.rank}", _group_store.LATE)
                member.old_keys.append((self._number, [f"{self._number}/{name}" for name in names]))
            if link is not None and self._text is None:
                member.idle.add(link.number)
            if self._stream is not None and self._text is None:
                member.streams[self.device].append(self._stream)

    # -------------------------------------------------------------------------------------------------- the meeting

    def _exchange(self, payload: bytes) -> bytes | None:
        member = self.member
        self._begin()
        with member.lock:
            have = [link.number for link in member.links]
            offer = [link.number for link in member.links if link.number in member.idle and
                     link.device == self.device]
        head = {"device": self.device.partition(":")[0], "have": have, "offer": offer, "declines": self._is_declining}
        self._thread.set(f"say/{member.rank}", json.dumps(head).encode() + b"\n" + payload)
        if self._is_declining:
            return None
        said = self._meet()
        self._has_met = True
        heads, payloads = zip(*(self._split(said[rank]) for rank in range(member.world)))
        self._forget_old()
        if not any(head["declines"] for head in heads):
            self._link = self._agree(heads)
            self._link.stream = self._stream
        return b"".join(payloads)

    def _begin(self) -> None:
        """Takes the first number that the others have not given up: who left out a load, or came too late for it, takes
        part in the next."""
        while not self._thread.begin(self._number):
            self._is_behind = True
            with self.member.lock:
                self.member.count += 1
                self._number = self.member.count

    def _split(self, message: bytes) -> tuple[dict[str, Any], bytes]:
        head, _, payload = message.partition(b"\n")
        return json.loads(head), payload

    def _meet(self) -> dict[int, bytes]:
        """The message of each rank."""
        member, said, pause = self.member, dict[int, bytes](), 0.0002
        begun = time.monotonic()
        limit = _options.number_option("group_timeout", self.start_seconds, 10**6) or START_SECONDS
        while True:
            missing = [rank for rank in range(member.world) if rank not in said]
            there = self._thread.take([f"say/{rank}" for rank in missing[:16]])
            for name, message in there.items():
                said[int(name.partition("/")[2])] = message
            if len(said) == member.world:
                member.suspects.clear()
                return said
            self._check()
            if not there:
                self._check_late(missing, time.monotonic() - begun, limit)
                time.sleep(pause)
                pause = min(0.02, pause * 1.5)

    def _check_late(self, missing: list[int], waited: float, limit: float) -> None:
        member = self.member
        for rank in missing:
            if rank in member.suspects and waited > _group_store.SILENCE_SECONDS:
                raise Lost(f"{member.name_of(rank)} was lost in an earlier load and has not begun this one within "
                           f"{waited:.0f} s; make a new group of the ranks that live")
            if self._thread.has_ended(rank) and not self._thread.take([f"say/{rank}"]):
                raise Lost(f"{member.name_of(rank)} has left before the load began")
        first = member.name_of(missing[0])
        if self._is_behind and waited > _group_store.SILENCE_SECONDS:
            self._give_up("the others gave up waiting for this rank in an earlier load, and "
                          f"{first} has begun no other within {waited:.0f} s")
        if waited > limit:
            self._give_up(f"{first} has not begun this load within {limit:.0f} s (group_timeout=)")

    def _give_up(self, why: str) -> None:
        """For who begins this load later: it takes part in another."""
        self._thread.set(_group_store.LATE, b"")
        raise Lost(why)

    def _agree(self, heads: tuple[dict[str, Any], ...]) -> Link:
        """The link for this load: one that all ranks have idle, or a new one."""
        member = self.member
        devices = {head["device"] for head in heads}
        if len(devices) > 1:
            raise Lost(f"the ranks load to different kinds of device: {', '.join(head['device'] for head in heads)}")
        common = set.intersection(*(set(head["offer"]) for head in heads))
        everywhere = set.intersection(*(set(head["have"]) for head in heads))
        with member.lock:
            number = min(common, default=0)
            stale = {link.number for link in member.links} - everywhere
            member.idle.discard(number)
        member.drop_links(stale)
        if number:
            return next(link for link in member.links if link.number == number)
        store = member.torch.distributed.PrefixStore(f"{self._number}/link", member.store())
        with self.pending():
            link = _group_link.make(member.torch, store, self._number, self.device, member.rank, member.world,
                                    self._check)
        with member.lock:
            member.links.append(link)
        return link

    def _forget_old(self) -> None:
        """Deletes our keys of loads that all ranks have left: they have begun a later one since."""
        member = self.member
        with member.lock:
            old = [keys for number, keys in member.old_keys if number < self._number - 1]
            member.old_keys = [entry for entry in member.old_keys if entry[0] >= self._number - 1]
        if old:
            self._thread.forget([key for keys in old for key in keys])

    # ------------------------------------------------------------------------------------------------- when it ends

    def _check(self) -> None:
        if self._text is not None:
            raise Lost(self._text)

    def _has_failed(self) -> bool:
        return self._text is not None

    def _view(self, address: int, size: int) -> Any:
        for start, memory in self._memory.items():
            if start <= address and address + size <= start + memory.numel():
                return memory[address - start : address - start + size]
        raise AssertionError("memory of a collective that is none of ours")

    def _collective(self, run: Any) -> bool:
        if self._text is not None:
            return False
        try:
            with self.pending():
                run()
        except _group_link.Failed as error:
            self._fail_by(first_line(error))
            return False
        return self._text is None

    @contextlib.contextmanager
    def pending(self) -> Iterator[None]:
        """While a collective runs, or ranks make a link."""
        before, self._pending = self._pending, self._pending or time.monotonic()
        try:
            yield
        finally:
            self._pending = before

    def _fail_by(self, error: str) -> None:
        """A collective has failed, or making the link: heartbeats or another rank's word will tell soon who is the
        cause, unless the store is gone too."""
        end = time.monotonic() + _group_store.SILENCE_SECONDS + 3
        while self._text is None and self._thread.failed is None and time.monotonic() < end:
            time.sleep(0.05)
        store = "" if self._thread.failed is None else f"; {self._thread.failed}"
        self.fail(f"torch.distributed: {error}{store}")

    def fail(self, text: str) -> None:
        """Ends the load on this rank, and tells the others why. The first reason stays."""
        with self._lock:
            if self._text is not None or self._closed.is_set():
                return
            self._text = text
        self._thread.stop(_group_store.FAILED + text.encode())
        link = self._link
        if link is None:
            return
        with self.member.lock:
            if link in self.member.links:
                self.member.links.remove(link)
        self._raise_alarm()
        link.abort()

    def _raise_alarm(self) -> None:
        """Nobody calls NCCL past us any more, unless a call waits for a rank that is gone: that returns when the link
        is aborted."""
        self._flags[0] = 1
        end = time.monotonic() + CALL_SECONDS_MAX
        if self._is_direct:
            time.sleep(0.001)  # who did not see the alarm is busy by now
        while self._flags[1] and time.monotonic() < end:
            time.sleep(0.001)

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_SECONDS) and self._text is None:
            reason = self._verdict()
            if reason is not None:
                self.fail(reason)

    def _verdict(self) -> str | None:
        """Why the group is done for, or None."""
        member, thread = self.member, self._thread
        said = thread.said()
        if said is not None:
            return said
        silent = thread.silent()
        if silent:
            member.suspects |= set(silent)
            rank = max(silent, key=lambda other: silent[other])
            return f"{member.name_of(rank)} does not answer since {silent[rank]:.0f} s"
        since = self._pending
        if since is not None and time.monotonic() - since > _group_store.SILENCE_SECONDS:
            left = [rank for rank in range(member.world) if thread.has_ended(rank)]
            if left:
                return f"{member.name_of(left[0])} has left, and a collective still waits for it"
        looked, count = self._stuck
        self._stuck = (looked, count + 1) if looked == thread.looked else (thread.looked, 0)
        if self._stuck[1] * WATCH_SECONDS > _group_store.SILENCE_SECONDS + 2:  # by our own looks: we may be stopped
            seconds = self._stuck[1] * WATCH_SECONDS
            return thread.failed or (f"the group's store does not answer since {seconds:.0f} s; its host, often rank "
                                     "0, may have stopped")
        return None
