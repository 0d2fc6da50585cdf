"""Runs the tests that can use a GPU on the driver of this machine: `gpu_tests.py BIN [--json FILE]`.

BIN/test_* (cmocka), those of devices also under compute-sanitizer where it is installed and the
program did not skip all, and tests/python/test_gpu*.py. BIN/../cufile has a fake cuFile for BIN/test_gpu_gds. On a
machine without a driver these tests use a fake one, so here a driver must be: without it, and when nothing passed, this
fails.
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

CMOCKA_COUNT = re.compile(r"\[ +(PASSED|FAILED|SKIPPED) +\] (\d+) test\(s\)")
LIMIT_SECONDS = 150
SANITIZER_FAILED = 86


def run(command: list, **options: object) -> tuple[int, str, float]:
    """Exit status (124: too long), output, seconds."""
    begin = time.monotonic()
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                                errors="replace", timeout=LIMIT_SECONDS, **options)
        status, output = result.returncode, result.stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or ""
        status, output = 124, output if isinstance(output, str) else output.decode(errors="replace")
    return status, output, time.monotonic() - begin


def row_of(name: str, status: int, output: str, seconds: float, counts: dict) -> dict:
    row = {"name": name, "status": status, "seconds": round(seconds, 2), "passed": counts["PASSED"],
           "failed": counts["FAILED"] or int(status != 0), "skipped": counts["SKIPPED"]}
    if row["failed"]:
        row["output"] = output[-4000:]
    print(f"{name}: {row['passed']} passed, {row['failed']} failed, {row['skipped']} skipped, {seconds:.1f} s",
          flush=True)
    return row


def environment_of(program: Path) -> dict:
    """Found by the loader: what the program wants and the machine must not have for the others."""
    if program.name != "test_gpu_gds":
        return dict(os.environ)
    folders = [str(program.resolve().parents[1] / "cufile"), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, folders))}


def run_program(program: Path, checker: list, name: str) -> dict:
    status, output, seconds = run([*checker, program], env=environment_of(program))
    counts = {"PASSED": 0, "FAILED": 0, "SKIPPED": 0}
    for verdict, count in CMOCKA_COUNT.findall(output):
        counts[verdict] += int(count)
    return row_of(name, status, output, seconds, counts)


def run_pytest(files: list[Path]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "pytest.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", *files]
        status, output, seconds = run(command)
        counts = {"PASSED": 0, "FAILED": 0, "SKIPPED": 0}
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                bad, skipped = int(suite.get("failures")) + int(suite.get("errors")), int(suite.get("skipped"))
                counts["FAILED"] += bad
                counts["SKIPPED"] += skipped
                counts["PASSED"] += int(suite.get("tests")) - bad - skipped
    return row_of("tests/python/test_gpu*.py", status, output, seconds, counts)


def driver_version() -> int:
    version = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SystemExit(f"gpu_tests: there is no driver: {error}") from None
    if hasattr(driver, "fake_cuda_calls"):
        raise SystemExit("gpu_tests: the driver that was found is the fake one: unset LD_LIBRARY_PATH")
    driver.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    version = driver_version()
    rows = [run_program(program, [], program.name) for program in sorted(options.bin.glob("test_*"))
            if program.name.startswith(("test_device", "test_gpu"))]
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer:
        checker = [sanitizer, "--tool", "memcheck", "--report-api-errors", "no",
                   "--error-exitcode", str(SANITIZER_FAILED)]
        # it takes a program that makes no call of CUDA for one that failed
        used = {row["name"] for row in rows if row["passed"]}
        rows += [run_program(program, checker, f"{program.name}, compute-sanitizer")
                 for program in sorted(options.bin.glob("test_device*")) if program.name in used]
    python_tests = sorted(Path("tests/python").glob("test_gpu*.py"))
    if python_tests:
        rows.append(run_pytest(python_tests))
    passed, failed = (sum(row[key] for row in rows) for key in ("passed", "failed"))
    if options.json:
        result = {"driver": version, "sanitizer": bool(sanitizer), "passed": passed, "failed": failed, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1))
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
