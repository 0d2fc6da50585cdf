#!/usr/bin/env python3
"""Run the benchmarks and keep what they say, with the machine that said it.

usage: run.py NAME [--build DIR] [--gib N] [--pairs N] [--small-tensors N] [--scratch DIR] [--out DIR]
              [--seconds N] [--only SECTION ...] [--join FILE ...]

Writes OUT/NAME.json (default bench/results): date, machine, and the JSON of each benchmark. Host memory is touched
before anything is timed, because memory of virtual machines may grow on first touch. The sections are

header    the safetensors package must be in the Python that runs this
python    headrace must be there
host      host memory
convert   conversions of dtypes on one core against memcpy
write     host memory to a file, on the disk of --scratch
cold      files that the page cache does not hold, from the drive to host memory and to a GPU where there is one; so is
          cold-half, where it holds half or all of them. --seconds bounds the loads of each (0: --pairs alone do)
ahead     a load of such files after half a second in which they were read ahead; headrace must be there
cold-peers  what the same costs the processor with the safetensors package
gpu       a GPU, all of the following; --only may name them one by one: gpu-hot (whose memory, new loaders, a small
          model), gpu-threads (4 to 128 readers), gpu-cores (2, 4 and 8 cores), gpu-small (20,000 small tensors),
          gpu-cast (dtypes converted on the way),
          peers (PyTorch, safetensors and headrace must be there), transformers (Transformers too), group (two GPUs,
          PyTorch and headrace). Left out where there is no device.

--join takes the sections of other result files into this one, and runs nothing unless --only is given.
"""
import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

import run_cold
import run_gpu
from runner import HERE, machine, make_model, run_json, touch_memory


def run_header(options: argparse.Namespace, folder: Path) -> dict:
    return run_json([sys.executable, HERE / "bench_header.py", options.build / "bench_header", "--dir", folder], folder)


def run_python(options: argparse.Namespace, folder: Path) -> dict:
    return run_json([sys.executable, HERE / "bench_python.py"], folder)


def run_host(options: argparse.Namespace, folder: Path) -> dict:
    model = make_model(folder, "model", options.gib, 4)
    touch_memory(options.gib * 1.3 + 1)
    return run_json([options.build / "bench_host", "--pairs", options.pairs, model], folder)


def run_convert(options: argparse.Namespace, folder: Path) -> dict:
    return run_json([options.build / "bench_convert", "--pairs", options.pairs], folder)


def run_write(options: argparse.Namespace, folder: Path) -> dict:
    return run_json([options.build / "bench_write", "--gib", options.gib, "--pairs", options.pairs, folder], folder)


SECTIONS = {"header": run_header, "python": run_python, "host": run_host, "convert": run_convert, "write": run_write,
            **run_cold.SECTIONS, **run_gpu.SECTIONS}


def chosen_sections(only: list[str] | None, joins: bool) -> list[str]:
    if only is None:
        return [] if joins else list(SECTIONS)
    return [name for name in SECTIONS if name in only or ("gpu" in only and name in run_gpu.SECTIONS)]


def can_run(name: str) -> bool:
    if name not in run_gpu.SECTIONS or run_gpu.has_device():
        return True
    print(f"{name}: left out, there is no device")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("name")
    parser.add_argument("--build", type=Path, default=HERE.parent / "build")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--small-tensors", type=int, default=20_000)
    parser.add_argument("--scratch", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", nargs="+", default=None, choices=[*SECTIONS, "gpu"])
    parser.add_argument("--join", nargs="+", type=Path, default=[])
    options = parser.parse_args()
    result = {"date": datetime.date.today().isoformat(), "machine": machine()}
    for path in options.join:
        result |= json.loads(path.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        for name in chosen_sections(options.only, bool(options.join)):
            if can_run(name):
                section = SECTIONS[name](options, Path(scratch))
                if section is not None:
                    result[name] = section
                path.write_text(json.dumps(result, indent=2) + "\n")  # what is measured stays, whatever comes next
    print(f"kept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
