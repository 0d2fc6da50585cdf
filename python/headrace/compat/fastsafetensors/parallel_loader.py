"""ParallelLoader and PipelineParallel: all tensors of a list of files, one by one, on all ranks.

The original holds batches of files; here a window bounds the bytes that were read and not taken, to as much as those
batches would have, and with a group each byte is read by one rank and spread by collectives (headrace.load(group=)).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from ... import errors
from ..._api import open as open_checkpoint
from ..._checkpoint import Checkpoint, TensorInfo
from . import _options
from .common import SingleGroup
from .frameworks import TorchProcessGroup, place_of
from .loader import Path, SafeTensorsFileLoader

_DEFAULTS = {
    "use_chunk_budget_as_allocation_size": False,
    "broadcast_run_bytes": _options.BROADCAST_RUN_BYTES,
    "broadcast_run_tensors": _options.BROADCAST_RUN_TENSORS,
    "overlap_io": True,
    "borrowed_tensors": False,
}


class BudgetInfeasibleError(errors.InvalidArgument):
    """What stays on the device does not fit into the budget, or the largest tensor."""


class PipelineParallel:
    """Tensors of files through a loader that exists.

    Args:
        pg: as for SafeTensorsFileLoader; the loader's group decides.
        loader: whose device, group and options hold.
        hf_weights_files: the files.
        max_concurrent_producers: 1.
        queue_size: files that may be in memory besides the one that is taken and the one that is read; -1: one alone.
        use_tqdm_on_load: a bar on the first rank, when tqdm is installed.
        tensor_filter: loads only tensors for whose names it is true; without a group only.
        max_batch_bytes, device_memory_budget: less memory than the files of the queue.
        accumulate_resident, resident_tensor: the tensors that the caller keeps on the device, which count against the
            budget: all, none, or those for whose names the function is true.

    Other options of the original are accepted, and named in one warning. Iterating raises BudgetInfeasibleError.
    """

    def __init__(
        self,
        pg: Any,
        loader: SafeTensorsFileLoader,
        hf_weights_files: Sequence[Path],
        max_concurrent_producers: int = 1,
        queue_size: int = 0,
        use_tqdm_on_load: bool = True,
        tensor_filter: Callable[[str], bool] | None = None,
        max_batch_bytes: int | None = None,
        use_chunk_budget_as_allocation_size: bool = False,
        device_memory_budget: int | None = None,
        accumulate_resident: bool = True,
        resident_tensor: Callable[[str], bool] | None = None,
        broadcast_run_bytes: int = _options.BROADCAST_RUN_BYTES,
        broadcast_run_tensors: int = _options.BROADCAST_RUN_TENSORS,
        overlap_io: bool = True,
        borrowed_tensors: bool = False,
        **kwargs: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _DEFAULTS}
        if max_concurrent_producers != 1:
            text = f"max_concurrent_producers is {max_concurrent_producers}; it must be 1"
            raise errors.make("InvalidArgument", text)
        alone = loader.pg.size() == 1 and TorchProcessGroup(pg).size() == 1
        if not alone and (tensor_filter is not None or borrowed_tensors):
            text = "tensor_filter and borrowed_tensors are for one process: use pg=None or all_local=True"
            raise errors.make("InvalidArgument", text)
        if resident_tensor is not None and not accumulate_resident:
            text = "resident_tensor says what is kept, and accumulate_resident=False that nothing is"
            raise errors.make("InvalidArgument", text)
        _options.ignored("PipelineParallel", given | kwargs, _DEFAULTS)
        self.loader = loader
        self.hf_weights_files = [os.fspath(path) for path in hf_weights_files]
        self.max_concurrent_producers = max_concurrent_producers
        self.queue_size = queue_size
        self.use_tqdm_on_load = use_tqdm_on_load
        self._bounds = [bound for bound in (max_batch_bytes, device_memory_budget) if bound is not None]
        self._budget = device_memory_budget
        self._stays = resident_tensor or (lambda name: accumulate_resident)
        if tensor_filter is not None:
            loader.set_tensor_filter(tensor_filter)

    def iterate_weights(self) -> Generator[tuple[str, torch.Tensor], None, None]:
        """(name, tensor) in the order of the files. Tensors are the caller's. Closing it ends the load."""
        if not self.hf_weights_files:
            return
        loader = self.loader
        with open_checkpoint(self.hf_weights_files) as checkpoint:
            names = [name for name in checkpoint if loader._keeps(name)]
            self._check_budget([checkpoint[name] for name in names])
            job = checkpoint.start(
                names, framework="torch", device=place_of(loader.device), order="file", group=loader.pg.real_pg,
                loader=loader._engine, window_bytes=self._window_bytes(checkpoint),
                progress=self.use_tqdm_on_load and _is_first(),
            )
        yield from job

    def _check_budget(self, tensors: list[TensorInfo]) -> None:
        stay = sum(info.nbytes for info in tensors if self._stays(info.name))
        need = max([stay, *(info.nbytes for info in tensors)], default=0)
        if self._budget is not None and need > self._budget:
            raise BudgetInfeasibleError(f"device_memory_budget is {self._budget} bytes; the tensors that stay have "
                                        f"{stay}, and {need} are needed at least")

    def _window_bytes(self, checkpoint: Checkpoint) -> int:
        sizes = dict.fromkeys(checkpoint.files, 0)
        for name in checkpoint:
            info = checkpoint[name]
            sizes[info.file] += info.nbytes
        batches = 1 if self.queue_size < 0 else self.queue_size + 2
        return max(1, min([batches * max(sizes.values()), *self._bounds]))

    def close(self) -> None:
        self.loader.close()


class ParallelLoader(PipelineParallel):
    """Tensors of files: PipelineParallel with a SafeTensorsFileLoader of its own, whose options it takes.

    Args:
        all_local: each rank reads all for itself; needed for a filter that differs between ranks.
    """

    def __init__(
        self,
        pg: Any,
        hf_weights_files: Sequence[Path],
        max_concurrent_producers: int = 1,
        queue_size: int = 0,
        use_tqdm_on_load: bool = True,
        device: Any = "cpu",
        bbuf_size_kb: int = _options.BBUF_SIZE_KB,
        max_threads: int = _options.MAX_THREADS,
        nogds: bool = False,
        set_numa: bool = True,
        debug_log: bool = False,
        framework: str = "pytorch",
        tensor_filter: Callable[[str], bool] | None = None,
        all_local: bool = False,
        max_batch_bytes: int | None = None,
        use_chunk_budget_as_allocation_size: bool = False,
        device_memory_budget: int | None = None,
        accumulate_resident: bool = True,
        resident_tensor: Callable[[str], bool] | None = None,
        use_fgds: bool = False,
        broadcast_run_bytes: int = _options.BROADCAST_RUN_BYTES,
        broadcast_run_tensors: int = _options.BROADCAST_RUN_TENSORS,
        overlap_io: bool = True,
        borrowed_tensors: bool = False,
        **kwargs: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _DEFAULTS}
        _options.ignored("ParallelLoader", given | kwargs | {"use_fgds": use_fgds}, _DEFAULTS | {"use_fgds": False})
        group = SingleGroup() if all_local else pg
        loader = SafeTensorsFileLoader(
            group, device, bbuf_size_kb, max_threads, nogds, set_numa, True, debug_log, framework, use_fgds, **kwargs
        )
        super().__init__(
            group, loader, hf_weights_files, max_concurrent_producers, queue_size, use_tqdm_on_load, tensor_filter,
            max_batch_bytes, use_chunk_budget_as_allocation_size, device_memory_budget, accumulate_resident,
            resident_tensor, broadcast_run_bytes, broadcast_run_tensors, overlap_io, borrowed_tensors,
        )


def _is_first() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
