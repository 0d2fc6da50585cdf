"""Reads ahead what _predict.py expects to be copied of lazy tensors, a batch of them in one load.

What was read lies in memory of the device where its like was copied, and is copied from there when exactly that view is
asked for: at the same point of the program at which it would else be read. Whatever else is asked for is not here, and
is read as ever. An error of a batch ends reading ahead and says nothing: the tensor that it is about is then read when
it is copied, which raises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import torch

from . import errors
from ._checkpoint import Checkpoint, TensorInfo
from ._dtypes import torch_dtype
from ._job import Job
from ._options import Loader
from ._predict import Expected, Predictor, without_layer

logger = logging.getLogger("headrace")

#: Elements of this size are copied as integers, whose bits no copy can change.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class View(NamedTuple):
    """Which elements of a tensor were copied, as (start, stop, step) of each dimension, and where to."""

    ranges: tuple[tuple[int, int, int], ...]
    device: torch.device

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(*part) for part in self.ranges)


class _Part:
    """What is read ahead of one tensor. It is there when the load has handed it out."""

    def __init__(self, job: Job, name: str, memories: dict[View, torch.Tensor]) -> None:
        self._job = job
        self._name = name
        self._memories = memories
        self._has_come = False
        self._lock = threading.Lock()

    def find(self, view: View) -> torch.Tensor | None:
        """The memory of this view, or None. Waits until it is read; raises what ended the load."""
        memory = self._memories.get(view)
        if memory is not None:
            with self._lock:
                if not self._has_come:
                    self._job.get(self._name)
                    self._has_come = True
        return memory


class _Batch(NamedTuple):
    """A load of several tensors; `last` is the number of the last of them."""

    last: int
    job: Job
    parts: dict[str, _Part]


class Ahead:
    """Of the lazy tensors of a checkpoint those that are read ahead. step() is called by one thread, take() by any."""

    def __init__(
        self, checkpoint: Checkpoint, loader: Loader, infos: Sequence[TensorInfo], window_bytes: int
    ) -> None:
        """`infos` are the lazy tensors, in the order in which they are handed out."""
        self._checkpoint = checkpoint
        self._loader = loader
        self._infos = infos
        self._indices = {info.name: index for index, info in enumerate(infos)}
        kinds = [(without_layer(info.name), info.dtype, info.shape) for info in infos]
        self._predictor: Union[Predictor, None] = Predictor(kinds, window_bytes)
        self._batches: list[_Batch] = []
        self.bytes_read = 0
        self.load_count = 0

    def step(self, name: str) -> None:
        """The tensor of this name is about to be handed out."""
        if self._predictor is None:
            return
        index = self._indices[name]
        self._end(index)
        expected = self._predictor.step(index)
        if not expected:
            return
        try:
            self._batches.append(self._start(expected))
        except (errors.HeadraceError, RuntimeError) as error:  # of PyTorch: no memory
            self._give_up(error)

    def take(self, name: str, view: View, memory: torch.Tensor) -> bool:
        """Copies a view into memory of its shape in the file, if it was read ahead, and notes that it was asked for."""
        predictor = self._predictor
        if predictor is None:
            return False
        predictor.note(self._indices[name], view, memory.nbytes)
        part = next((batch.parts[name] for batch in self._batches if name in batch.parts), None)
        try:
            found = None if part is None else part.find(view)
        except errors.HeadraceError as error:
            self._give_up(error)
            return False
        if found is None:
            return False
        bits = _INTEGERS[found.element_size()]
        memory.view(bits).copy_(found.view(bits))
        if found.is_cuda:  # made on one stream, and perhaps read by another when it is freed
            found.record_stream(torch.cuda.current_stream(found.device))
        return True

    def close(self) -> None:
        """Stops reading, and frees what was not copied."""
        self._predictor = None
        self._end(len(self._infos))

    def _start(self, expected: list[Expected]) -> _Batch:
        memories: dict[str, dict[View, torch.Tensor]] = {}
        for tensor in expected:
            info = self._infos[tensor.number]
            dtype = torch_dtype(torch, info.dtype)
            memories[info.name] = {view: _memory_for(view, dtype) for view in tensor.views}
        into = {name: [(view.slices, memory) for view, memory in of.items()] for name, of in memories.items()}
        job = self._checkpoint.start(list(into), into=into, window_bytes=0, order="file", loader=self._loader)
        job._quiet = True
        self.load_count += 1
        parts = {name: _Part(job, name, of) for name, of in memories.items()}
        return _Batch(expected[-1].number, job, parts)

    def _end(self, index: int) -> None:
        """Frees the batches that lie before tensor `index`."""
        over = [batch for batch in self._batches if batch.last < index]
        self._batches = [batch for batch in self._batches if batch.last >= index]
        for batch in over:
            stats = batch.job.stats()
            batch.job.close()  # nothing is written to the memory from here on
            self.bytes_read += 0 if stats is None else stats.bytes_read

    def _give_up(self, error: Exception) -> None:
        logger.info("%s: nothing more is read ahead: %s", self._checkpoint.label, error)
        self.close()


def _memory_for(view: View, dtype: Any) -> torch.Tensor:
    sizes = [len(range(*part)) for part in view.ranges]
    return torch.empty(sizes, dtype=dtype, device=view.device)
