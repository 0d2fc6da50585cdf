"""Checks that the tracked text writes names as tools/terms.txt wants them."""

import re
import subprocess
import sys
from pathlib import Path

TERMS = Path("tools/terms.txt")
# Licences and data are other people's words, and some tests are about wrong ones.
SKIPPED = re.compile(r"^(?:LICENSE|tools/terms\.txt|tests/conformance/.*|fuzz/corpus/.*|fuzz/dict/.*)$")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`|\]\([^)]*\)|<!--.*?-->|^    .*?$|^\.(?:Cm|Ql|Pa) .*?$",
                  re.DOTALL | re.MULTILINE)


def patterns() -> tuple[dict[str, str], dict[str, str]]:
    """Wrong -> right, everywhere and in prose."""
    everywhere, prose = {}, {}
    for line in TERMS.read_text().splitlines():
        if line and not line.startswith("#"):
            right, wrong, wrong_in_prose = (part.strip() for part in line.split("|"))
            everywhere |= dict.fromkeys(wrong.split(), right)
            prose |= dict.fromkeys(wrong_in_prose.split(), right)
    return everywhere, everywhere | prose


def blank_code(text: str) -> str:
    """Code replaced by blanks, so that lines keep their numbers."""
    return CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def problems_of(name: str, text: str, wrong: dict[str, str]) -> list[str]:
    pattern = re.compile(r"(?<![\w/.-])(?:" + "|".join(map(re.escape, wrong)) + r")(?![\w/]|[.-]\w|\()")
    return [f"{name}:{number}: '{found[0]}' is written '{wrong[found[0]]}'"
            for number, line in enumerate(text.splitlines(), 1) for found in pattern.finditer(line)]


def main() -> int:
    names = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    everywhere, in_prose = patterns()
    problems = []
    for name in filter(None, names):
        if SKIPPED.match(name) or not Path(name).is_file():
            continue
        text = Path(name).read_bytes().decode(errors="replace")
        is_prose = name.endswith((".md", ".1", ".3"))
        problems += problems_of(name, blank_code(text) if is_prose else text, in_prose if is_prose else everywhere)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
