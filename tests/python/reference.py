"""The reference: what the safetensors package says of a file, and files written by hand where no package writes them.

A tensor is (dtype, shape, bytes). Nothing here knows headrace.
"""

import json
import math
import struct
from pathlib import Path

import numpy
import safetensors
import xxhash

DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}

Tensor = tuple[str, list[int], bytes]


def size_of(dtype: str, shape: list[int]) -> int:
    bits = DTYPE_BITS[dtype] * math.prod(shape)
    assert bits % 8 == 0
    return bits // 8


def random_tensor(random: numpy.random.Generator, dtype: str, shape: list[int]) -> Tensor:
    return dtype, shape, random.bytes(size_of(dtype, shape))


def header_of(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Compact JSON in the order of `tensors`, whose bytes follow each other in the same order."""
    header = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def write_by_hand(path: Path, tensors: dict[str, Tensor], padding: int = 0,
                  metadata: dict[str, str] | None = None) -> Path:
    """A file whose header is followed by `padding` spaces: 8 + its length, and so all data, may be at an odd offset."""
    header = header_of(tensors, metadata) + b" " * padding
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _, _, data in tensors.values():
            file.write(data)
    return path


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file as the reference reader returns them."""
    return {name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"]))
            for name, tensor in safetensors.deserialize(path.read_bytes())}


def hash_of(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def hashes(*paths: Path) -> dict[str, str]:
    return {name: hash_of(data) for path in paths for name, (_, _, data) in read(path).items()}
