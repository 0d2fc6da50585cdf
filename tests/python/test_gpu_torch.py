"""PyTorch on a real GPU: bitwise against safetensors, streams, memory, captures. Skipped without one."""

import gc
import threading

import numpy
import pytest
import reference

import headrace

torch = pytest.importorskip("torch")
if torch.version.cuda is None or not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402

import headrace.torch  # noqa: E402
from headrace import _dtypes  # noqa: E402

DEVICE = f"cuda:{torch.cuda.current_device()}"
MiB = 1 << 20


def raw(tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes() if tensor.numel() else b""


@pytest.fixture(scope="module")
def made():
    random = numpy.random.default_rng(23)
    dtypes = [name for name in reference.DTYPE_BITS if _dtypes.torch_dtype(torch, name) is not None]
    shapes = {"small": [4, 8], "empty": [0, 4], "wide": [512, 2048], "odd": [37, 10]}
    return {f"{dtype}.{name}": reference.random_tensor(random, dtype, shape)
            for dtype in dtypes for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def path(tmp_path_factory, made):
    return reference.write_by_hand(tmp_path_factory.mktemp("torch") / "x.safetensors", made, padding=1)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """{name: uint8 array}, 512 MiB."""
    random = numpy.random.default_rng(5)
    arrays = {f"t.{i}": ("U8", [64 * MiB], random.bytes(64 * MiB)) for i in range(8)}
    return reference.write_by_hand(tmp_path_factory.mktemp("large") / "x.safetensors", arrays), arrays


@pytest.fixture(autouse=True)
def empty_cache():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def test_bitwise(path, made):
    loaded = headrace.load(path, framework="pt", device=DEVICE)
    assert list(loaded) == list(made)
    for name, (dtype, _, data) in made.items():
        assert str(loaded[name].device) == DEVICE and _dtypes.name_of(loaded[name].dtype) == dtype
        assert raw(loaded[name]) == data, name


def test_the_same_as_safetensors(path, made):
    theirs = safetensors.torch.load_file(path, device=DEVICE)
    for ours in (headrace.torch.load_file(path, DEVICE), headrace.torch.load_file(path, torch.device(DEVICE)),
                 headrace.load(path, framework="pt", device=int(DEVICE[5:]))):
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            found = ours[name]
            assert (found.dtype, found.shape, found.device) == (tensor.dtype, tensor.shape, tensor.device), name
            assert raw(found) == raw(tensor), name


def test_safe_open(path, made):
    with headrace.safe_open(path, "pt", DEVICE) as ours, safetensors.safe_open(path, "pt", DEVICE) as theirs:
        for name in made:
            assert raw(ours.get_tensor(name)) == raw(theirs.get_tensor(name)), name
        for index in [numpy.s_[1:3], numpy.s_[:, 2:9], numpy.s_[5], numpy.s_[::3, 1]]:
            found, expected = (f.get_slice("F32.odd")[index] for f in (ours, theirs))
            assert found.device == expected.device and found.shape == expected.shape and raw(found) == raw(expected)


def test_slices_of_every_dtype(path, made):
    whole = headrace.load(path, "*.wide", framework="pt")
    for index in [numpy.s_[100:400:3, 2:2000:2], numpy.s_[7], numpy.s_[:, 5], numpy.s_[500:]]:
        if isinstance(index, tuple):
            names = [name for name in whole if not name.startswith("F4")]
        else:
            names = list(whole)
        loaded = headrace.load(path, names, slices={"*": index}, framework="pt", device=DEVICE)
        for name in names:
            bits = whole[name].view(getattr(torch, f"uint{8 * whole[name].element_size()}", torch.uint8)) \
                if whole[name].element_size() < 8 else whole[name].view(torch.int64)
            expected = numpy.ascontiguousarray(bits.numpy()[index])
            assert list(loaded[name].shape) == list(expected.shape), name
            assert raw(loaded[name].reshape(-1)) == expected.tobytes(), name


def test_into(path, made):
    names = [f"{dtype}.wide" for dtype in ("F32", "BF16", "U8", "F8_E4M3", "I64")]
    targets = {name: torch.zeros(made[name][1], dtype=headrace.load(path, name, framework="pt")[name].dtype,
                                 device=DEVICE) for name in names}
    strided = torch.zeros(2048, 600, device=DEVICE).T[40:552]  # transposed, a part
    targets["F32.wide"] = strided
    pointers = {name: target.data_ptr() for name, target in targets.items()}
    loaded = headrace.load(path, into=targets)
    for name in names:
        assert loaded[name] is targets[name] and loaded[name].data_ptr() == pointers[name]
        assert raw(loaded[name]) == made[name][2], name
    assert strided._base.T[:40].count_nonzero() == 0 and strided._base.T[552:].count_nonzero() == 0
    with pytest.raises(headrace.errors.InvalidArgument, match="'F32.odd'.*shape"):
        headrace.load(path, into={"F32.odd": strided})
    with pytest.raises(headrace.errors.InvalidArgument, match="'F32.wide'.*cpu"):
        headrace.load(path, into={"F32.wide": strided}, device="cpu")
    mixed = headrace.load(path, into={"F32.wide": strided, "F32.odd": torch.empty(37, 10)})
    assert [tensor.device.type for tensor in mixed.values()] in (["cuda", "cpu"], ["cpu", "cuda"])
    assert all(raw(tensor) == made[name][2] for name, tensor in mixed.items())


def test_memory_is_the_allocators(path, made):
    before = torch.cuda.memory_allocated(DEVICE)
    loaded = headrace.load(path, framework="pt", device=DEVICE)
    rounded = sum(-(-len(data) // 512) * 512 for _, _, data in made.values())
    assert torch.cuda.memory_allocated(DEVICE) - before == rounded
    assert all(tensor.data_ptr() % 512 == 0 for tensor in loaded.values() if tensor.numel())
    del loaded
    assert torch.cuda.memory_allocated(DEVICE) == before


def occupy(megabytes: int, stream) -> None:
    """Memory that work of `stream` still writes when it goes back to the allocator's cache."""
    with torch.cuda.stream(stream):
        block = torch.empty(megabytes * MiB, dtype=torch.uint8, device=DEVICE)
        torch.cuda._sleep(400_000_000)  # a part of a second
        block.fill_(0x5A)
        del block


@pytest.mark.parametrize("side", [False, True], ids=["current", "side"])
def test_reused_memory_with_work_pending(large, side):
    file, arrays = large
    stream = torch.cuda.Stream(DEVICE) if side else torch.cuda.current_stream(DEVICE)
    for _ in range(3):
        occupy(512, stream)
        with torch.cuda.stream(stream):
            loaded = headrace.load(file, framework="pt", device=DEVICE)
        torch.cuda.synchronize()
        for name, (_, _, data) in arrays.items():
            assert raw(loaded[name]) == data, name
        del loaded


def test_futures_take_memory_of_the_starts_stream(large):
    file, arrays = large
    stream = torch.cuda.Stream(DEVICE)
    occupy(512, torch.cuda.current_stream(DEVICE))
    occupy(512, stream)
    with torch.cuda.stream(stream):
        job = headrace.start(file, framework="pt", device=DEVICE, window_bytes=64 * MiB)
    futures = {name: job.future(name) for name in arrays}
    loaded = {name: future.result() for name, future in futures.items()}
    torch.cuda.synchronize()
    assert all(raw(loaded[name]) == data for name, (_, _, data) in arrays.items())


def test_into_memory_with_work_pending(large):
    file, arrays = large
    targets = {name: torch.empty(64 * MiB, dtype=torch.uint8, device=DEVICE) for name in arrays}
    torch.cuda._sleep(400_000_000)
    for target in targets.values():
        target.fill_(0x5A)
    headrace.load(file, into=targets)
    torch.cuda.synchronize()
    assert all(raw(targets[name]) == data for name, (_, _, data) in arrays.items())


def capture_during(action) -> None:
    """Captures graphs on another thread, in the strictest mode, while `action` runs. Not by torch.cuda.graph(), which
    empties the allocator's cache each time."""
    ready, stop, problems, count = threading.Event(), threading.Event(), [], [0]

    def run():
        try:
            with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
                x = torch.zeros(1024, device=DEVICE)
                torch.cuda.current_stream(DEVICE).synchronize()
                ready.set()
                while not stop.is_set() or count[0] < 3:
                    graph = torch.cuda.CUDAGraph()
                    graph.capture_begin(capture_error_mode="global")
                    for _ in range(50):
                        x += 1
                    graph.capture_end()
                    x.zero_()
                    graph.replay()
                    assert x[0].item() == 50
                    count[0] += 1
        except Exception as problem:
            problems.append(problem)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        action()
    finally:
        stop.set()
        thread.join()
    assert not problems, problems


def test_a_capture_elsewhere_while_loading_and_freeing(large):
    """With memory of our own: PyTorch's allocator may itself call what a capture forbids."""
    file, arrays = large

    def action():
        for _ in range(5):
            tensors = headrace.load(file, device=DEVICE)
            imported = {name: torch.from_dlpack(tensor) for name, tensor in tensors.items()}
            del tensors
            assert len(imported) == len(arrays)
            del imported

    action()
    capture_during(action)


def test_a_capture_elsewhere_while_torch_loads(large):
    file, arrays = large
    headrace.torch.warm_up(file, DEVICE)  # so that its allocator asks the driver for nothing
    headrace.load(file, framework="pt", device=DEVICE)

    def action():
        for _ in range(5):
            assert len(headrace.load(file, framework="pt", device=DEVICE)) == len(arrays)

    capture_during(action)


def test_memory_of_our_own_dies_with_kernels_pending(large):
    file, arrays = large
    tensor = headrace.load(file, "t.0", device=DEVICE)["t.0"]
    imported = torch.from_dlpack(tensor)
    assert imported.data_ptr() == tensor.data_ptr() and str(imported.device) == DEVICE
    torch.cuda._sleep(400_000_000)
    copy = imported.clone()
    del imported, tensor
    for _ in range(3):
        headrace.load(file, device=DEVICE)
    torch.cuda.synchronize()
    assert raw(copy) == arrays["t.0"][2]


def test_every_dtype_by_dlpack(path, made):
    for name, tensor in headrace.load(path, device=DEVICE).items():
        imported = torch.from_dlpack(tensor)
        assert _dtypes.name_of(imported.dtype) == made[name][0] and raw(imported) == made[name][2], name
        assert raw(torch.from_dlpack(tensor.raw())) == made[name][2]


def test_the_cuda_array_interface(path, made):
    tensor = headrace.load(path, "F32.odd", device=DEVICE)["F32.odd"]
    seen = torch.as_tensor(tensor, device=DEVICE)
    assert seen.data_ptr() == tensor.data_ptr() and raw(seen) == made["F32.odd"][2]


def test_warm_up(large):
    file, arrays = large
    total = 512 * MiB
    taken = headrace.torch.warm_up(file, DEVICE)
    assert total - 64 * MiB <= taken <= total and torch.cuda.memory_reserved(DEVICE) >= total
    assert headrace.torch.warm_up(file, DEVICE) == 0  # the cache has it
    torch.cuda.reset_peak_memory_stats(DEVICE)
    reserved = torch.cuda.memory_reserved(DEVICE)
    loaded = headrace.load(file, framework="pt", device=DEVICE, warm_up=True)
    assert torch.cuda.max_memory_reserved(DEVICE) == reserved
    assert torch.cuda.memory_allocated(DEVICE) >= total
    assert raw(loaded["t.7"]) == arrays["t.7"][2]
    assert 0 <= headrace.torch.warm_up(1 << 50, DEVICE) < torch.cuda.mem_get_info(DEVICE)[1]
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info(DEVICE)[0] > 1 << 30


def test_stream_under_a_window(large):
    file, arrays = large
    torch.cuda.reset_peak_memory_stats(DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)
    for name, tensor in headrace.stream(file, framework="pt", device=DEVICE, window_bytes=128 * MiB):
        assert raw(tensor[:MiB]) == arrays[name][2][:MiB]
        del tensor
    assert torch.cuda.max_memory_allocated(DEVICE) - before <= (128 + 2 * 64) * MiB


def test_devices_are_the_same(path):
    for index in range(torch.cuda.device_count()):
        loaded = headrace.load(path, "F32.odd", framework="pt", device=index)["F32.odd"]
        assert loaded.device.index == index
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        assert headrace._core.device_find(f"cuda:{index}")["uuid"].removeprefix("GPU-") in (uuid, f"GPU-{uuid}")
    with torch.cuda.device(torch.cuda.device_count() - 1):
        loaded = headrace.load(path, "F32.odd", framework="pt", device=torch.device("cuda"))["F32.odd"]
        assert loaded.device.index == torch.cuda.device_count() - 1


def test_out_of_memory_names_torchs_reason(path, tmp_path):
    free = torch.cuda.mem_get_info(DEVICE)[0]
    filler = torch.empty(free - 300 * MiB, dtype=torch.uint8, device=DEVICE)
    arrays = {"x": ("U8", [512 * MiB], bytes(512 * MiB))}
    file = reference.write_by_hand(tmp_path / "x.safetensors", arrays)
    with pytest.raises(headrace.errors.OutOfMemory) as caught:
        headrace.load(file, framework="pt", device=DEVICE)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    with pytest.raises(headrace.errors.OutOfMemory):
        headrace.load(file, device=DEVICE)
    del filler


def test_verify_and_statistics(path):
    assert headrace.verify(path, device=DEVICE) > 0
    with headrace.open(path) as checkpoint:
        checkpoint.load(framework="pt", device=DEVICE)
        assert checkpoint.last_stats.device_name == torch.cuda.get_device_name(DEVICE)
