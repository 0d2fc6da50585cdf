"""Checks the rules of the tree: the direction of #include between its parts, one name a file, an opening comment.

The table says for each part which other parts it may include. What uses the library from outside (the command,
benchmarks, examples) includes the public header and its own files only.
"""

import re
import subprocess
import sys
from pathlib import Path

PUBLIC = "headrace/headrace.h"
MAY_INCLUDE = {
    "src/base": set(),
    "src/format": {"base"},
    "src/catalog": {"base", "format"},
    "src/convert": {"base"},
    "src/plan": {"base", "format"},
    "src/io": {"base"},
    "src/topo": {"base"},
    "src/device": {"base", "convert", "topo"},
    "src/engine": {"base", "format", "catalog", "convert", "plan", "io", "topo", "device"},
    "src/probe": {"base", "io", "device"},
    "src/writer": {"base", "format", "device"},
    "src": {"base", "format", "catalog", "convert", "plan", "io", "topo", "device", "engine"},
    "bench": {"convert"},  # which has no public entry of its own
}
OUTSIDE = ["cli", "bench", "examples", "python"]
# Names that a build system or a language fixes may occur many times.
MAY_REPEAT = {"CMakeLists.txt", "__init__.py", "conftest.py", "README.md", "meson.build", "pyproject.toml"}
STAND_INS = [Path("python/headrace/compat"), Path("tests/support/servers")]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z", *patterns], capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.split("\0") if name and Path(name).is_file()]


def part_of(file: Path) -> str:
    """The folder below src for what lies in one, else the first folder."""
    return "/".join(file.parts[:-1][:2]) if file.parts[0] == "src" else file.parts[0]


def wrong_includes(file: Path) -> list[str]:
    part = part_of(file)
    if part in ("tests", "fuzz"):
        return []
    allowed = MAY_INCLUDE.get(part)
    if allowed is None and part not in OUTSIDE and part != "include":
        return [f"{file}: {part} is not in the table of tools/check_includes.py"]
    problems = []
    for bracket, name in INCLUDE.findall(file.read_text()):
        if name == PUBLIC or (bracket == "<" and not Path("src", name).exists()):
            continue
        own = (file.parent / name).exists() or Path("src", name).exists() and f"src/{Path(name).parts[0]}" == part
        if not own and Path(name).parts[0] not in (allowed or set()):
            problems.append(f"{file}: must not include {name}")
        if part in OUTSIDE and ".." in Path(name).parts:
            problems.append(f"{file}: must not reach out of its folder: {name}")
    return problems


def has_given_name(file: Path) -> bool:
    """Whether its name is not ours to choose: modules that stand in for those of another package have theirs."""
    return file.name in MAY_REPEAT or any(file.is_relative_to(folder) for folder in STAND_INS)


def repeated_names(files: list[Path]) -> list[str]:
    first: dict[str, Path] = {}
    problems = []
    for file in files:
        if not has_given_name(file) and first.setdefault(file.name, file) != file:
            problems.append(f"{file}: its name is taken by {first[file.name]}")
    return problems


def without_opening_comment(file: Path) -> bool:
    text = file.read_text().removeprefix("#!/usr/bin/env python3\n").lstrip()
    return not text.startswith(("/*", "//", '"""', "#"))


def main() -> int:
    sources = tracked("*.c", "*.h")
    problems = [problem for file in sources for problem in wrong_includes(file)]
    problems += repeated_names(tracked())
    opened = sources + tracked("*.py", "*.sh", "*.cu", "*.cpp", "Makefile", "CMakeLists.txt")
    problems += [f"{file}: does not open with a comment" for file in opened if without_opening_comment(file)]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
