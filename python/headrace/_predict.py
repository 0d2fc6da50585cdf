"""Which views of coming tensors are read ahead: those that were copied of the tensor that is alike one layer before.

Tensors are handed out one after the other. Two are alike when their names differ in the number of the layer alone, and
dtype and shape not at all. What was copied of a tensor until the next one was handed out, some views or none, is
expected of the next tensor that is alike, and of that one only. So what changes from some layer on is noticed there,
and costs the bytes of one layer at most.

Expectations are collected into batches, a load each, in the order in which their tensors come. A batch is freed as a
whole once its last tensor is over; the batches that there are never exceed the window. A kind of tensor whose
expectation failed twice in a row is left alone from then on.

Pure: knows numbers of tensors, views as somebody else's hashable values, and bytes.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Union

#: Bytes of a batch: enough to keep storage busy, and little to wait for. At most a quarter of the window.
BATCH_BYTES = 16 << 20
#: A kind of tensor is given up after as many failures in a row.
FAILURES_MAX = 2

_NUMBER = re.compile(r"\d+")


class Expected(NamedTuple):
    """What is to be read of a tensor."""

    number: int  # of the tensor
    views: tuple[Any, ...]
    nbytes: int


def without_layer(name: str) -> str:
    """The name with "#" for its first number, which is that of the layer."""
    return _NUMBER.sub("#", name, count=1)


class Predictor:
    """See above. note() may be called from any thread, step() from one."""

    def __init__(self, kinds: Sequence[Hashable], window_bytes: int) -> None:
        """`kinds` are those of all tensors, in the order in which they are handed out: equal ones are alike."""
        self._kinds = kinds
        self._next = _next_alike(kinds)
        self._window_bytes = window_bytes
        self._batch_bytes = min(BATCH_BYTES, window_bytes // 4)
        self._current = -1
        self._copied: dict[Hashable, int] = {}  # of the current tensor: views and their bytes
        self._waiting: list[Expected] = []  # a heap: for the next batches
        self._waiting_bytes = 0
        self._given: dict[int, Expected] = {}  # in batches that there are
        self._failures: dict[Hashable, int] = {}
        self._batches: list[tuple[int, int]] = []  # the last tensor and the bytes of those that there are

    def note(self, index: int, view: Hashable, nbytes: int) -> None:
        """A view of a tensor was copied. Counts only until the next tensor is handed out."""
        if index == self._current:
            self._copied[view] = nbytes

    def step(self, index: int) -> list[Expected]:
        """Tensor `index` is about to be handed out, and all before it are over: their batches are freed. Returns the
        batch to read now, or nothing."""
        self._learn()
        self._current, self._copied = index, {}
        self._batches = [batch for batch in self._batches if batch[0] >= index]
        return self._next_batch(index)

    def _learn(self) -> None:
        """What was copied of the current tensor is expected of the next that is alike."""
        if self._current < 0:
            return
        kind, copied = self._kinds[self._current], self._copied
        expected = self._given.pop(self._current, None)
        if expected is not None:
            has_failed = any(view not in copied for view in expected.views)
            self._failures[kind] = self._failures.get(kind, 0) + 1 if has_failed else 0
        coming, nbytes = self._next[self._current], sum(copied.values())
        if coming is not None and 0 < nbytes <= self._window_bytes and self._failures.get(kind, 0) < FAILURES_MAX:
            heapq.heappush(self._waiting, Expected(coming, tuple(copied), nbytes))
            self._waiting_bytes += nbytes

    def _next_batch(self, index: int) -> list[Expected]:
        """A batch when there is enough for it, or when `index` is in it. What comes too late is left out."""
        room = self._window_bytes - sum(nbytes for _, nbytes in self._batches)
        while self._waiting and self._waiting[0].number < index:
            self._pop()
        is_due = bool(self._waiting) and self._waiting[0].number == index
        if not is_due and self._waiting_bytes < self._batch_bytes:
            return []
        batch: list[Expected] = []
        size = 0  # the first tensor may be larger than a batch
        if room >= min(self._waiting_bytes, self._batch_bytes):
            while self._waiting and size + self._waiting[0].nbytes <= min(room, self._batch_bytes if batch else room):
                batch.append(self._pop())
                size += batch[-1].nbytes
        if is_due and not batch:
            self._pop()
        if not batch or batch[-1].number == index:  # a batch of this tensor alone: read when it is copied
            return []
        self._given.update((expected.number, expected) for expected in batch)
        self._batches.append((batch[-1].number, size))
        return batch

    def _pop(self) -> Expected:
        expected = heapq.heappop(self._waiting)
        self._waiting_bytes -= expected.nbytes
        return expected


def _next_alike(kinds: Sequence[Hashable]) -> list[Union[int, None]]:
    """Of each tensor the next that is alike."""
    result: list[Union[int, None]] = [None] * len(kinds)
    last: dict[Hashable, int] = {}
    for index, kind in enumerate(kinds):
        if kind in last:
            result[last[kind]] = index
        last[kind] = index
    return result
