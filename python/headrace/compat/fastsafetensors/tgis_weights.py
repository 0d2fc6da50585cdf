"""Weights, as text-generation-inference servers ask for them: whole, or this rank's block, of a server's dtype.

Floating-point tensors are converted; integers, of quantized checkpoints, stay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import _options
from .file_buffer import UnknownTensor
from .loader import Path, SafeTensorsFileLoader

QUANTIZED = ("gptq", "awq")


class Weights:
    """Files go to the ranks in turn, by their names' order. All ranks make the same calls.

    Args:
        filenames: the files.
        device, dtype: PyTorch's, of what comes out.
        pg: as for SafeTensorsFileLoader; its options are debug_log, nogds, max_copier_threads (max_threads) and
            bbuf_size_kb_total, which the ranks share.
        aliases: {name: other names}, for a name that no file has.
        prefix: what names in the files begin with, besides a dot.
        memtrace: accepted, and named in a warning.
    """

    def __init__(
        self,
        filenames: Sequence[Path],
        device: Any,
        dtype: torch.dtype,
        pg: Any,
        debug_log: bool = False,
        aliases: Mapping[str, Sequence[str]] | None = None,
        prefix: str | None = None,
        memtrace: bool = False,
        nogds: bool = False,
        max_copier_threads: int = _options.MAX_THREADS,
        bbuf_size_kb_total: int = _options.BBUF_SIZE_KB,
    ) -> None:
        _options.ignored("Weights", {"memtrace": memtrace}, {"memtrace": False})
        world = pg.size() if pg is not None else 1
        share = bbuf_size_kb_total if bbuf_size_kb_total == _options.BBUF_SIZE_KB else bbuf_size_kb_total // world
        self.loader = SafeTensorsFileLoader(pg, device, share, max_copier_threads, nogds, debug_log=debug_log)
        ordered = sorted(filenames, key=lambda path: os.path.basename(path))
        self.loader.add_filenames({rank: ordered[rank::world] for rank in range(world)})
        self.fb = self.loader.copy_files_to_device(allow_inflight=True)
        self.device, self.dtype, self.process_group = device, dtype, pg
        self.aliases, self.prefix = dict(aliases or {}), prefix
        self.routing = dict.fromkeys(self.loader.get_keys(), True)

    def close(self) -> None:
        self.fb.close()
        self.loader.close()

    def _name(self, tensor_name: str) -> str:
        """The name in the files."""
        for name in (tensor_name, *self.aliases.get(tensor_name, ())):
            for found in (name, f"{self.prefix}.{name}"):
                if found in self.routing:
                    return found
        raise UnknownTensor(f"no file has a tensor named '{tensor_name}', nor one of its aliases")

    def _ready(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def get_filename(self, tensor_name: str) -> tuple[str, str]:
        """The file, and the tensor's name in it."""
        name = self._name(tensor_name)
        return self.fb.get_filename(name), name

    def get_shape(self, tensor_name: str) -> torch.Size:
        return torch.Size(self.fb.get_shape(self._name(tensor_name)))

    def get_tensor(self, tensor_name: str) -> torch.Tensor:
        return self._ready(self.fb.get_tensor(self._name(tensor_name)))

    def push_tensor(self, tensor_name: str, dst_rank: int) -> torch.Tensor | None:
        tensor = self.fb.push_tensor(self._name(tensor_name), dst_rank)
        return None if tensor is None else self._ready(tensor)

    def get_sharded(self, tensor_name: str, dim: int = 1) -> torch.Tensor:
        return self._ready(self.fb.get_sharded(self._name(tensor_name), dim))

    def get_partial_sharded(self, tensor_name: str, dim: int) -> torch.Tensor:
        return self.get_sharded(tensor_name, dim)

    def get_tensor_shard(self, var: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's block of a tensor that is there whole."""
        extent, pg = var.shape[dim], self.loader.pg
        size = -(-extent // pg.size())
        begin = min(pg.rank() * size, extent)
        return self._ready(var.narrow(dim, begin, min(size, extent - begin))).to(self.device)

    # ------------------------------------------------------------------------------------------------- several in one

    def get_weights_col_packed_qkv(self, prefix: str, quantize: str | None = None) -> torch.Tensor:
        """This rank's blocks of queries, keys and values, which the file has in one tensor."""
        _refuse_quantized(quantize)
        parts = self.get_tensor(f"{prefix}.weight").chunk(3, 0)
        return torch.cat([self.get_tensor_shard(part, 0) for part in parts], 0)

    def get_multi_weights_col(self, prefixes: Sequence[str], quantize: str | None, dim: int) -> torch.Tensor:
        _refuse_quantized(quantize)
        names = [self._name(f"{prefix}.weight") for prefix in prefixes]
        return self._ready(self.fb.get_multi_cols(names, dim).get_raw())

    def get_multi_weights_row(self, prefix: str, quantize: str | None) -> torch.Tensor:
        _refuse_quantized(quantize)
        return self.get_sharded(f"{prefix}.weight", 1)


def _refuse_quantized(quantize: str | None) -> None:
    if quantize in QUANTIZED:
        raise NotImplementedError(f"{quantize}: take its tensors by name, with get_sharded() and get_tensor()")
