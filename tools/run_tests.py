"""Runs the C tests (ctest) and the Python tests (pytest) of a build folder and ends with "N passed, N failed".

A cmocka program counts as the tests that it reports, any other program as one, and a program that dies as one failed
test more. The exit status is 0 only when something passed and nothing failed.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import IO

CMOCKA_COUNT = re.compile(r"\[  (PASSED|FAILED)  \] (\d+) test\(s\)")
PYTEST_FOLDERS = ["tests/cli", "tests/python"]
WAITING = "tests/python/test_group_*.py"  # ranks that die, stop and are late: these tests wait more than they compute
NONE_COLLECTED = 5  # pytest's status where all of these are skipped, as without PyTorch


def run_ctest(build: Path) -> tuple[int, int]:
    report = build / "ctest.xml"
    report.unlink(missing_ok=True)
    # The counts stand at the end of a program's output, so it is the beginning that may be cut from the report.
    command = ["ctest", "--test-dir", build, "--output-on-failure", "--output-junit", report.name,
               "--test-output-truncation", "head"]
    subprocess.run(command, check=False)
    passed = failed = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        counts = {"PASSED": 0, "FAILED": 0}
        for verdict, count in CMOCKA_COUNT.findall(case.findtext("system-out") or ""):
            counts[verdict] += int(count)
        ok = case.get("status") == "run"
        passed += counts["PASSED"] or int(ok)
        failed += counts["FAILED"] or int(not ok)
    return passed, failed


def start_pytest(build: Path, name: str, arguments: list[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    report = build / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", *arguments]
    environment = os.environ | {"HEADRACE_BIN": str(build.resolve() / "headrace")}
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output and subprocess.STDOUT)


def count_pytest(build: Path, name: str, is_good: bool) -> tuple[int, int]:
    passed = failed = 0
    for suite in ElementTree.parse(build / f"{name}.xml").getroot().iter("testsuite"):
        bad = int(suite.get("failures")) + int(suite.get("errors"))
        passed += int(suite.get("tests")) - bad - int(suite.get("skipped"))
        failed += bad
    return passed, failed or int(not is_good)


def run_pytest(build: Path) -> list[tuple[int, int]]:
    """Two at once: the tests that wait, whose output comes last, and all others."""
    with tempfile.TemporaryFile() as output:
        waiting = start_pytest(build, "pytest-groups", sorted(glob.glob(WAITING)), output)
        others = start_pytest(build, "pytest", [f"--ignore-glob={WAITING}", *PYTEST_FOLDERS], None)
        counts = [count_pytest(build, "pytest", others.wait() == 0),
                  count_pytest(build, "pytest-groups", waiting.wait() in (0, NONE_COLLECTED))]
        output.seek(0)
        print(output.read().decode(errors="replace"), flush=True)
    return counts


def main() -> int:
    build = Path(sys.argv[1])
    results = [run_ctest(build), *run_pytest(build)]
    passed, failed = (sum(counts) for counts in zip(*results))
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
