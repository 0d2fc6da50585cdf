"""Checks what the tracked text says: no path of somebody's machine, no host of a package registry, no unfinished
business, and nothing about how or by whom something was made. The tree speaks of what it is.
"""

import re
import subprocess
import sys
from pathlib import Path

FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(?:work|home|root|mnt|Users|data)/\w",
    "a registry's host": r"\b(?:pypi\.org|pythonhosted\.org|(?:deb|security)\.debian\.org|crates\.io|npmjs\.org)\b",
    "unfinished business": r"\b(?:TODO|FIXME|XXX|HACK|WIP)\b",
    "a word of the workshop": r"\b(?i:sessions?|founders?|ceo|workplace|subagents?|chatbot|as an ai)\b",
    "an issue's number": r"(?i:\b(?:issue|pull request|pr)) ?#?\d+\b|(?<=\s)#\d+\b",
}
# Licences and data are other people's words.
SKIPPED = re.compile(r"^(?:LICENSE|tests/conformance/.*|tests/data/.*|fuzz/corpus/.*|tools/check_words\.py)$")


def main() -> int:
    names = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    patterns = {reason: re.compile(pattern) for reason, pattern in FORBIDDEN.items()}
    problems = []
    for name in filter(None, names):
        if SKIPPED.match(name) or not Path(name).is_file():
            continue
        lines = Path(name).read_bytes().decode(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            problems += [f"{name}:{number}: {reason}: {found.group()}"
                         for reason, pattern in patterns.items() for found in pattern.finditer(line)]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
