#!/usr/bin/env python3
"""Opening one file with many tensors: headrace and the safetensors package, taking turns.

usage: bench_header.py BENCH_HEADER [--trials N] [--json FILE] [--dir DIR] [--counts N,N]

BENCH_HEADER is the program built from bench_header.c. Headers are those of mixture-of-experts models in BF16; the
data section is a hole in the file. Each trial opens the file and gets all names. Needs safetensors and numpy.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors import safe_open

HIDDEN, EXPERT, EXPERTS = 2048, 768, 128


def layer_tensors(layer: int):
    """Names and shapes of one layer, as a 30-billion-parameter mixture of experts has them."""
    prefix = f"model.layers.{layer}"
    for expert in range(EXPERTS):
        yield f"{prefix}.mlp.experts.{expert}.gate_proj.weight", (EXPERT, HIDDEN)
        yield f"{prefix}.mlp.experts.{expert}.up_proj.weight", (EXPERT, HIDDEN)
        yield f"{prefix}.mlp.experts.{expert}.down_proj.weight", (HIDDEN, EXPERT)
    yield f"{prefix}.mlp.gate.weight", (EXPERTS, HIDDEN)
    for name, rows in (("q", 4096), ("k", 512), ("v", 512)):
        yield f"{prefix}.self_attn.{name}_proj.weight", (rows, HIDDEN)
    yield f"{prefix}.self_attn.o_proj.weight", (HIDDEN, 4096)
    yield f"{prefix}.self_attn.q_norm.weight", (128,)
    yield f"{prefix}.self_attn.k_norm.weight", (128,)
    yield f"{prefix}.input_layernorm.weight", (HIDDEN,)
    yield f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)


def write_file(path: Path, count: int) -> int:
    """Write a file of `count` tensors; return the header's bytes."""
    header, offset, layer = {"__metadata__": {"format": "pt"}}, 0, 0
    while len(header) <= count:
        for name, shape in layer_tensors(layer):
            if len(header) <= count:
                end = offset + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
                header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
                offset = end
        layer += 1
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return len(text)


def open_reference(path: Path) -> tuple[int, int]:
    start = time.perf_counter_ns()
    with safe_open(path, framework="np") as file:
        names = file.keys()
        return time.perf_counter_ns() - start, len(names)


class Headrace:
    def __init__(self, program: Path, path: Path):
        self.process = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def open(self) -> tuple[int, int]:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        nanoseconds, count, _ = map(int, self.process.stdout.readline().split())
        return nanoseconds, count

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def summary(samples: list[int], header_bytes: int) -> dict:
    median = statistics.median(samples)
    return {"median_ms": median / 1e6, "min_ms": min(samples) / 1e6, "max_ms": max(samples) / 1e6,
            "header_mb_per_s": header_bytes / median * 1e3}


def measure(program: Path, path: Path, count: int, trials: int) -> dict:
    header_bytes = write_file(path, count)
    ours, reference = [], []
    headrace = Headrace(program, path)
    for trial in range(trials + 1):  # the first one warms both
        for samples, result in ((ours, headrace.open()), (reference, open_reference(path))):
            if result[1] != count:
                raise SystemExit(f"{result[1]} names were found, {count} were written")
            if trial:
                samples.append(result[0])
    headrace.close()
    pairs = [slow / fast for slow, fast in zip(reference, ours)]
    return {"tensors": count, "header_bytes": header_bytes, "trials": trials,
            "headrace": summary(ours, header_bytes), "reference": summary(reference, header_bytes),
            "ratio": {"median": statistics.median(pairs), "min": min(pairs), "max": max(pairs)}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path, help="where the files are made (default: a temporary folder)")
    parser.add_argument("--counts", default="19000,200000")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        for count in map(int, options.counts.split(",")):
            result = measure(options.program, Path(folder) / f"{count}.safetensors", count, options.trials)
            results.append(result)
            for name in ("headrace", "reference"):
                one = result[name]
                print(f"{count:7} tensors  {name:9}  {one['median_ms']:8.2f} ms "
                      f"({one['min_ms']:.2f} to {one['max_ms']:.2f})  {one['header_mb_per_s']:7.0f} MB/s")
            ratio = result["ratio"]
            print(f"{count:7} tensors  ratio      {ratio['median']:8.1f}    ({ratio['min']:.1f} to {ratio['max']:.1f})")
    if options.json:
        options.json.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
