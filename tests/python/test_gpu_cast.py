"""dtypes converted on the way to a GPU, bit for bit as in host memory and as PyTorch has it; on a real driver, else on
the fake one, in a process of its own."""

import ctypes

import cast_rules
import pytest
import reference
from fake_gpu import on_fake_gpu

import headrace
from headrace import _dtypes


def has_real_driver() -> bool:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def on_gpu(settings: str = ""):
    """As on_fake_gpu; with a real driver the body runs here, once, since nothing can be set there."""

    def decorate(body):
        if not has_real_driver():
            return on_fake_gpu(settings)(body)

        def test(path):
            if settings:
                pytest.skip("for the fake driver")
            body(path)

        test.body = body
        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return decorate


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return reference.write_by_hand(tmp_path_factory.mktemp("cast") / "x.safetensors", cast_rules.tensors(), padding=3)


def check_all_pairs(path, said: str) -> None:
    made = cast_rules.tensors()
    with headrace.open(path) as checkpoint:
        for turn in range(max(len(_dtypes.BITS) - 1, 1)):
            targets = {name: [b for b in _dtypes.BITS if b != made[name][0] and _dtypes.converts(made[name][0], b)]
                       for name in made}
            chosen = {name: found[turn % len(found)] for name, found in targets.items() if found}
            with checkpoint.start(device="cuda:0", dtype=chosen) as job:
                for position in job._ready():
                    name = job.names()[position]
                    stored = made[name][0]
                    wanted = chosen.get(name, stored)
                    expected = made[name][2] if wanted == stored else cast_rules.converted(*made[name], wanted)
                    assert job._load.read(position, 0, len(expected)) == expected, (name, wanted)
                stats = job.stats()
            assert stats.conversion.startswith(said), stats.conversion
            assert stats.bytes_converted == sum(len(made[name][2]) for name in chosen)


@on_gpu()
def test_every_pair(path):
    check_all_pairs(path, "GPU")


@on_gpu("no_kernel=1")
def test_without_the_kernel(path):
    check_all_pairs(path, "readers, since the converting kernel")


@on_gpu()
def test_one_dtype(path):
    loaded = headrace.load(path, device="cuda", dtype="bfloat16")
    dtypes = {name: tensor.dtype for name, tensor in loaded.items()}
    assert dtypes["F32.wide"] == dtypes["F64.empty"] == dtypes["F16.scalar"] == "BF16" and dtypes["I64.wide"] == "I64"


def test_on_the_gpu_as_torch_there(path):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None or not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    stored = headrace.load(path, framework="pt", device="cuda")
    for name, kind in (("BF16", torch.bfloat16), ("F32", torch.float32), ("F16", torch.float16)):
        loaded = headrace.load(path, framework="pt", device="cuda", dtype=kind)
        for key, tensor in stored.items():
            wanted = tensor.to(kind) if tensor.is_floating_point() else tensor
            assert loaded[key].dtype == wanted.dtype and torch.equal(
                loaded[key].reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)), (key, name)
    module = torch.nn.Linear(41, 67, bias=False, device="cuda", dtype=torch.bfloat16)
    headrace.load(path, into={"F32.wide": module.weight.data})
    assert torch.equal(module.weight.data, stored["F32.wide"].to(torch.bfloat16))
