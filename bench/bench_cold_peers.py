#!/usr/bin/env python3
"""What a cold load costs the processor with the safetensors package: CPU seconds per GB.

usage: bench_cold_peers.py CHECKPOINT_FOLDER [--rounds N] [--json FILE]

Before each load the files are dropped from the page cache. To these devices, by PyTorch:

cpu      safetensors.torch.load_file, which maps the files; then a byte of every page is read, so that all is there
cuda:0   safetensors.torch.load_file(device="cuda:0")

Takes the processor time of the whole process. Exit status 77: PyTorch or safetensors is not there, or the
files cannot be dropped.
"""

import argparse
import ctypes
import gc
import importlib.metadata
import importlib.util
import json
import mmap
import os
import resource
import statistics
import sys
import time
from pathlib import Path

NOT_HERE = 77
PAGE = mmap.PAGESIZE


def load_cpu(files: list[str]) -> list:
    import torch
    from safetensors.torch import load_file

    shards = [load_file(path) for path in files]
    for shard in shards:
        for tensor in shard.values():
            tensor.view(-1).view(torch.uint8)[::PAGE].sum()
    return shards


def load_cuda(files: list[str]) -> list:
    import torch
    from safetensors.torch import load_file

    shards = [load_file(path, device="cuda:0") for path in files]
    torch.cuda.synchronize()
    return shards


def usable_loaders() -> dict:
    if importlib.util.find_spec("safetensors") is None or importlib.util.find_spec("torch") is None:
        return {}
    import torch

    if not torch.cuda.is_available():
        return {"cpu": load_cpu}
    torch.empty(1, device="cuda:0")
    return {"cpu": load_cpu, "cuda:0": load_cuda}


def resident_pages(path: str) -> int:
    """By mincore, which says that all is there where it does not tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = os.path.getsize(path)
    states = (ctypes.c_ubyte * ((size + PAGE - 1) // PAGE))()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        address = ctypes.addressof(holder := ctypes.c_char.from_buffer(mapping))
        code = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), states)
        del holder
    return len(states) if code else sum(state & 1 for state in states)


def drop(files: list[str]) -> bool:
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return not any(resident_pages(path) for path in files)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(name: str, load: object, files: list[str], rounds: int) -> dict:
    size = sum(os.path.getsize(path) for path in files)
    seconds, cpu = [], []
    for _ in range(rounds):
        if not drop(files):
            print("bench_cold_peers: not measured here: the page cache keeps the files", file=sys.stderr)
            raise SystemExit(NOT_HERE)
        cpu_before, begin = cpu_seconds(), time.perf_counter()
        tensors = load(files)
        seconds.append(time.perf_counter() - begin)
        cpu.append(cpu_seconds() - cpu_before)
        del tensors
        gc.collect()
    row = {"device": name, "bytes": size, "gb_s": size / statistics.median(seconds) / 1e9,
           "cpu_seconds_per_gb": statistics.median(cpu) / (size / 1e9), "seconds": seconds, "cpu_seconds": cpu}
    print(f"safetensors, {name:6} {row['gb_s']:6.3f} GB/s, cpu {row['cpu_seconds_per_gb']:.3f} s/GB", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = sorted(map(str, options.folder.glob("*.safetensors")))
    loaders = usable_loaders()
    if not loaders:
        print("bench_cold_peers: not measured here: safetensors or PyTorch is missing", file=sys.stderr)
        return NOT_HERE
    rows = [measure(name, load, files, options.rounds) for name, load in loaders.items()]
    versions = {name: importlib.metadata.version(name) for name in ("safetensors", "torch")}
    result = {"benchmark": "cold-peers", "rounds": options.rounds, "versions": versions, "rows": rows}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
