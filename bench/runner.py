"""What the sections of run.py share: the machine, checkpoints in the page cache, benchmarks that write JSON."""
import json
import os
import platform
import subprocess
import sys
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


NOT_HERE = 77  # exit status of a benchmark that this machine lacks something for


def run_json(command: list, folder: Path) -> dict | None:
    out = folder / "result.json"
    code = subprocess.run([*map(str, command), "--json", str(out)], check=False).returncode
    if code == NOT_HERE:
        return None
    if code:
        raise SystemExit(f"{command[0]} ended with status {code}")
    return json.loads(out.read_text())


def make_model(folder: Path, name: str, gib: float, shards: int, *options: str) -> Path:
    """A checkpoint in the page cache, with nothing left to be written to the disk."""
    path = folder / name
    if not path.exists():
        command = [sys.executable, HERE / "make_checkpoint.py", path, str(gib), str(shards), *options]
        subprocess.run(command, check=True)
        os.sync()
    return path
