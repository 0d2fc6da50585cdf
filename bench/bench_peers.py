#!/usr/bin/env python3
"""A page-cache-hot checkpoint into a GPU from Python: headrace and other loaders, taking turns on the same files.

usage: bench_peers.py CHECKPOINT_FOLDER [--rounds N] [--device cuda:0] [--peers NAME ...] [--json FILE]

safetensors      safetensors.torch.load_file(device=...), file after file
pool             four threads that slice on the host and then send, as Transformers does
fastsafetensors  its loader without GPUDirect Storage; left out where the package is missing
headrace         headrace.open(...).load(framework="pt", device=...)
headrace-warm-up the same with warm_up=True, which lets the allocator take its memory in one piece first

Each loads in a process of its own that stays, so that none inherits another's memory; they take turns, and the first
load of each is not counted. "warm": PyTorch's allocator still holds the memory of the load before; "cold": it gave all
back. A load counts until the device has been synchronized. All must give the same bytes. Also prints what a tensor
costs above `torch.empty` on the device, with many tensors of 256 bytes. Exit status 77: there is no device.
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NO_DEVICE = 77
SMALL_TENSORS = 20_000

# ------------------------------------------------------------------------------------------------- the loaders


def load_safetensors(files: list[str], device: str) -> dict:
    from safetensors.torch import load_file

    tensors = {}
    for path in files:
        tensors |= load_file(path, device=device)
    return tensors


def load_pool(files: list[str], device: str) -> dict:
    from safetensors import safe_open

    with ThreadPoolExecutor(4) as pool:
        opened = [safe_open(path, "pt") for path in files]
        jobs = {name: pool.submit(lambda f=file, n=name: f.get_slice(n)[...].to(device))
                for file in opened for name in file.keys()}  # noqa: SIM118
        return {name: job.result() for name, job in jobs.items()}


class FastSafetensors:
    """Its tensors live as long as its buffer, so this keeps both until the next load."""

    def __call__(self, files: list[str], device: str) -> dict:
        import torch
        from fastsafetensors import SafeTensorsFileLoader, SingleGroup

        self.loader = SafeTensorsFileLoader(SingleGroup(), torch.device(device), nogds=True)
        self.loader.add_filenames({0: files})
        self.buffer = self.loader.copy_files_to_device()
        return {name: self.buffer.get_tensor(name) for name in self.buffer.key_to_rank_lidx}

    def close(self) -> None:
        self.buffer.close()
        self.loader.close()


class Headrace:
    def __init__(self, **options: object) -> None:
        self.options = options

    def __call__(self, files: list[str], device: str) -> dict:
        import headrace

        with headrace.open(files) as checkpoint:
            tensors = checkpoint.load(framework="pt", device=device, **self.options)
            self.stats = str(checkpoint.last_stats)
        return tensors


LOADERS = {"safetensors": lambda: load_safetensors, "pool": lambda: load_pool, "fastsafetensors": FastSafetensors,
           "headrace": Headrace, "headrace-warm-up": lambda: Headrace(warm_up=True)}

PACKAGES = ("safetensors", "fastsafetensors", "headrace")


def package_of(name: str) -> object:
    return importlib.util.find_spec("safetensors" if name == "pool" else name.split("-")[0])


# -------------------------------------------------------------------------------------- a process of one loader


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def digest(tensors: dict) -> str:
    """Sums that differ where bytes or names do; made on the device."""
    import torch

    total = 0
    for number, name in enumerate(sorted(tensors)):
        whole = tensors[name].contiguous().view(-1).view(torch.uint8)
        even = whole[: whole.numel() // 2 * 2].view(torch.int16)
        total += (number + 1) * int(torch.sum(even, dtype=torch.int64))
    return f"{len(tensors)} tensors, sum {total}"


def one_load(load: object, files: list[str], device: str, allocator: str, with_digest: bool) -> dict:
    import torch

    if allocator == "cold":
        torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.synchronize(device)
    free, _ = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    cpu, begin = cpu_seconds(), time.perf_counter()
    tensors = load(files, device)
    torch.cuda.synchronize(device)
    seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    used = free + reserved - torch.cuda.mem_get_info(device)[0]
    result = {"seconds": seconds, "cpu_seconds": cpu,
              "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
              "device_above_bytes": used - sum(tensor.nbytes for tensor in tensors.values())}
    if with_digest:
        result["digest"] = digest(tensors)
    if hasattr(load, "stats"):
        result["stats"] = load.stats
    del tensors
    if hasattr(load, "close"):
        load.close()
    gc.collect()
    return result


def serve(name: str, files: list[str], device: str) -> None:
    """One load for each line of the input, which says how warm the allocator is; a line of JSON for each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a loader prints
    import torch

    torch.empty(1, device=device)
    load = LOADERS[name]()
    for line in sys.stdin:
        allocator, what = line.split()
        print(json.dumps(one_load(load, files, device, allocator, what == "digest")), file=answers, flush=True)


class Peer:
    """A loader in a process of its own."""

    def __init__(self, name: str, folder: Path, device: str) -> None:
        command = [sys.executable, __file__, str(folder), "--serve", name, "--device", device]
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def load(self, allocator: str, what: str = "time") -> dict:
        print(allocator, what, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


# ------------------------------------------------------------------------------------------------- the rounds


def rows_of(peers: list[Peer], allocator: str, rounds: int, size: int) -> list[dict]:
    """Each peer's loads, `rounds` of them, in turns."""
    loads = {peer.name: [] for peer in peers}
    for peer in peers:
        peer.load(allocator)
    for number in range(rounds):
        for peer in peers if number % 2 else reversed(peers):
            loads[peer.name].append(peer.load(allocator))
    rows = []
    for name, results in loads.items():
        seconds = [result["seconds"] for result in results]
        row = {"peer": name, "allocator": allocator, "gb_s": size / statistics.median(seconds) / 1e9,
               "seconds": seconds, "cpu_seconds": statistics.median(result["cpu_seconds"] for result in results)}
        row |= {key: max(result[key] for result in results) for key in ("peak_allocated_bytes", "device_above_bytes")}
        if "headrace" in loads:
            ratios = sorted(a / b["seconds"] for a, b in zip(seconds, loads["headrace"], strict=True))
            row |= {"headrace_times_as_fast": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
        if "stats" in results[-1]:
            row["stats"] = results[-1]["stats"]
        rows.append(row)
    return rows


def show(row: dict) -> None:
    times = f"headrace is {row['headrace_times_as_fast']:.2f} times as fast" if "least" in row else ""
    print(f"{row['peer']:16} {row['allocator']:5} {row['gb_s']:6.2f} GB/s, cpu {row['cpu_seconds']:6.2f} s, "
          f"device +{row['device_above_bytes'] / (1 << 20):8.1f} MiB   {times}", flush=True)


def per_tensor(device: str, runs: int = 7) -> dict:
    """Microseconds a tensor: a load of many small ones, and as many empty ones."""
    import bench_python
    import headrace
    import torch

    def synchronized(call: object) -> object:
        result = call()
        torch.cuda.synchronize(device)
        return result

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.safetensors"
        bench_python.write_checkpoint(path, SMALL_TENSORS, 64)
        with headrace.open(path) as checkpoint:
            load = bench_python.microseconds_each(
                lambda: synchronized(lambda: checkpoint.load(framework="pt", device=device)), SMALL_TENSORS, runs)
    alone = bench_python.microseconds_each(
        lambda: synchronized(lambda: [torch.empty((64,), device=device) for _ in range(SMALL_TENSORS)]),
        SMALL_TENSORS, runs)
    load_us, alone_us = statistics.median(load), statistics.median(alone)
    print(f"a tensor: {load_us:.2f} us, torch.empty alone {alone_us:.2f} us, above it {load_us - alone_us:.2f} us")
    return {"tensors": SMALL_TENSORS, "runs": runs, "load_us": load_us, "empty_us": alone_us,
            "above_us": load_us - alone_us}


def run(options: argparse.Namespace, files: list[str]) -> dict:
    import torch

    missing = [name for name in options.peers if package_of(name) is None]
    peers = [Peer(name, options.folder, options.device) for name in options.peers if name not in missing]
    size = sum(os.path.getsize(path) for path in files)
    digests = {peer.name: peer.load("warm", "digest")["digest"] for peer in peers}
    if len(set(digests.values())) != 1:
        raise SystemExit(f"the loaders disagree: {digests}")
    rows = [row for allocator in ("warm", "cold") for row in rows_of(peers, allocator, options.rounds, size)]
    for peer in peers:
        peer.close()
    versions = {name: importlib.metadata.version(name) for name in ("torch", *PACKAGES)
                if importlib.util.find_spec(name)}
    result = {"benchmark": "peers", "device": torch.cuda.get_device_name(options.device), "bytes": size,
              "files": len(files), "rounds": options.rounds, "digest": digests.popitem()[1], "missing": missing,
              "versions": versions, "rows": rows}
    for row in rows:
        show(row)
    if "headrace" in versions:
        result["per_tensor"] = per_tensor(options.device)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--peers", nargs="+", choices=LOADERS, default=list(LOADERS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", choices=LOADERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = sorted(map(str, options.folder.glob("*.safetensors")))
    if options.serve:
        serve(options.serve, files, options.device)
        return 0
    import torch

    if not torch.cuda.is_available():
        print("bench_peers: no device", file=sys.stderr)
        return NO_DEVICE
    result = run(options, files)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
