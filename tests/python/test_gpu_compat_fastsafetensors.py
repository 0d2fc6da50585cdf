"""headrace.compat.fastsafetensors on a real GPU, by the checks of test_compat_fastsafetensors.py; skipped
without one."""

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None or not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

import test_compat_fastsafetensors as cpu  # noqa: E402
from test_compat_fastsafetensors import folder, package  # noqa: E402, F401

DEVICE = f"cuda:{torch.cuda.current_device()}"


def test_facts(package, folder):  # noqa: F811
    cpu.facts(0, folder, package, 1, DEVICE)


def test_stream(package, folder):  # noqa: F811
    assert cpu.streamed(0, folder, package, 1, DEVICE) == list(cpu.expected_of(folder))


def test_current_device(folder):  # noqa: F811
    loader = cpu.loaded(cpu.OURS, folder, 1, "cuda")
    assert loader.device.as_str() == "cuda"
    assert str(loader.copy_files_to_device().get_tensor("wide.0").device) == DEVICE
