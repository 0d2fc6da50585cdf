"""Runs the C tests (ctest) and the Python tests (pytest) of a build folder and ends with "N passed, N failed".

A cmocka program counts as the tests that it reports, any other program as one, and a program that dies as one failed
test more. The exit status is 0 only when something passed and nothing failed.
"""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

CMOCKA_COUNT = re.compile(r"\[  (PASSED|FAILED)  \] (\d+) test\(s\)")
PYTEST_FOLDERS = ["tests/cli", "tests/python"]


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


def run_pytest(build: Path) -> tuple[int, int]:
    folders = [folder for folder in PYTEST_FOLDERS if list(Path(folder).glob("test_*.py"))]
    if not folders:
        return 0, 0
    report = build / "pytest.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", *folders]
    environment = os.environ | {"HEADRACE_BIN": str(build.resolve() / "headrace")}
    status = subprocess.run(command, check=False, env=environment).returncode
    passed = failed = 0
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        bad = int(suite.get("failures")) + int(suite.get("errors"))
        passed += int(suite.get("tests")) - bad - int(suite.get("skipped"))
        failed += bad
    return passed, failed or int(status != 0)


def main() -> int:
    build = Path(sys.argv[1])
    results = [run_ctest(build), run_pytest(build)]
    passed, failed = (sum(counts) for counts in zip(*results))
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
