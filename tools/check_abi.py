"""Compares the binary interface of headrace.h with src/abi.txt: `check_abi.py [--update]`.

CC names the compiler, EMULATOR what runs its programs, where that is another than this machine.

Sizes and offsets of public structs, values of enumerations, and prototypes. The names come from the preprocessed
header, the numbers from a small program that the compiler makes. What a difference means: docs/abi.md.
"""

import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEADER = Path("include/headrace/headrace.h")
RECORD = Path("src/abi.txt")
CC = os.environ.get("CC", "cc").split()
EMULATOR = os.environ.get("EMULATOR", "").split()


def preprocessed() -> str:
    """The header's own text after macros, with every run of white space made one space."""
    result = subprocess.run([*CC, "-std=c99", "-E", "-Iinclude", str(HEADER)], capture_output=True, text=True,
                            check=True)
    kept, inside = [], False
    for line in result.stdout.splitlines():
        if line.startswith("#"):
            inside = f'"{HEADER}"' in line
        elif inside:
            kept.append(line)
    return re.sub(r"\s+", " ", " ".join(kept))


def members_of(body: str) -> list[str]:
    """`uint64_t start, stop; void (*free)(void *context)` gives start, stop, free."""
    members = []
    for declaration in filter(str.strip, body.split(";")):
        pointer = re.search(r"\(\*\s*(\w+)\)", declaration)
        names = [pointer[1]] if pointer else [re.sub(r"\[.*", "", part).split()[-1] for part in declaration.split(",")]
        members += [name.lstrip("*") for name in names]
    return members


def rows_of(text: str) -> list[str]:
    """printf() calls, one for each fact."""
    rows = []
    for name, body in re.findall(r"\bstruct (\w+) \{([^}]*)\}", text):
        rows.append(f'printf("struct {name}: %zu bytes\\n", sizeof(struct {name}));')
        rows += [f'printf("    {member}: at %zu, %zu bytes\\n", offsetof(struct {name}, {member}), '
                 f'sizeof(((struct {name} *)0)->{member}));' for member in members_of(body)]
    for name, body in re.findall(r"\benum (\w+) \{([^}]*)\}", text):
        rows.append(f'printf("enum {name}: %zu bytes\\n", sizeof(enum {name}));')
        rows += [f'printf("    {constant}: %d\\n", (int){constant});' for constant in re.findall(r"\bHR_\w+", body)
                 if not constant.endswith("_COUNT")]
    return rows


def prototypes_of(text: str) -> list[str]:
    plain = re.sub(r"__attribute__\(\(\w+\(\"\w+\"\)\)\) ?", "", text)
    return sorted(match.strip() for match in re.findall(r"(?<=[;}])[^;{}]*\bhr_\w+\([^;{}]*\)(?=;)", plain))


def measured(rows: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "abi_rows.c"), Path(folder, "abi_rows")
        source.write_text("#include <headrace/headrace.h>\n#include <stdio.h>\nint main(void)\n{\n"
                          + "\n".join(rows) + "\nreturn 0;\n}\n")
        subprocess.run([*CC, "-std=c99", "-Wall", "-Werror", "-Iinclude", str(source), "-o", str(program)], check=True)
        return subprocess.run([*EMULATOR, str(program)], capture_output=True, text=True, check=True).stdout


def main() -> int:
    text = preprocessed()
    rows, prototypes = rows_of(text), prototypes_of(text)
    declared = len(re.findall(r"^HR_API\b", HEADER.read_text(), re.MULTILINE))
    if len(prototypes) != declared:
        print(f"{HEADER}: {declared} functions, of which {len(prototypes)} were understood", file=sys.stderr)
        return 1
    now = ("The binary interface on 64-bit Linux, written by tools/check_abi.py --update. What may change: docs/abi.md"
           "\n\n" + measured(rows) + "\n" + "\n".join(prototypes) + "\n")
    if "--update" in sys.argv[1:]:
        RECORD.write_text(now)
        return 0
    difference = list(difflib.unified_diff(RECORD.read_text().splitlines(), now.splitlines(), str(RECORD), str(HEADER),
                                           lineterm=""))
    if difference:
        print("\n".join(difference), file=sys.stderr)
        print("The binary interface changed. Where docs/abi.md allows it: tools/check_abi.py --update", file=sys.stderr)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
