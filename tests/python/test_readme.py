"""The C example of the README: compiled as the README says, and run on a real checkpoint."""

import os
import re
import subprocess
from pathlib import Path

from conftest import HEADRACE, ROOT
from safetensors import safe_open


def build_example(folder: Path) -> Path:
    (source,) = re.findall(r"```c\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (folder / "example.c").write_text(source)
    build = HEADRACE.parent
    command = ["cc", "-Wall", "-Wextra", "-Werror", "example.c", "-o", "example", f"-I{ROOT}/include", f"-L{build}", "-lheadrace",
               f"-Wl,-rpath,{build}"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "example"


def test_example_loads_a_tensor(tmp_path, models):
    path = models / "silero_vad" / "model.safetensors"
    result = subprocess.run([build_example(tmp_path), path], capture_output=True, text=True, check=True)
    with safe_open(path, "numpy") as checkpoint:
        name = checkpoint.offset_keys()[0]
        assert result.stdout == f"{name}: {checkpoint.get_tensor(name).nbytes} bytes\n"


def test_example_says_what_is_wrong(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(os.urandom(4))
    result = subprocess.run([build_example(tmp_path), tmp_path / "bad.safetensors"], capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stderr.startswith("HeaderTooSmall: ")
