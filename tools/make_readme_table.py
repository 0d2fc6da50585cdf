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


def subject_row(what: str, result: dict, subject: dict) -> list[str]:
    """headrace and the fastest bare program on the same cores, taking turns."""
    return [what, f"{number(subject['gb_s'])} GB/s", f"bare reads and copies: {number(result['ruler']['gb_s'])} GB/s",
            number(subject["ratio_median"]), spread(subject["ratio_min"], subject["ratio_max"]),
            f"{result['pairs']} pairs"]


def gpu_hot_rows(section: dict) -> list[list[str]]:
    memories = {"arena": "", "each": ", one allocation a tensor", "into": ", into memory of the caller"}
    loaders = {"kept": "loader kept", "new": "new loader"}
    return [subject_row(f"{subject['bytes'] / 1e9:.2g} GB, {subject['tensors']} tensors, page cache to GPU, "
                        f"{loaders[subject['loader']]}{memories[subject['memory']]}", result, subject)
            for result in section.values() for subject in result["subjects"]]


def gpu_cores_rows(section: dict) -> list[list[str]]:
    return [subject_row(f"page cache to GPU on {cores} cores", result, result["subjects"][0])
            for cores, result in section.items()]


def gpu_threads_rows(section: dict) -> list[list[str]]:
    """The best thread count and the worst, and few threads against a bare program with as many."""
    of_all = sorted(section["all"]["subjects"], key=lambda subject: subject["gb_s"])
    rows = [subject_row(f"page cache to GPU, {subject['threads_asked']} readers asked for: the {name} of "
                        f"{len(of_all)} such counts", section["all"], subject)
            for name, subject in (("best", of_all[-1]), ("worst", of_all[0]))]
    return rows + [subject_row(f"page cache to GPU, {count} readers, and so the bare program", result,
                               result["subjects"][0])
                   for count, result in section.items() if count != "all"]


def gpu_small_rows(result: dict) -> list[list[str]]:
    """Many small tensors against few large ones, round by round."""
    names = {"arena": "", "each": ", one allocation a tensor"}
    pairs = {memory: [subject for subject in result["subjects"] if subject["memory"] == memory] for memory in names}
    rows = []
    for memory, (many, few) in pairs.items():
        ratios = sorted(m / f for m, f in zip(many["ratios"], few["ratios"]))
        rows.append([f"{many['tensors']:,} tensors, page cache to GPU{names[memory]}", f"{number(many['gb_s'])} GB/s",
                     f"{few['tensors']} tensors: {number(few['gb_s'])} GB/s", number(ratios[len(ratios) // 2]),
                     spread(ratios[0], ratios[-1]), f"{result['pairs']} pairs"])
    return rows


def peers_rows(peers: dict) -> list[list[str]]:
    names = {"safetensors": "safetensors", "pool": "4 threads, as Transformers", "fastsafetensors": "fastsafetensors"}
    own = {row["allocator"]: row for row in peers["rows"] if row["peer"] == "headrace"}
    rows = [[f"Python: {peers['bytes'] / 1e9:.1f} GB to GPU, PyTorch, {row['allocator']} allocator",
             f"{number(own[row['allocator']]['gb_s'])} GB/s", f"{names[row['peer']]}: {number(row['gb_s'])} GB/s",
             number(row["headrace_times_as_fast"]), spread(row["least"], row["most"]), f"{peers['rounds']} rounds"]
            for row in peers["rows"] if row["peer"] in names]
    each = peers["per_tensor"]
    return rows + [["Python: load to GPU, PyTorch, a tensor", f"{number(each['load_us'])} µs",
                    f"`empty` alone: {number(each['empty_us'])} µs", "", "",
                    f"{each['tensors']:,} tensors, {each['runs']} runs"]]


ROWS = {"gpu-hot": gpu_hot_rows, "gpu-cores": gpu_cores_rows, "gpu-threads": gpu_threads_rows,
        "gpu-small": gpu_small_rows, "peers": peers_rows, "host": host_rows, "header": header_rows,
        "python": python_rows}


def section(path: Path) -> str:
    result = json.loads(path.read_text())
    machine = result["machine"]
    rows = [row for name, make in ROWS.items() if name in result for row in make(result[name])]
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
