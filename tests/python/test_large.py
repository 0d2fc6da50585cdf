"""Offsets and sizes beyond 32 bits: a sparse file of more than 4 GiB with bytes of its own around the border."""

import os
import shutil
import struct
from pathlib import Path

import pytest
import reference
import xxhash

BIG_BYTES = (4 << 30) + (64 << 20)
NEEDED_MEMORY = 7 << 30


def free_memory() -> int:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) << 10


@pytest.fixture(scope="module")
def sparse_file(tmp_path_factory):
    if free_memory() < NEEDED_MEMORY:
        pytest.skip("not enough free memory for a tensor of 4 GiB")
    path = tmp_path_factory.mktemp("large") / "sparse.safetensors"
    header = (f'{{"big":{{"dtype":"U8","shape":[{BIG_BYTES // 4096},4096],"data_offsets":[0,{BIG_BYTES}]}},'
              f'"after":{{"dtype":"I32","shape":[5],"data_offsets":[{BIG_BYTES},{BIG_BYTES + 20}]}}}}').encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for offset in (0, (2 << 30) - 3, (4 << 30) - 5, (4 << 30) + 7, BIG_BYTES - 8):
            file.seek(8 + len(header) + offset)
            file.write(b"\xa5marked!")
        file.seek(8 + len(header) + BIG_BYTES)
        file.write(bytes(range(1, 21)))
    yield path
    shutil.rmtree(path.parent)


def hash_of_range(path: Path, start: int, stop: int) -> str:
    with path.open("rb") as file:
        data_offset = 8 + struct.unpack("<Q", file.read(8))[0]
        file.seek(data_offset + start)
        hasher = xxhash.xxh3_128()
        while start < stop:
            block = file.read(min(stop - start, 8 << 20))
            hasher.update(block)
            start += len(block)
    return hasher.hexdigest()


@pytest.mark.parametrize("route", ["pread", "uring", "mmap"])
def test_whole(headrace, sparse_file, route):
    expected = {"big": hash_of_range(sparse_file, 0, BIG_BYTES), "after": reference.hash_of(bytes(range(1, 21)))}
    assert headrace.hashes(sparse_file, "--route", route) == expected


def test_range_across_the_border(headrace, sparse_file):
    rows = ((4 << 30) - 8192) // 4096, ((4 << 30) + 8192) // 4096
    expected = hash_of_range(sparse_file, rows[0] * 4096, rows[1] * 4096)
    assert headrace.hashes(sparse_file, "--match", "big", "--slice", f"big=[{rows[0]}:{rows[1]}]") == {"big": expected}


def test_file_is_sparse(sparse_file):
    """Else this test would cost the disk what it pretends not to."""
    assert os.stat(sparse_file).st_blocks * 512 < 64 << 20
