"""The package is typed: mypy in strict mode, and the stubs against the modules as they are."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")


def run(tmp_path, *arguments):
    command = [sys.executable, "-m", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_stubs_agree_with_the_modules(tmp_path):
    allowed = tmp_path / "allowed"  # frameworks that may be missing
    allowed.write_text("headrace\\.(compat\\.(safetensors\\.)?)?"
                       "(torch|jax|flax|numpy|cupy|vllm|sglang|_lazy|_ahead|_weights|fastsafetensors)(\\..*)?\n")
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nignore_missing_imports = True\n[mypy-torch.*,jax.*,cupy.*]\nfollow_imports = skip\n"
    )
    run(tmp_path, "mypy.stubtest", "headrace", "--allowlist", str(allowed), "--ignore-unused-allowlist",
        "--mypy-config-file", "mypy.ini")


def test_a_program_that_uses_the_package_is_typed(tmp_path):
    (tmp_path / "program.py").write_text(
        "import headrace\n"
        "with headrace.open('x', revision=None) as checkpoint:\n"
        "    info = checkpoint['a']\n"
        "    size: int = info.nbytes + sum(info.shape)\n"
        "    try:\n"
        "        for name, tensor in checkpoint.stream(['*.weight'], framework='pt', window_bytes=1 << 30):\n"
        "            print(name, tensor)\n"
        "    except headrace.errors.TensorNotFound as error:\n"
        "        offset: int | None = error.offset\n"
        "    tensors: dict[str, headrace.Tensor] = checkpoint.load()\n"
    )
    run(tmp_path, "mypy", "--strict", "program.py")
