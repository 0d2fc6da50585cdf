"""Writes the table of measurements in README.md from bench/results/*.json: `make_readme_table.py [--check]`.

A result file is what bench/run.py keeps. `--check` fails where the table is not in step with the files.
"""

import json
import re
import sys
from pathlib import Path

README = Path("README.md")
RESULTS = Path("bench/results")
BEGIN, END = "<!-- measured: tools/make_readme_table.py -->\n", "<!-- end of measured -->"


def number(value: float) -> str:
    """Three digits: more mean nothing on a machine that does other work as well."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def host_rows(host: dict) -> list[list[str]]:
    """headrace and the best bare program that does the same, taking turns."""
    names = {"touched": "into memory that was touched before", "fresh": "into new memory"}
    what = f"{host['bytes'] / 1e9:.1f} GB, {host['tensors']} tensors, {host['files']} files from the page cache, "
    return [[what + names[case], f"{number(host[case]['headrace_gb_s'])} GB/s",
             f"bare `preadv`: {number(host[case]['ruler_gb_s'])} GB/s", number(host[case]["ratio_median"]),
             spread(host[case]["ratio_min"], host[case]["ratio_max"]), f"{host['pairs']} pairs"]
            for case in names if case in host]


def header_rows(header: dict) -> list[list[str]]:
    return [[f"open a file and list its {row['tensors']:,} tensors", f"{number(row['headrace']['median_ms'])} ms",
             f"safetensors: {number(row['reference']['median_ms'])} ms", number(row["ratio"]["median"]),
             spread(row["ratio"]["min"], row["ratio"]["max"]), f"{row['trials']} trials"]
            for row in header["results"]]


def python_rows(python: dict) -> list[list[str]]:
    """What Python adds to making empty tensors alone."""
    of = f"{python['tensors']:,} tensors, {python['runs']} runs"
    names = {"torch": "PyTorch", "numpy": "NumPy"}
    alone = {row["what"].split(".")[0]: row for row in python["rows"] if row["what"].endswith("empty alone")}
    rows = []
    for row in python["rows"]:
        if "above_framework_us" in row:
            way, framework = row["what"].rsplit(", ", 1)
            rows.append([f"Python: {way}, {names[framework]}, a tensor", f"{number(row['median_us'])} µs",
                         f"`empty` alone: {number(alone[framework]['median_us'])} µs", "", "", of])
    return rows


def section(path: Path) -> str:
    result = json.loads(path.read_text())
    machine = result["machine"]
    rows = (host_rows(result["host"]) if "host" in result else []) + \
        (header_rows(result["header"]) if "header" in result else []) + \
        (python_rows(result["python"]) if "python" in result else [])
    lines = [f"On {result['date']}, {machine['cores']} cores of {machine['processor']}, "
             f"{machine['memory_kib'] / (1 << 20):.0f} GiB, Linux {machine['kernel']}:",
             f"[`{path.as_posix()}`]({path.as_posix()}).",
             "",
             "| what | headrace | other | times as fast | least to most | of |",
             "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def table() -> str:
    paths = sorted(RESULTS.glob("*.json"))
    if not paths:
        return "No result file is in `bench/results/` yet, so no figure stands here.\n"
    return "\n".join(section(path) for path in paths)


def main() -> int:
    text = README.read_text()
    wanted, count = re.subn(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{table()}\n{END}", text,
                            flags=re.DOTALL)
    if count != 1:
        print(f"{README} has not one place that begins with {BEGIN.strip()} and ends with {END}", file=sys.stderr)
        return 1
    if "--check" not in sys.argv[1:]:
        README.write_text(wanted)
    elif text != wanted:
        print(f"the table in {README} is not in step with {RESULTS}: run tools/make_readme_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
