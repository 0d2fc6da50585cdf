"""`python -m headrace.run`: the program that the arguments name, as `python` itself would run it."""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
import zipfile

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
        run_path(program[0])
    return 0


def run_path(path: str) -> None:
    """Runs a file as Python does: __file__ is absolute, sys.argv[0] is as it was given, links lead to the folder for
    imports. Folders and archives are left to runpy."""
    if not os.path.isfile(path) or zipfile.is_zipfile(path):
        runpy.run_path(path, run_name="__main__")
        return
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = types.ModuleType("__main__")
    main.__file__ = os.path.join(os.getcwd(), path)
    with io.open_code(main.__file__) as file:
        code = compile(file.read(), main.__file__, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
