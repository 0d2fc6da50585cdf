"""Checks that the built command and library carry what cmake/hardening.cmake asks for: `check_hardening.py BUILD`.

Both: relocations read-only after start (RELRO with immediate binding), no executable stack, no writable code, stack
protector and fortified calls in use. The command: position-independent. x86: indirect branches land on marks (objects).
"""

import re
import subprocess
import sys
from pathlib import Path


def readelf(*arguments: object) -> str:
    result = subprocess.run(["readelf", "-W", *map(str, arguments)], capture_output=True, text=True, check=True)
    return result.stdout


def check_file(path: Path, is_command: bool) -> list[str]:
    segments, dynamic, header = readelf("-l", path), readelf("-d", path), readelf("-h", path)
    symbols = readelf("--dyn-syms", path)
    found = re.search(r"^\s+GNU_STACK(?:\s+0x\w+){5}\s+([RWE ]{3})", segments, re.MULTILINE)
    stack = found[1].strip() if found else "not said"
    facts = {
        "no read-only relocations (RELRO)": "GNU_RELRO" in segments,
        "lazy binding: -z now is missing": re.search(r"\(FLAGS(_1)?\).*\b(BIND_)?NOW\b", dynamic) is not None,
        f"the stack is executable ({stack})": stack == "RW",
        "a segment is writable and executable": not re.search(r"\bLOAD\b.*\sRWE\s", segments),
        "text relocations": "TEXTREL" not in dynamic,
        "no stack protector in use": "__stack_chk_fail" in symbols,
        "no fortified call in use": re.search(r"\b__\w+_chk@", symbols) is not None,
        "a path to search libraries in": not re.search(r"\((RPATH|RUNPATH)\)", dynamic),
    }
    if is_command:
        facts["not position-independent"] = re.search(r"\(FLAGS_1\).*\bPIE\b", dynamic) is not None
    if "X86-64" in header:
        marks = readelf("-n", path.parent / "libheadrace.a")
        members = len(re.findall(r"^File: ", marks, re.MULTILINE))
        facts["objects without marks for indirect branches"] = marks.count("IBT, SHSTK") == members > 0
    return [f"{path}: {problem}" for problem, holds in facts.items() if not holds]


def main() -> int:
    build = Path(sys.argv[1])
    problems = check_file(build / "headrace", True) + check_file(build / "libheadrace.so", False)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
