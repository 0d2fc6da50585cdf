"""`python -m headrace.run`: a program sees of itself what plain Python shows it."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
print(json.dumps([__file__, __name__, sys.argv, sys.path[0], __spec__ is None, __package__ or ""]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "s.py").write_text(PROGRAM)
    (tmp_path / "s.py").write_text(PROGRAM)
    (tmp_path / "link.py").symlink_to("sub/s.py")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(PROGRAM)
    return tmp_path


def seen(folder, *command):
    result = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("program", ["s.py", "./s.py", "sub/s.py", "./sub/s.py", "sub/../s.py", "link.py", "absolute"])
def test_scripts(folder, program):
    program = str(folder / "sub" / "s.py") if program == "absolute" else program
    expected = seen(folder, program, "--flag", "x")
    assert seen(folder, "-m", "headrace.run", program, "--flag", "x") == expected
    assert os.path.isabs(expected[0])


def test_modules(folder):
    assert seen(folder, "-m", "headrace.run", "-m", "package", "x")[:4] == seen(folder, "-m", "package", "x")[:4]
