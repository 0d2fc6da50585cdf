"""The objects that Transformers takes its tensors from, and the loads behind them.

A batch of tensors is one load. Of the batches two are ahead of what Transformers has asked for, so what waits to be
taken is bounded by the window; the first asking of a later batch starts it, so no order of asking can deadlock. A
tensor is handed out once and becomes the parameter; who asks for it again gets it read again.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from . import _dtypes, _frameworks, _options, _request, _warm_up
from ._checkpoint import Checkpoint, TensorInfo
from ._job import Job
from ._safe_open import EagerReader, Slice, TorchMapping
from ._transformers_plan import Item, Plan, final_batches, passing_batches

AHEAD_COUNT = 2  # batches: one that is being taken, one that is being read


class _Batch:
    """Tensors of one device that one load reads; started once, by any thread."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.left = len(items)
        self._job: Job | None = None
        self._positions: dict[int, int] = {}  # index of a tensor -> its position in the load
        self._merged: dict[str, Any] = {}

    @property
    def device(self) -> str:
        return self.items[0].device

    def start(self, checkpoint: Checkpoint, loader: _options.Loader) -> None:
        if self._job is not None:
            return
        indices = sorted(part.index for item in self.items for part in item.parts)
        request = _request.Request(checkpoint._core, indices, devices=(self.device,))
        self._positions = {index: position for position, index in enumerate(indices)}
        for item in self.items:
            if item.dtype != item.stored:
                request.dtypes.update((self._positions[part.index], item.dtype) for part in item.parts)
            if item.is_merged:
                self._add_merged(request, item)
        frameworks = [_frameworks.find("torch", self.device)]
        self._job = Job(checkpoint, loader._core_of(request.devices), request, frameworks)

    def _add_merged(self, request: _request.Request, item: Item) -> None:
        torch: Any = importlib.import_module("torch")
        dtype = _dtypes.torch_dtype(torch, item.dtype)
        whole = self._merged[item.name] = torch.empty(item.shape, dtype=dtype, device=self.device)
        for part in item.parts:
            request.into[self._positions[part.index]] = (whole, whole.data_ptr() + part.offset, None)

    def take(self, item: Item) -> Any:
        assert self._job is not None
        tensor = None
        for part in item.parts:
            tensor = self._job._wait(self._positions[part.index])
        return self._merged.pop(item.name) if item.is_merged else tensor

    def close(self) -> None:
        if self._job is not None:
            self._job.close()
        self._merged.clear()


class Reading:
    """All loads of one call of Transformers' loader."""

    def __init__(self, checkpoint: Checkpoint, plan: Plan, loader: _options.Loader, window_bytes: int) -> None:
        self._checkpoint = checkpoint
        self._loader = loader
        self._final = [_Batch(items) for items in final_batches(plan)]
        self._passing = [_Batch(items) for items in passing_batches(plan, window_bytes // AHEAD_COUNT)]
        self._batch_of = {item.name: batch for batch in (*self._final, *self._passing) for item in batch.items}
        self._taken: set[str] = set()
        self._mappings: dict[str, TorchMapping] = {}
        self._lock = threading.Lock()
        self._plan = plan

    def start(self) -> None:
        """Starts the first batches: all that is final, and what the window has room for."""
        for batch in self._final:
            if batch.device != "cpu":
                _warm_up.take(batch.device, (item.nbytes for item in batch.items))
        with self._lock:
            for batch in self._final:
                batch.start(self._checkpoint, self._loader)
            self._start_next()

    def slices(self) -> dict[str, Any]:
        """{name: object} as Transformers takes it for a state_dict."""
        mapped, plan = _MappedReader(self), self._plan
        result: dict[str, Any] = {name: Slice(mapped, self._checkpoint._info(index)) for name, index in plan.mapped}
        for item in plan.direct:
            result[item.name] = Slice(self._reader(item.device), self._checkpoint._info(item.parts[0].index))
        for item in (*plan.final, *plan.passing):
            result[item.name] = _Slice(self, item)
        return result

    def take(self, item: Item) -> Any:
        """The tensor, the first time from the load that is on its way."""
        with self._lock:
            again = item.name in self._taken
            self._taken.add(item.name)
            batch = _Batch([item]) if again else self._batch_of[item.name]
            batch.start(self._checkpoint, self._loader)
        tensor = batch.take(item)
        if again:
            batch.close()
        else:
            self._count(batch)
        return tensor

    def part(self, item: Item, index: Any) -> Any:
        """A part, which is read alone where the tensor is one of the checkpoint."""
        if item.is_merged or item.dtype != item.stored:
            return _read_alone(self._checkpoint, self._loader, item)[index]
        return self._reader(item.device).part(self._checkpoint._info(item.parts[0].index), index)

    def close(self) -> None:
        for batch in (*self._final, *self._passing):
            batch.close()

    def mapping(self, path: str, size: int) -> TorchMapping:
        """The file's mapping, made when it is first asked for."""
        with self._lock:
            mapping = self._mappings.get(path)
            if mapping is None:
                mapping = self._mappings[path] = TorchMapping(path, size)
            return mapping

    def _count(self, batch: _Batch) -> None:
        with self._lock:
            batch.left -= 1
            if batch.left == 0:
                batch.close()
                self._start_next()

    def _start_next(self) -> None:
        ahead = [batch for batch in self._passing if batch.left > 0][:AHEAD_COUNT]
        for batch in ahead:
            batch.start(self._checkpoint, self._loader)

    def _reader(self, device: str) -> EagerReader:
        return EagerReader(self._checkpoint, _frameworks.find("torch", device), device)


def _read_alone(checkpoint: Checkpoint, loader: _options.Loader, item: Item) -> Any:
    batch = _Batch([item])
    batch.start(checkpoint, loader)
    try:
        return batch.take(item)
    finally:
        batch.close()


class _Slice:
    """A tensor that a load reads ahead."""

    def __init__(self, reading: Reading, item: Item) -> None:
        self._reading = reading
        self._item = item

    def get_shape(self) -> list[int]:
        return list(self._item.shape)

    def get_dtype(self) -> str:
        return self._item.dtype

    def __getitem__(self, index: Any) -> Any:
        return self._reading.take(self._item) if index is Ellipsis else self._reading.part(self._item, index)


class _MappedReader:
    """Tensors for host memory: views of their file's mapping, as Transformers' own are."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def whole(self, info: TensorInfo) -> Any:
        checkpoint = self._reading._checkpoint
        sizes = {file[0]: file[1] for file in checkpoint._files}
        return self._reading.mapping(info.file, sizes[info.file]).whole(info)

    def part(self, info: TensorInfo, index: Any) -> Any:
        return self.whole(info)[index]

    def all(self, checkpoint: Checkpoint) -> dict[str, Any]:
        infos = (checkpoint._info(index) for index in range(len(checkpoint)))
        return {info.name: self.whole(info) for info in infos}
