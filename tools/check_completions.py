"""Checks that bash and zsh complete what the command has: `check_completions.py COMMAND`.

The completion functions run in their shells, zsh's with `_arguments` and `_describe` replaced by functions that print.
What they offer must be the verbs of `headrace --help` and the options of `headrace VERB --help`, no more and no less.
"""

import re
import subprocess
import sys
from pathlib import Path

BASH = """
set -u
source completions/headrace.bash
COMP_WORDS=(headrace "${@:2}") COMP_CWORD=$(($# - 1))
_headrace "$1" "${@: -1}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
setopt extended_glob # as zsh does for completion functions
_arguments() { print -rl -- "$@" }
_describe() { print -rl -- ${(P)2} }
words=("$@") CURRENT=$#
source completions/_headrace
"""


def output(*command: object) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def bash_offers(command: Path, *words: str) -> set[str]:
    return set(output("bash", "--norc", "-c", BASH, "bash", command, *words).split())


def zsh_offers(command: Path, *words: str) -> str:
    return output("zsh", "-f", "-c", ZSH, "zsh", command, *words)


def problems_of(where: str, found: set[str], wanted: set[str]) -> list[str]:
    return [f"{where}: lacks {name}" for name in sorted(wanted - found)] + [
        f"{where}: offers {name}, which does not exist" for name in sorted(found - wanted)
    ]


def check_verb(command: Path, verb: str) -> list[str]:
    options = set(re.findall(r"^  (--[a-z-]+)", output(command, verb, "--help"), re.MULTILINE))
    problems = [] if "--help" in options else [f"{verb}: the help could not be read"]
    problems += problems_of(f"bash: {verb}", bash_offers(command, verb, "--"), options)
    specs = set(re.findall(r"^\*?(--[a-z-]+)", zsh_offers(command, verb, "--"), re.MULTILINE))
    return problems + problems_of(f"zsh: {verb}", specs, options)


def check_values(command: Path) -> list[str]:
    routes = {"auto", "pread", "uring", "mmap", "gds"}
    problems = problems_of("bash: load --route", bash_offers(command, "load", "--route", ""), routes)
    problems += problems_of("bash: load --threads", bash_offers(command, "load", "--threads", ""), set())
    problems += problems_of("bash: load --route=", bash_offers(command, "load", "--route", "=", "p"), {"pread"})
    devices = {"auto", "cpu", "cuda"}
    problems += problems_of("bash: hash --device", bash_offers(command, "hash", "--device", ""), devices)
    if ":DEVICE:(auto cpu cuda)" not in zsh_offers(command, "hash", "--"):
        problems.append("zsh: hash --device: lacks its values")
    if ":ROUTE:(auto pread uring mmap gds)" not in zsh_offers(command, "load", "--"):
        problems.append("zsh: load --route: lacks its values")
    if "README.md" not in bash_offers(command, "ls", "READ"):
        problems.append("bash: ls: does not complete paths")
    return problems


def main() -> int:
    command = Path(sys.argv[1]).resolve()
    first_words = set(re.findall(r"^  ([a-z-]+)  ", output(command, "--help"), re.MULTILINE))
    verbs = {word for word in first_words if not word.startswith("-")}
    problems = [] if verbs else ["the help lists no verb"]
    problems += problems_of("bash", bash_offers(command, ""), first_words)
    problems += problems_of("zsh", set(re.findall(r"^([^:]+):", zsh_offers(command, ""), re.MULTILINE)), first_words)
    for verb in sorted(verbs):
        problems += check_verb(command, verb)
    problems += check_values(command)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
