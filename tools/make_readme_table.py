"""Writes the table of measurements in README.md from bench/results/*.json: `make_readme_table.py [--check]`.

A result file is what bench/run.py keeps. `--check` fails where the table is not in step with the files.
"""

import json
import re
import statistics
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
    names = {name: f"{name} {peers['versions'].get(name, '')}" for name in ("safetensors", "fastsafetensors")}
    names["pool"] = "4 threads, as Transformers"
    own = {row["allocator"]: row for row in peers["rows"] if row["peer"] == "headrace"}
    pool = {row["allocator"]: row for row in peers["rows"] if row["peer"] == "pool"}

    def is_comparable(row: dict) -> bool:
        """fastsafetensors reads with O_DIRECT from version 0.4 on: from the drive, though the page cache is hot. Then
        it is slower than the pool, else faster. Such a row would compare a drive with the page cache."""
        return row["peer"] in names and (row["peer"] != "fastsafetensors" or
                                         row["gb_s"] > pool[row["allocator"]]["gb_s"])

    rows = [[f"Python: {peers['bytes'] / 1e9:.1f} GB to GPU, PyTorch, {row['allocator']} allocator",
             f"{number(own[row['allocator']]['gb_s'])} GB/s", f"{names[row['peer']]}: {number(row['gb_s'])} GB/s",
             number(row["headrace_times_as_fast"]), spread(row["least"], row["most"]), f"{peers['rounds']} rounds"]
            for row in peers["rows"] if is_comparable(row)]
    each = peers["per_tensor"]
    return rows + [["Python: load to GPU, PyTorch, a tensor", f"{number(each['load_us'])} µs",
                    f"`empty` alone: {number(each['empty_us'])} µs", "", "",
                    f"{each['tensors']:,} tensors, {each['runs']} runs"]]


PLACES = {"cpu": "host memory", "cuda:0": "GPU"}


def cold_rows(cold: dict) -> list[list[str]]:
    """From the drive, and what that left in the page cache; headrace and the raw reader taking turns."""
    part, rows = cold["cold"], []
    of = f"{part['pairs']} pairs"
    for row in part["subjects"]:
        what = f"{cold['bytes'] / 1e9:.1f} GB, not in the page cache, to {PLACES[row['device']]}"
        rows.append([what, f"{number(row['gb_s'])} GB/s", f"bare `O_DIRECT` reads: {number(part['raw']['gb_s'])} GB/s",
                     number(row["ratio_median"]), spread(row["ratio_min"], row["ratio_max"]), of])
        rows.append([f"the same: page cache grown by, of the bytes; {row['cpu_seconds_per_gb']:.2f} CPU seconds per GB",
                     f"{row['page_cache_gained_percent_max']:.2f} % at most", "", "", "", of])
    return rows


def ahead_rows(ahead: dict) -> list[list[str]]:
    """A cold load after a pause, with reading ahead in it against without."""
    what = (f"{ahead['bytes'] / 1e9:.1f} GB, not in the page cache, to host memory, {ahead['pause_s']:g} s after "
            f"`headrace.begin()`")
    return [[what, f"{number(ahead['ahead_s'])} s", f"without: {number(ahead['cold_s'])} s",
             number(ahead["ratio_median"]), spread(ahead["ratio_min"], ahead["ratio_max"]), f"{ahead['pairs']} pairs"]]


def cold_half_rows(cold: dict) -> list[list[str]]:
    """Half resident against the slower half alone, and the routes on files that are resident."""
    rows = []
    for row in cold["half"]["subjects"]:
        expected = sorted(ratio * seconds for ratio, seconds in zip(row["ratios"], row["seconds"], strict=True))
        rows.append([f"{cold['bytes'] / 1e9:.1f} GB, half in the page cache, to {PLACES[row['device']]}",
                     f"{number(sorted(row['seconds'])[len(expected) // 2])} s",
                     f"the slower half alone: {number(expected[len(expected) // 2])} s", number(row["ratio_median"]),
                     spread(row["ratio_min"], row["ratio_max"]), f"{cold['half']['pairs']} rounds"])
    own = {"auto": "asking what the page cache holds", "uring": "`--route uring`"}
    pread = {row["device"]: row for row in cold["hot"]["subjects"] if row["route_asked"] == "pread"}
    rows += [[f"page cache to {PLACES[row['device']]}, {own[row['route_asked']]}", f"{number(row['gb_s'])} GB/s",
              f"`--route pread`: {number(pread[row['device']]['gb_s'])} GB/s", number(row["ratio_median"]),
              spread(row["ratio_min"], row["ratio_max"]), f"{cold['hot']['pairs']} rounds"]
             for row in cold["hot"]["subjects"] if row["route_asked"] in own and "missing" not in row]
    return rows


def cold_peers_rows(peers: dict) -> list[list[str]]:
    """The other's figure alone: headrace's stands in the rows of the cold loads."""
    return [[f"Python: not in the page cache, to {PLACES[row['device']]}, PyTorch, CPU seconds per GB", "",
             f"safetensors: {number(row['cpu_seconds_per_gb'])}", "", "", f"{peers['rounds']} rounds"]
            for row in peers["rows"]]


def bitwise_rows(bitwise: dict) -> list[list[str]]:
    count, tensors = bitwise["comparisons"], sum(row.get("tensors", 0) for row in bitwise["rows"])
    return [[f"GPU: bit for bit what the safetensors package reads, {tensors:,} tensors",
             f"{count - bitwise['different']} the same", "", "", "", f"{count} comparisons"]]


def gpu_cast_rows(section: dict) -> list[list[str]]:
    """Dtypes converted on the way, against the plain load of the same file in the same rounds."""
    rows = []
    for result in section.values():
        plain, cast = result["subjects"]
        source = {"BF16": "F32", "F32": "BF16"}[cast["dtype"]]
        rows.append([f"{cast['bytes'] / 1e9:.1f} GB of {source}, page cache to GPU, made {cast['dtype']} on the way",
                     f"{number(cast['gb_s'])} GB/s", f"as it is stored: {number(plain['gb_s'])} GB/s",
                     number(cast["plain_ratio_median"]), spread(cast["plain_ratio_min"], cast["plain_ratio_max"]),
                     f"{result['pairs']} pairs"])
    return rows


def group_rows(group: dict) -> list[list[str]]:
    """Ranks with a GPU each, and bare programs on all GPUs at once, taking turns."""
    names = {"rows": "cut by rows", "columns": "cut by columns", "replicated": "whole on each"}
    ruler = sorted(rate for rate in group["ruler"]["gb_s"] if rate)
    return [[f"{group['bytes'] / 1e9:.1f} GB, page cache to {group['world']} GPUs, a process each, {names[case]}; read "
             f"{row['read_share']:.2f} times in all", f"{number(row['gb_s_median'])} GB/s",
             f"bare programs on all: {number(ruler[len(ruler) // 2])} GB/s", number(row["ratio_median"]),
             spread(row["ratio_min"], row["ratio_max"]), f"{group['pairs']} pairs"]
            for case, row in group["cases"].items() if case in names]


def transformers_rows(section: dict) -> list[list[str]]:
    """from_pretrained as it is, and the start of a program, without what headrace does for it and with."""
    what = {"dense": "Llama", "mixture": "mixture of experts"}
    rows = [[f"Transformers: {section[name]['bytes'] / 1e9:.1f} GB, {what[name]}, page cache to GPU",
             section[name]["headrace"], f"without headrace: {number(section[name]['stock']['seconds'])} s",
             section[name]["stock"]] for name in what]
    if section["begin"]:
        begun = section["begin"]
        rows.append([f"Transformers: {begun['bytes'] / 1e9:.1f} GB, not in the page cache, from the start of Python "
                     "to a token, `headrace.begin()` first", begun["begin"],
                     f"without: {number(begun['headrace']['seconds'])} s", begun["headrace"]])
    return [[text, f"{number(own['seconds'])} s", other, *compared(own["trials"], its["trials"])]
            for text, own, other, its in rows]


def compared(own: list[float], other: list[float]) -> list[str]:
    ratios = [b / a for a, b in zip(own, other, strict=True)]
    return [number(statistics.median(ratios)), spread(min(ratios), max(ratios)), f"{len(ratios)} rounds"]


def write_rows(write: dict) -> list[list[str]]:
    what = f"{write['bytes'] / 1e9:.1f} GB, {write['tensors']} tensors, host memory to a file on the disk, by "
    return [[what + f"{write['threads']} threads", f"{number(write['headrace_gb_s'])} GB/s",
             f"bare `pwrite`: {number(write['ruler_gb_s'])} GB/s", number(write["ratio_median"]),
             spread(write["ratio_min"], write["ratio_max"]), f"{write['pairs']} pairs"]]


ROWS = {"gpu-hot": gpu_hot_rows, "gpu-cores": gpu_cores_rows, "gpu-threads": gpu_threads_rows,
        "gpu-small": gpu_small_rows, "peers": peers_rows, "cold": cold_rows,
        "ahead": ahead_rows, "cold-half": cold_half_rows, "cold-peers": cold_peers_rows, "bitwise": bitwise_rows,
        "gpu-cast": gpu_cast_rows, "transformers": transformers_rows, "group": group_rows, "host": host_rows,
        "write": write_rows, "header": header_rows, "python": python_rows}


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
