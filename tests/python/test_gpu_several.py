"""Several real GPUs in one load: bytes, memory and streams of each. Skipped where there are fewer than two."""

import threading

import numpy
import pytest
import reference

import headrace

MiB = 1 << 20
COUNT = 24
MAP = {"layers": 0, "layers.1": 1, "layers.2*": 1, "head": "cpu"}


def device_of(name: str) -> str:
    if name == "head":
        return "cpu"
    return "cuda:1" if name.split(".")[1] == "1" or name.startswith("layers.2") else "cuda:0"


@pytest.fixture(scope="module")
def made():
    random = numpy.random.default_rng(37)
    made = {f"layers.{i}.w": ("F32", [1024, 2048 + i], random.bytes(4 * 1024 * (2048 + i))) for i in range(COUNT)}
    return made | {"layers.1.norm": ("BF16", [33], random.bytes(66)), "head": ("U8", [999], random.bytes(999))}


@pytest.fixture(scope="module")
def path(tmp_path_factory, made):
    return reference.write_by_hand(tmp_path_factory.mktemp("several") / "x.safetensors", made, padding=3)


@pytest.fixture(scope="module")
def torch():
    module = pytest.importorskip("torch")
    if not module.cuda.is_available() or module.cuda.device_count() < 2:
        pytest.skip("torch finds fewer than two GPUs")
    return module


@pytest.fixture(autouse=True)
def current_device(request):
    """The current device stays as it was: after a test with JAX it has to be set again, since XLA leaves the context
    of the device that it used last current."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.current_device()
    yield
    after = torch.cuda.current_device()
    torch.cuda.set_device(before)
    assert after == before or request.function is test_jax


def raw(torch, tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def check(torch, loaded, made) -> None:
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    for name, tensor in loaded.items():
        assert str(tensor.device) == device_of(name) and raw(torch, tensor) == made[name][2], name


def test_torch(torch, path, made):
    for options in ({}, {"warm_up": True}):
        check(torch, headrace.load(path, framework="pt", device_map=MAP, **options), made)
    check(torch, dict(headrace.stream(path, framework="pt", device_map=MAP, window_bytes=20 * MiB)), made)
    with headrace.start(path, framework="pt", device_map=MAP) as job:
        check(torch, {name: job.future(name).result() for name in reversed(job.names())}, made)
    imported = headrace.load(path, device_map=MAP)
    check(torch, {name: torch.from_dlpack(tensor) for name, tensor in imported.items()}, made)
    assert headrace.verify(path, device_map=MAP) == sum(len(data) for _, _, data in made.values())


def test_torch_memory_is_the_allocators_of_each(torch, path, made):
    before = [torch.cuda.memory_allocated(index) for index in range(2)]
    loaded = headrace.load(path, framework="pt", device_map=MAP)
    for index in range(2):
        sizes = [len(data) for name, (_, _, data) in made.items() if device_of(name) == f"cuda:{index}"]
        assert torch.cuda.memory_allocated(index) - before[index] == sum(-(-size // 512) * 512 for size in sizes)
    del loaded
    assert [torch.cuda.memory_allocated(index) for index in range(2)] == before


def occupy(torch, stream, index: int) -> None:
    """Memory that work of `stream` still writes when it goes back to the allocator's cache."""
    with torch.cuda.stream(stream):
        block = torch.empty(256 * MiB, dtype=torch.uint8, device=f"cuda:{index}")
        torch.cuda._sleep(200_000_000)
        block.fill_(0x5A)
        del block


@pytest.mark.parametrize("side", [False, True], ids=["current", "side"])
def test_torch_memory_with_work_pending_on_each(torch, path, made, side):
    """It comes out of the cache of the streams that are current at the start, also on a thread with others, and is
    written after what they hold."""
    streams = [torch.cuda.Stream(index) if side else torch.cuda.current_stream(index) for index in range(2)]
    found = {}
    for _ in range(3):
        for index, stream in enumerate(streams):
            occupy(torch, stream, index)
        with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
            job = headrace.start(path, framework="pt", device_map=MAP, window_bytes=16 * MiB)
        thread = threading.Thread(target=lambda job: found.update(job), args=(job,))
        thread.start()
        thread.join()
        check(torch, found, made)
        found.clear()


def test_torch_into(torch, path, made):
    targets = {}
    for name, tensor in headrace.load(path, framework="pt").items():
        targets[name] = torch.zeros_like(tensor, device=device_of(name))
    targets["layers.3.w"] = torch.zeros(2051, 1100, device="cuda:0").T[50:1074]  # transposed, a part
    pointers = {name: target.data_ptr() for name, target in targets.items()}
    for index in range(2):
        with torch.cuda.device(index):
            torch.cuda._sleep(100_000_000)
    for target in targets.values():
        target.fill_(1)
    loaded = headrace.load(path, into=targets)
    assert {name: tensor.data_ptr() for name, tensor in loaded.items()} == pointers
    check(torch, loaded, made)


def test_torch_parts(torch, path, made):
    """Parts on the device of their tensor, and ranges of a tensor in memory of several devices."""
    rows = [7, 3, 4, 900]
    whole = {name: numpy.frombuffer(made[name][2], "f4").reshape(made[name][1]) for name in made if name.endswith(".w")}
    picks = {f"layers.{layer}.w": headrace.pick(0, rows) for layer in (0, 1, 2)}
    shards = {f"layers.{layer}.w": (0, (512, 256, 256)) for layer in (3, 21)}
    options = {"device_map": MAP, "slices": picks, "shard": shards, "rank": 1, "world": 2, "warm_up": True}
    rows_of = dict.fromkeys(picks, rows) | dict.fromkeys(
        shards, [*range(256, 512), *range(640, 768), *range(896, 1024)])
    for name, tensor in headrace.load(path, "*.w", framework="pt", **options).items():
        expected = whole[name][rows_of[name]] if name in rows_of else whole[name]
        assert str(tensor.device) == device_of(name) and raw(torch, tensor) == expected.tobytes(), name
    name = "layers.3.w"
    parts = [torch.zeros(len(rows), 2051, device=device) for device in ("cuda:1", "cpu", "cuda:0")]
    wanted = [[row + at for row in rows] for at in range(3)]
    headrace.load(path, into={name: [(headrace.pick(0, picked), part) for picked, part in zip(wanted, parts)]})
    for picked, part in zip(wanted, parts):
        assert raw(torch, part) == whole[name][picked].tobytes()


def test_cupy(path, made):
    cupy = pytest.importorskip("cupy")
    if not cupy.is_available() or cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("cupy finds fewer than two GPUs")
    loaded = headrace.load(path, "*.w", framework="cupy", device_map=MAP)
    for name, array in loaded.items():
        assert f"cuda:{array.device.id}" == device_of(name)
        with array.device:
            assert cupy.asnumpy(array).tobytes() == made[name][2], name
    with pytest.raises(headrace.errors.Unsupported, match="cupy"):
        headrace.load(path, framework="cupy", device_map=MAP)


def test_jax(path, made):
    jax = pytest.importorskip("jax")
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        devices = []
    if len(devices) < 2:
        pytest.skip("jax finds fewer than two GPUs")
    loaded = headrace.load(path, framework="jax", device_map=MAP)
    for name, array in loaded.items():
        (device,) = array.devices()
        assert device.platform == "cpu" if device_of(name) == "cpu" else device == devices[int(device_of(name)[5:])]
        assert numpy.asarray(array).tobytes() == made[name][2], name
