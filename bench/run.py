#!/usr/bin/env python3
"""Run the benchmarks and keep what they say, with the machine that said it.

usage: run.py NAME [--build DIR] [--gib N] [--pairs N] [--scratch DIR] [--out DIR] [--skip header|host|python ...]

Writes OUT/NAME.json (default bench/results): date, machine, and the JSON of each benchmark. Host memory is touched
before anything is timed, because memory of virtual machines may grow on first touch. The header benchmark needs the
safetensors package in the Python that runs this, the Python benchmark needs headrace there.
"""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def machine() -> dict:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    total = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_kib": total,
        "kernel": platform.release(),
        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
    }


def touch_memory(gib: float) -> None:
    block = bytearray(int(gib * (1 << 30)))
    for i in range(0, len(block), 4096):
        block[i] = 1


def run_json(command: list, folder: Path) -> dict:
    out = folder / "result.json"
    subprocess.run([*map(str, command), "--json", str(out)], check=True)
    return json.loads(out.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("name")
    parser.add_argument("--build", type=Path, default=HERE.parent / "build")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--scratch", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--skip", nargs="*", default=[], choices=["header", "host", "python"])
    options = parser.parse_args()
    result = {"date": datetime.date.today().isoformat(), "machine": machine()}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        if "header" not in options.skip:
            bench = [sys.executable, HERE / "bench_header.py", options.build / "bench_header", "--dir", folder]
            result["header"] = run_json(bench, folder)
        if "python" not in options.skip:
            result["python"] = run_json([sys.executable, HERE / "bench_python.py"], folder)
        if "host" not in options.skip:
            model = folder / "model"
            subprocess.run([sys.executable, HERE / "make_checkpoint.py", model, str(options.gib), "4"], check=True)
            touch_memory(options.gib * 1.3 + 1)
            result["host"] = run_json([options.build / "bench_host", "--pairs", options.pairs, model], folder)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"kept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
