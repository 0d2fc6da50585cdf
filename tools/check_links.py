"""Checks that what the tracked *.md files link to in this tree is there: files, folders, and headings.

Links to elsewhere are not followed.
"""

import re
import subprocess
import sys
from pathlib import Path

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors_of(path: Path) -> set[str]:
    """Headings as links spell them: lower case, blanks as hyphens, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def problem_of(page: Path, link: str) -> str | None:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return f"there is no {target}"
    if anchor and anchor not in anchors_of(target):
        return f"{target} has no heading '{anchor}'"
    return None


def main() -> int:
    names = subprocess.run(["git", "ls-files", "-z", "*.md"], capture_output=True, text=True, check=True).stdout
    problems = []
    for page in map(Path, filter(None, names.split("\0"))):
        for link in LINK.findall(FENCED.sub("", page.read_text())):
            problem = None if re.match(r"[a-z]+:", link) else problem_of(page, link)
            problems += [f"{page}: ({link}): {problem}"] if problem else []
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
