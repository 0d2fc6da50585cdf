"""The tables of the pages list what there is: docs/tuning.md every option once, as headrace.h, --help and the Python
package have it; docs/format.md the dtypes and the limits; docs/abi.md the structs.
"""

import inspect
import re

import pytest

COLUMNS = ["what", "c", "command", "python", "environment", "default"]
VERBS = ["check", "convert", "diff", "doctor", "hash", "load", "ls", "plan", "probe"]
# Members that are no options, and options that say what is asked for, not how it is done.
NOT_MEMBERS = {"size", "reserved", "reserved_tail"}
NOT_OPTIONS = {"--help", "--json", "--match", "--slice", "--shard", "--dtype", "--repeat", "--budget", "--no-save",
               "--check"}
NOT_ARGUMENTS = {"self", "names", "slices", "shard", "rank", "world", "dtype", "into", "loader", "source", "revision",
                 "tensors", "path"}
MEMBER = re.compile(r"(\w+)(?:\)\([^)]*\))?;")


@pytest.fixture(scope="module")
def rows(root) -> list[dict[str, str]]:
    found = []
    for line in (root / "docs" / "tuning.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| C: ") or line.startswith("| what"):
            struct = re.search(r"`(\w+)`", line)[1]
        elif line.startswith("| ") and not line.startswith("| ---"):
            found.append(dict(zip(COLUMNS, cells), struct=struct))
    assert len(found) > 10 and all(len(row) == len(COLUMNS) + 1 for row in found)
    return found


@pytest.fixture(scope="module")
def helps(headrace) -> dict[str, str | None]:
    """Option -> its variable, of all verbs."""
    options = {}
    for verb in VERBS:
        for line in headrace.run(verb, "--help").stdout.splitlines():
            if line.startswith("  --"):
                variable = re.search(r"\[(HEADRACE_\w+)\]", line)
                options[line.split()[0]] = variable and variable[1]
    return {option: variable for option, variable in options.items() if option not in NOT_OPTIONS}


def names_in(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def members_of(header: str, struct: str) -> set[str]:
    body = re.search(rf"struct {struct} {{(.*?)\n}};", header, re.DOTALL)[1]
    return set(MEMBER.findall(re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))) - NOT_MEMBERS


@pytest.mark.parametrize("struct", ["hr_open_options", "hr_loader_options", "hr_load_options", "hr_write_options"])
def test_members(root, rows, struct):
    listed = names_in([row["c"] for row in rows if row["struct"] == struct])
    assert len(listed) == len(set(listed))
    assert set(listed) == members_of((root / "include/headrace/headrace.h").read_text(), struct)


def test_command(rows, helps):
    listed = names_in([row["command"] for row in rows])
    assert sorted(listed) == sorted(helps)
    for row in rows:
        for option in names_in([row["command"]]):
            assert [helps[option] or ""] == (names_in([row["environment"]]) or [""]), option


def arguments_of(function) -> set[str]:
    return set(inspect.signature(function).parameters) - NOT_ARGUMENTS


def test_python(rows):
    headrace = pytest.importorskip("headrace")
    functions = {"open": headrace.open, "start": headrace.Checkpoint.start, "Loader": headrace.Loader.__init__,
                 "begin": headrace.begin, "save_file": headrace.save_file}
    listed = {name: set() for name in functions}
    for text in names_in([row["python"] for row in rows]):
        name, argument = re.fullmatch(r"(\w+)\((\w+)=\)", text).groups()
        listed[name].add(argument)
    listed["begin"] |= listed["open"] - {"threads"}
    assert listed == {name: arguments_of(function) for name, function in functions.items()}


def test_environment(root, rows):
    """Both the command and the package read what is listed, and nothing else."""
    listed = set(names_in([row["environment"] for row in rows]))
    package = "".join(path.read_text() for path in (root / "python" / "headrace").glob("*.py"))
    command = "".join(path.read_text() for path in (root / "cli").glob("*.[ch]"))
    assert listed == set(re.findall(r"HEADRACE_[A-Z_]+\b", package)) | set(re.findall(r'"(HEADRACE_[A-Z_]+)"', command))
    for row in rows:
        for variable in names_in([row["environment"]]):
            assert f"({variable[len('HEADRACE_'):].lower()}=)" in row["python"]


DEFAULTS = {"hr_loader_options.thread_count": ["HR_READER_DEFAULT_MAX", "HR_READER_MAX"],
            "hr_loader_options.chunk_bytes": ["HR_CHUNK_BYTES_DEFAULT", "HR_CHUNK_BYTES_MIN", "HR_CHUNK_BYTES_MAX"],
            "hr_loader_options.queue_depth": ["HR_QUEUE_DEPTH_DEFAULT", "HR_QUEUE_DEPTH_MAX"],
            "hr_loader_options.arena_bytes": ["HR_ARENA_BYTES_DEFAULT"],
            "hr_write_options.thread_count": ["HR_WRITE_THREAD_DEFAULT_MAX", "HR_READER_MAX"],
            "hr_write_options.align": ["HR_WRITE_ALIGN_MAX"],
            "hr_open_options.thread_count": ["HR_OPEN_THREAD_DEFAULT"]}


def shown(value: str) -> str:
    """`(4u << 20)` as "4 MiB"."""
    shifted = re.fullmatch(r"\((\d+)u? << (\d+)\)", value)
    if not shifted:
        return value
    return f"{shifted[1]} { {'10': 'KiB', '20': 'MiB', '30': 'GiB'}[shifted[2]]}"


@pytest.fixture(scope="module")
def limits(root) -> dict[str, str]:
    return dict(re.findall(r"#define (HR_\w+) (.+)", (root / "src/base/limits.h").read_text()))


def test_defaults(rows, limits):
    by_member = {f"{row['struct']}.{name}": row["default"] for row in rows for name in names_in([row["c"]])}
    for member, bounds in DEFAULTS.items():
        for bound in bounds:
            assert re.search(rf"\b{shown(limits[bound])}\b", by_member[member]), (member, bound)


LIMITS = {"header": "HR_HEADER_BYTES_MAX", "nesting of JSON": "HR_JSON_DEPTH_MAX", "index": "HR_INDEX_BYTES_MAX",
          "dimensions of a tensor, strict mode": "HR_RANK_MAX", "files of a checkpoint": "HR_FILE_COUNT_MAX",
          "files that one load keeps open": "HR_OPEN_FILES_MAX", "reader threads of a load": "HR_READER_MAX"}


def test_limits(root, limits):
    page = (root / "docs" / "format.md").read_text()
    listed = dict(re.findall(r"^\| ([^|]+?) \| ([\d,]+)", page[page.index("## Limits"):], re.MULTILINE))
    assert {what: value.replace(",", "") for what, value in listed.items()} == {
        what: limits[name].rstrip("u") for what, name in LIMITS.items()}


def test_dtypes(root):
    listed = dict(re.findall(r"X\((\w+), (\d+)\)", (root / "include/headrace/headrace.h").read_text()))
    page = (root / "docs" / "format.md").read_text()
    page = page[page.index("## Dtypes"):page.index("## Strict")]
    shown = {name: bits for bits, names in re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
             for name in re.findall(r"`(\w+)`", names)}
    assert shown == listed


def test_structs(root):
    """Each public struct stands once in the table of what may grow, those that begin with `size` where it says so."""
    header = (root / "include/headrace/headrace.h").read_text()
    bodies = dict(re.findall(r"^struct (hr_\w+) {\n(.*?)^};", header, re.MULTILINE | re.DOTALL))
    page = (root / "docs" / "abi.md").read_text()
    rows = [line.split("|")[1] for line in page[page.index("| structs |"):].splitlines() if line.startswith("| `hr_")]
    listed = [(name, "begin with `size`" in row.replace("begins", "begin")) for row in rows
              for name in re.findall(r"`(hr_\w+)`", row)]
    assert sorted(listed) == sorted((name, body.lstrip().startswith("size_t size;")) for name, body in bodies.items())
