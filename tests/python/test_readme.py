"""The C example of the README: compiled as the README says, and run on a real checkpoint."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open


@pytest.fixture
def example(tmp_path, root, build) -> Path:
    (source,) = re.findall(r"```c\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.c").write_text(source)
    command = ["cc", "-Wall", "-Wextra", "-Werror", "example.c", "-o", "example", f"-I{root}/include", f"-L{build}",
               "-lheadrace", f"-Wl,-rpath,{build}"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path / "example"


def test_example_loads_a_tensor(example, models):
    path = models / "silero_vad" / "model.safetensors"
    result = subprocess.run([example, path], capture_output=True, text=True, check=True)
    with safe_open(path, "numpy") as checkpoint:
        name = checkpoint.offset_keys()[0]
        assert result.stdout == f"{name}: {checkpoint.get_tensor(name).nbytes} bytes\n"


def test_example_says_what_is_wrong(example, tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(os.urandom(4))
    result = subprocess.run([example, tmp_path / "bad.safetensors"], capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stderr.startswith("HeaderTooSmall: ")
