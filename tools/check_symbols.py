"""Checks what the built library shows and what it uses: `check_symbols.py BUILD`.

Exported: the symbols of libheadrace.so are those of src/headrace.map and the functions that headrace.h declares, and
the manual page headrace(3) lists each of them.
Used: only src/base/sys.c calls the allocator and the operating system, and nothing prints, exits or reads the
environment. The format and plan parts ask even the table of system calls for nothing but memory.
"""

import re
import subprocess
import sys
from pathlib import Path

NEVER = {"printf", "puts", "putchar", "fprintf", "perror", "getenv", "secure_getenv", "exit", "_exit", "abort",
         "system", "popen", "strtok", "setlocale"}
SYSTEM = {"malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "strdup", "strndup", "asprintf",
          "vasprintf", "open", "openat", "close", "read", "pread", "preadv", "preadv2", "write", "pwrite", "stat",
          "fstat", "lstat", "statx", "fstatfs", "faccessat", "mmap", "munmap", "madvise", "mincore", "posix_fadvise",
          "fopen", "opendir", "readdir", "closedir", "realpath", "readlink", "syscall", "clock_gettime", "time",
          "gettimeofday", "nanosleep", "pthread_create", "io_uring_queue_init", "io_uring_queue_exit",
          "io_uring_submit"}
SYSTEM_OBJECT = "sys.c.o"
PURE_FOLDERS = ("src/format", "src/plan")

def nm(*arguments: object) -> list[list[str]]:
    command = ["nm", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in result.stdout.splitlines()]


def exported(library: Path) -> set[str]:
    return {words[2].split("@")[0] for words in nm("-D", "--defined-only", library) if words[1] != "A"}


def in_map() -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", Path("src/headrace.map").read_text(), flags=re.DOTALL)
    return set(re.findall(r"\bhr_\w+(?=;)", text))


def in_header() -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", Path("include/headrace/headrace.h").read_text(), flags=re.DOTALL)
    return set(re.findall(r"^HR_API\b[^;(]*\b(hr_\w+)\(", text, re.MULTILINE))


def in_manual() -> set[str]:
    lines = [line for line in Path("docs/man/headrace.3").read_text().splitlines() if line.startswith(".It Fn ")]
    return {word for line in lines for word in line.split() if word.startswith("hr_")}


def wrong_exports(library: Path) -> list[str]:
    views = {"libheadrace.so": exported(library), "headrace.map": in_map(), "headrace.h": in_header(),
             "headrace.3": in_manual()}
    names = set.union(*views.values())
    return [f"{name}: not in {where}" for name in sorted(names) for where, view in views.items() if name not in view]


def wrong_uses(archive: Path) -> list[str]:
    problems = []
    for words in nm("-A", "-u", archive):
        object_name, symbol = words[0].split(":")[1], re.sub(r"^__isoc\d+_|64(v2)?$|@.*$", "", words[-1])
        if symbol in NEVER or symbol in SYSTEM and object_name != SYSTEM_OBJECT:
            problems.append(f"{object_name}: must not use {symbol}")
    for folder in PURE_FOLDERS:
        for source in Path(folder).glob("*.c"):
            calls = set(re.findall(r"\bhr_sys->(\w+)", source.read_text())) - {"alloc", "resize"}
            problems += [f"{source}: must not use hr_sys->{call}" for call in sorted(calls)]
    return problems


def main() -> int:
    build = Path(sys.argv[1])
    problems = wrong_exports(build / "libheadrace.so") + wrong_uses(build / "libheadrace.a")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
