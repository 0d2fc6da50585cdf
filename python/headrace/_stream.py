"""What stream() gives: an iterator that can be closed, and that a `with` block closes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ._job import Job


class Stream(Iterator[tuple[str, Any]]):
    """(name, tensor) of a load as they come; made by stream(). One thread at a time takes from it.

    The load ends with the last tensor, with close(), at the end of a `with` block, and when nothing refers to the
    stream any more. A variable does, also while an exception that left its function is on its way.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pairs = job._pairs()

    def __next__(self) -> tuple[str, Any]:
        return next(self._pairs)

    def close(self) -> None:
        """Stops reading and gives everything back but the tensors that were handed out. Any thread may call it."""
        self._job.close()  # the iteration may not have begun, and would not do it then
        with contextlib.suppress(ValueError):  # another thread takes from it, and will see that it was closed
            self._pairs.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
