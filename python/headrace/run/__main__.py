"""`python -m headrace.run`: the program that the arguments name, as `python` itself would run it."""

from __future__ import annotations

import os
import runpy
import sys

USAGE = "usage: python -m headrace.run script.py [argument...] | -m module [argument...]"


def main(arguments: list[str]) -> int:
    """Runs the program; 2 when none is named."""
    from .. import transformers

    is_module = arguments[:1] == ["-m"]
    program = arguments[is_module : is_module + 1]
    if not program or program[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    transformers.enable()
    sys.argv = [program[0], *arguments[is_module + 1 :]]
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(program[0]))
        runpy.run_path(os.path.join(os.getcwd(), program[0].removeprefix("./")), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
