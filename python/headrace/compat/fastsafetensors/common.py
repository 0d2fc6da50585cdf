"""Groups of one, and the headers of files, as fastsafetensors.common has them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..._api import open as open_checkpoint
from .st_types import DType


class SingleGroup:
    """This process alone, where a process group is wanted."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


@dataclass
class TensorFrame:
    """One tensor of a header."""

    dtype: DType
    shape: list[int]
    data_offsets: list[int]  #: from the start of the data section


@dataclass
class SafeTensorsMetadata:
    """The header of a file."""

    src: str
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, TensorFrame] = field(default_factory=dict)
    size_bytes: int = 0

    @classmethod
    def from_file(cls, filename: str | os.PathLike[str], framework: Any = None) -> SafeTensorsMetadata:
        path = os.fspath(filename)
        with open(path, "rb") as file:
            first = 8 + int.from_bytes(file.read(8), "little")  # of the data section; checked by the next call
            size = os.fstat(file.fileno()).st_size
        with open_checkpoint(path) as checkpoint:
            result = cls(path, checkpoint.metadata, {}, size)
            for info in map(checkpoint.__getitem__, checkpoint):
                begin = info.offset - first
                result.tensors[info.name] = TensorFrame(DType(info.dtype), list(info.shape),
                                                        [begin, begin + info.nbytes])
        return result


def get_device_numa_node(device: int | None) -> int | None:
    """The NUMA node of a GPU; None where that is not known."""
    if device is None or not torch.cuda.is_available():
        return None
    facts: Any = torch.cuda.get_device_properties(device)
    address = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
    try:
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
