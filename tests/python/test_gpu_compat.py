"""headrace.compat.safetensors on a real GPU, against the safetensors package. Skipped without one."""

import numpy
import pytest
import reference

torch = pytest.importorskip("torch")
if torch.version.cuda is None or not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

import safetensors.torch as theirs  # noqa: E402

from headrace.compat import _aside  # noqa: E402
from headrace.compat.safetensors import torch as ours  # noqa: E402

DEVICE = "cuda:0"  # which "cuda" is


@pytest.fixture(autouse=True)
def no_stepping_aside(monkeypatch):
    def refuse(function, arguments, keywords):
        raise AssertionError(f"{function} was asked for {arguments}")

    monkeypatch.setattr(_aside, "call", refuse)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    random = numpy.random.default_rng(29)
    dtypes = [dtype for dtype in reference.DTYPE_BITS if not dtype.startswith("F6")]
    made = {f"{dtype}.{shape[0]}": reference.random_tensor(random, dtype, shape)
            for dtype in dtypes for shape in ([0, 4], [37, 10], [600, 1024])}
    return reference.write_by_hand(tmp_path_factory.mktemp("compat") / "x.safetensors", made, 1, {"format": "pt"})


def same(one, other) -> bool:
    raw = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other) if tensor.numel()]
    kinds = [(tensor.dtype, tensor.shape, tensor.device) for tensor in (one, other)]
    return kinds[0] == kinds[1] and (len(raw) == 0 or torch.equal(*raw))


@pytest.mark.parametrize("device", [DEVICE, "cuda", int(DEVICE[5:]), torch.device(DEVICE)])
def test_load_file(path, device):
    expected, found = theirs.load_file(path, device=DEVICE), ours.load_file(path, device=device)
    assert list(found) == list(expected) and all(same(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("device", [DEVICE, "cuda"])
def test_safe_open(path, device):
    with theirs.safe_open(path, "pt", device) as other, ours.safe_open(path, "pt", device) as one:
        for name in other.keys():
            assert same(one.get_tensor(name), other.get_tensor(name)), name
        for index in (numpy.s_[1:3], numpy.s_[:, 2:9], numpy.s_[5], numpy.s_[::3, 1], ...):
            assert same(one.get_slice("BF16.600")[index], other.get_slice("BF16.600")[index]), index


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds fewer than two GPUs")
def test_cuda_is_the_first_gpu_whichever_is_current(path):
    with torch.cuda.device(1):
        expected, found = theirs.load_file(path, device="cuda"), ours.load_file(path, device="cuda")
        with theirs.safe_open(path, "pt", "cuda") as other, ours.safe_open(path, "pt", "cuda") as one:
            assert same(one.get_tensor("F32.37"), other.get_tensor("F32.37"))
    assert list(found) == list(expected) and all(same(found[name], expected[name]) for name in expected)
    assert {str(tensor.device) for tensor in found.values()} == {"cuda:0"}


def test_saved_from_there(path, tmp_path):
    tensors = {name: tensor for name, tensor in theirs.load_file(path, device=DEVICE).items()}
    for module, name in ((ours, "ours"), (theirs, "theirs")):
        module.save_file(tensors, tmp_path / name, {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_model_goes_out_and_in(tmp_path):
    source, target = (torch.nn.Linear(300, 200, device=DEVICE) for _ in range(2))
    ours.save_model(source, tmp_path / "x")
    assert ours.load_model(target, tmp_path / "x", device=DEVICE) == (set(), [])
    assert all(same(*pair) for pair in zip(source.state_dict().values(), target.state_dict().values()))
