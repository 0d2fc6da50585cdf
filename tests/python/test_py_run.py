"""`python -m headrace.run`: a program sees of itself what plain Python shows it."""

import json
import os
import subprocess
import sys
import zipfile

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
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", PROGRAM)
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
    found, expected = (seen(folder, *way, program, "--flag", "x") for way in (["-m", "headrace.run"], []))
    assert found[1:] == expected[1:] and os.path.isabs(found[0])
    assert found[0].replace("/./", "/") == expected[0].replace("/./", "/")  # which versions of Python differ in


@pytest.mark.parametrize("program", ["package", "archive.pyz"])
def test_folders_and_archives(folder, program):
    found = seen(folder, "-m", "headrace.run", program, "x")
    assert found[0].endswith(f"{program}/__main__.py") and found[1:4] == ["__main__", [program, "x"], program]


def test_a_script_that_is_not_there_or_fails(folder):
    (folder / "fails.py").write_text("import sys\nprint(1 / 0)\n")
    for program, said in (("nope.py", "nope.py"), ("fails.py", 'fails.py", line 2, in <module>')):
        result = subprocess.run([sys.executable, "-m", "headrace.run", program], cwd=folder, capture_output=True,
                                text=True, check=False)
        assert result.returncode == 1 and said in result.stderr


def test_modules(folder):
    assert seen(folder, "-m", "headrace.run", "-m", "package", "x")[:4] == seen(folder, "-m", "package", "x")[:4]
