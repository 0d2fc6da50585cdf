#!/usr/bin/env python3
"""What a program gains that reads ahead before it can load: headrace.begin(), a pause, then the load.

usage: bench_ahead.py CHECKPOINT_FOLDER [--pairs N] [--pause SECONDS] [--json FILE]

The pause stands for imports, a model that is built, a driver that starts. Loads go to host memory that was touched,
with begin() and without it by turns; before each the files are dropped from the page cache, and the pause is not
counted. "left_bytes" is what the page cache holds afterwards, at most. Exit status 77: headrace is not there, or the
files cannot be dropped.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path

from bench_cold_peers import NOT_HERE, PAGE, drop, resident_pages


def cached_bytes(files: list[str]) -> int:
    return sum(resident_pages(path) for path in files) * PAGE


def load(folder: str, memory: dict, pause: float, ahead: bool) -> float:
    """Seconds of a cold load after the pause."""
    import headrace

    if ahead:
        headrace.begin(folder)
    time.sleep(pause)
    started = time.perf_counter()
    headrace.load(folder, into=memory)
    return time.perf_counter() - started


def measure(folder: str, files: list[str], pairs: int, pause: float) -> dict:
    import headrace

    with headrace.open(folder) as checkpoint:
        memory = {name: bytearray(b"1") * info.nbytes for name, info in checkpoint.items()}
        nbytes = checkpoint.nbytes
    seconds: dict = {False: [], True: []}
    left = []
    for pair in range(pairs):
        for ahead in (pair % 2 == 0, pair % 2 == 1):
            if not drop(files):
                sys.exit(NOT_HERE)
            seconds[ahead].append(load(folder, memory, pause, ahead))
            if ahead:
                left.append(cached_bytes(files))
    ratios = [cold / after for cold, after in zip(seconds[False], seconds[True])]  # times as fast
    return {
        "benchmark": "ahead", "bytes": nbytes, "pairs": pairs, "pause_s": pause,
        "cold_s": statistics.median(seconds[False]), "ahead_s": statistics.median(seconds[True]),
        "ratio_median": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        "left_bytes": max(left),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="CHECKPOINT_FOLDER")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--json")
    options = parser.parse_args()
    if importlib.util.find_spec("headrace") is None:
        return NOT_HERE
    files = sorted(map(str, Path(options.folder).glob("*.safetensors")))
    result = measure(options.folder, files, options.pairs, options.pause)
    print(json.dumps(result, indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
