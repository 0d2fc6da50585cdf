"""What Python adds to a load: time per tensor above the framework's own `empty`, on many small tensors.

    python bench/bench_python.py [--tensors 20000] [--elements 64] [--runs 7] [--json FILE]

Writes a checkpoint of its own into a temporary folder (page cache warm). For every way to load it prints the best and
the median time a tensor, what making as many empty tensors costs alone, and the difference. The goal is 5
microseconds a tensor above the framework. The read itself is inside the difference; the line "into nothing" (no
framework) shows what engine and extension cost without one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import headrace


def write_checkpoint(path: Path, count: int, elements: int) -> None:
    size = elements * 4
    header = {
        f"model.layers.{i // 10}.block.{i % 10}.weight": {
            "dtype": "F32",
            "shape": [elements],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(bytes(size) * count)


def microseconds_each(call: Callable[[], object], count: int, runs: int) -> list[float]:
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - begin) / count * 1e6)
        del result
    return sorted(times[1:])


#: What was shown: microseconds a tensor.
shown: list[dict[str, object]] = []


def show(label: str, times: list[float], base: float = 0.0) -> None:
    best, median = times[0], statistics.median(times)
    row: dict[str, object] = {"what": label, "best_us": round(best, 3), "median_us": round(median, 3)}
    if base:
        row["above_framework_us"] = round(median - base, 3)
    shown.append(row)
    above = f"   above the framework: {median - base:6.2f}" if base else ""
    print(f"{label:34} best {best:7.2f}   median {median:7.2f}{above}   us/tensor")


def consume(checkpoint: headrace.Checkpoint, **options: object) -> None:
    for _ in checkpoint.stream(**options):
        pass


def compare(checkpoint: headrace.Checkpoint, name: str, make: Callable[[], object], runs: int) -> None:
    """Every way to load into a framework, against making as many tensors alone."""
    count = len(checkpoint)
    base = microseconds_each(lambda: [make() for _ in range(count)], count, runs)
    show(f"{name}.empty alone", base)
    ways: dict[str, Callable[[], object]] = {
        "load": lambda: checkpoint.load(framework=name),
        "stream": lambda: consume(checkpoint, framework=name),
        "stream, 1 MiB window": lambda: consume(checkpoint, framework=name, window_bytes=1 << 20),
        "stream, file order": lambda: consume(checkpoint, framework=name, order="file"),
    }
    for way, call in ways.items():
        show(f"{way}, {name}", microseconds_each(call, count, runs), statistics.median(base))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=20000)
    parser.add_argument("--elements", type=int, default=64)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count = options.tensors
    makers: dict[str, Callable[[], object]] = {}
    try:
        import torch

        makers["torch"] = lambda: torch.empty((options.elements,), dtype=torch.float32)
    except ImportError:
        pass
    try:
        import numpy

        makers["numpy"] = lambda: numpy.empty((options.elements,), dtype=numpy.float32)
    except ImportError:
        pass
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.safetensors"
        write_checkpoint(path, count, options.elements)
        show("open", microseconds_each(lambda: headrace.open(path), count, options.runs))
        with headrace.open(path) as checkpoint:
            show("load, no framework", microseconds_each(checkpoint.load, count, options.runs))
            for name, make in makers.items():
                compare(checkpoint, name, make, options.runs)
    if options.json:
        result = {"tensors": count, "bytes_each": options.elements * 4, "runs": options.runs, "rows": shown}
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
