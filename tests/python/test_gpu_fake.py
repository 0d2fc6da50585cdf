"""Loads to GPUs by the Python package, on the fake driver: every machine can run them."""

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import fake_gpu
import numpy
import page_cache
import pytest
import reference
from fake_gpu import live, on_fake_gpu, read_back, wait_until

import headrace
from headrace import _core, _frameworks, errors

SHAPES = {"small": [4, 8], "empty": [0, 4], "scalar": [], "wide": [96, 2048]}


def tensors() -> dict[str, reference.Tensor]:
    random = numpy.random.default_rng(17)
    made = {}
    for dtype, bits in reference.DTYPE_BITS.items():
        for name, shape in SHAPES.items():
            if bits % 8 == 0 or shape:
                made[f"{dtype}.{name}"] = reference.random_tensor(random, dtype, shape)
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return reference.write_by_hand(tmp_path_factory.mktemp("gpu") / "x.safetensors", tensors(), padding=3)


def bytes_on(tensor, ordinal: int) -> bytes:
    assert tensor.device == f"cuda:{ordinal}" and tensor.__dlpack_device__() == (2, ordinal)
    return read_back(tensor.data_ptr(), tensor.nbytes, ordinal)


def raises(kind, text: str, function, *arguments, **keywords):
    with pytest.raises(kind, match=text or None) as caught:
        function(*arguments, **keywords)
    return caught.value


# --------------------------------------------------------------------------------------------------------- bytes


@on_fake_gpu()
def test_every_dtype_and_shape_arrives(path):
    loaded = headrace.load(path, device="cuda:1")
    for name, (dtype, shape, data) in tensors().items():
        assert bytes_on(loaded[name], 1) == data, name
        assert (loaded[name].dtype, list(loaded[name].shape)) == (dtype, shape)
        assert loaded[name].data_ptr() % 256 == 0
    assert "cuda:1" in repr(loaded["F32.small"])


@on_fake_gpu("no_kernel=1,no_batch=1")
def test_slices_windows_orders_and_futures(path):
    whole = {name: numpy.frombuffer(data, "u1").reshape(*shape, -1)
             for name, (dtype, shape, data) in tensors().items() if dtype in ("F32", "U8") and name.endswith("wide")}
    index = numpy.s_[3:90:7, 5:2000:3]
    for name, tensor in headrace.stream(path, list(whole), device="cuda", slices={"*": index}, window_bytes=1,
                                        order="name"):
        assert bytes_on(tensor, 0) == whole[name][index].tobytes()
    with headrace.start(path, list(whole), device=0, slices={"*": headrace.shard(1, 1, 3)}) as job:
        futures = {name: job.future(name) for name in whole}
        for name, future in futures.items():
            assert bytes_on(future.result(), 0) == whole[name][:, 683:1366].tobytes()
    lazy = headrace.start(path, list(whole), device=0, lazy=True)
    assert bytes_on(lazy.get("F32.wide"), 0) == whole["F32.wide"].tobytes()


@on_fake_gpu()
def test_verify_reads_back(path):
    assert headrace.verify(path, device="cuda:1") == sum(len(data) for _, _, data in tensors().values())
    raises(errors.InvalidArgument, "slices", headrace.verify, path, slices={"*": 0})


@on_fake_gpu()
def test_into_device_memory(path):
    other = path.parent / "other.safetensors"
    names = ["F32.wide", "BF16.small", "U8.empty", "F32.small"]
    reference.write_by_hand(other, {name: (*tensors()[name][:2], bytes(len(tensors()[name][2]))) for name in names})
    target = headrace.load(other, device="cuda:1")
    targets = {name: Array(tensor) for name, tensor in target.items()}
    assert headrace.load(path, into=targets) == targets
    for name in names:
        assert bytes_on(target[name], 1) == tensors()[name][2]
    error = raises(errors.InvalidArgument, "cuda:1.*cuda:0", headrace.load, path, into=targets, device=0)
    assert error.tensor == names[0] or error.tensor in names
    mixed = {"F32.wide": targets["F32.wide"], "F32.small": numpy.zeros((4, 8), "f4")}
    raises(errors.InvalidArgument, "on cpu, but the load goes to cuda:1", headrace.load, path, into=mixed, device=1)
    raises(errors.InvalidArgument, "'F32.small'.*shape", headrace.load, path, into={"F32.small": targets["F32.wide"]})
    raises(errors.Unsupported, "'C64.small'", headrace.load, path, into={"C64.small": targets["F32.small"]})
    headrace.load(path, into={"F16.small": targets["BF16.small"]})
    converted = headrace.load(path, "F16.small", dtype="BF16")["F16.small"]
    assert bytes_on(target["BF16.small"], 1) == bytes(converted.raw())


class Array:
    """What CuPy's arrays look like from outside."""

    def __init__(self, tensor, strides=None, stream=1) -> None:
        self.dtype, self._tensor = tensor.dtype, tensor
        self.__cuda_array_interface__ = {"shape": tensor.shape, "typestr": "|V1", "data": (tensor.data_ptr(), False),
                                         "strides": strides, "stream": stream, "version": 3}

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


@on_fake_gpu()
def test_into_strided_device_memory(path):
    address = fake_gpu.allocate(8 * 64, 0)
    target = headrace.load(path, "F32.small", device=0)["F32.small"]
    array = Array(target, strides=(8, 64))  # transposed, with gaps
    array.__cuda_array_interface__["data"] = (address, False)
    headrace.load(path, into={"F32.small": array})
    found = numpy.frombuffer(read_back(address, 8 * 64, 0), "u4").reshape(8, 16)[:, :8:2]
    assert found.T.tobytes() == tensors()["F32.small"][2]
    empty = headrace.load(path, "F32.empty", device=0)["F32.empty"]
    headrace.load(path, into={"F32.empty": Array(empty, strides=(0, 0))})


# ---------------------------------------------------------------------------------------------- what is handed out


@on_fake_gpu()
def test_dlpack_says_what_and_where_it_is(path):
    loaded = headrace.load(path, device=1)
    for keywords in [{}, {"max_version": (1, 0), "stream": 1}, {"stream": -1}, {"dl_device": (2, 1), "copy": False}]:
        for name, code in {"F32.small": (2, 32, 1), "F4.small": (17, 4, 2), "BF16.small": (4, 16, 1),
                           "F8_E4M3.small": (10, 8, 1), "BOOL.small": (6, 8, 1), "C64.small": (5, 64, 1)}.items():
            capsule = loaded[name].__dlpack__(**keywords)
            seen = fake_gpu.look_into(capsule)
            assert (seen.device_type, seen.device_id, seen.data) == (2, 1, loaded[name].data_ptr())
            assert (seen.code, seen.bits, seen.lanes) == code and seen.byte_offset == 0
            last = 8 // seen.lanes
            assert seen.shape[:2] == [4, last] and seen.strides[:2] == [last, 1]
    tensor = loaded["F32.small"]
    for wrong in [{"dl_device": (1, 0)}, {"dl_device": (2, 0)}, {"copy": True}]:
        raises(BufferError, "", tensor.__dlpack__, **wrong)
    raises(BufferError, "raw", loaded["F6_E2M3.small"].__dlpack__)
    raises(BufferError, "from_dlpack", memoryview, tensor)


@on_fake_gpu()
def test_the_cuda_array_interface(path):
    loaded = headrace.load(path, device=1)
    expected = {"F32": "<f4", "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I64": "<i8", "C64": "<c8",
                "F16": "<f2", "F64": "<f8"}
    for dtype, typestr in expected.items():
        tensor = loaded[f"{dtype}.small"]
        assert tensor.__cuda_array_interface__ == {
            "shape": (4, 8), "typestr": typestr, "data": (tensor.data_ptr(), False), "strides": None, "stream": None,
            "version": 3}
    assert not hasattr(loaded["BF16.small"], "__cuda_array_interface__")
    raw = loaded["BF16.small"].raw()
    assert raw.__cuda_array_interface__["typestr"] == "|u1" and raw.shape == (64,)
    assert raw.data_ptr() == loaded["BF16.small"].data_ptr()


@on_fake_gpu()
def test_memory_goes_with_its_last_holder(path):
    loaded = headrace.load(path, device=0)
    assert live().allocation_bytes > 0
    raw, capsule = loaded["BF16.wide"].raw(), loaded["BF16.wide"].__dlpack__()
    data = tensors()["BF16.wide"][2]
    del loaded
    time.sleep(0.05)
    assert bytes_on(raw, 0) == data
    del raw
    time.sleep(0.05)
    assert live().allocation_bytes > 0
    with ThreadPoolExecutor(1) as pool:  # on another thread
        pool.submit(lambda held: held.clear(), [capsule]).result()
        del capsule
    gc.collect()
    wait_until(lambda: live().allocation_bytes == 0)


@on_fake_gpu("capture=3")
def test_tensors_die_while_a_capture_forbids_to_free(path):
    del_me = headrace.load(path, device=0)
    del del_me
    wait_until(lambda: live().allocation_bytes == 0)


# ------------------------------------------------------------------------------------------------------- frameworks


class Made:
    """A tensor of a framework that allocates for itself: out of memory that queued work of its stream still writes."""

    streams: list = []

    def __init__(self, shape, dtype) -> None:
        self.nbytes = int(numpy.prod(shape)) * 4
        self.address = fake_gpu.allocate(self.nbytes, 1) if self.nbytes else 0
        stream = getattr(scopes, "stream", None)
        Made.streams.append(stream)
        if self.nbytes and stream is not None:
            fake_gpu.fill_later(self.address, self.nbytes, stream, 1)

    def address_of(self) -> int:
        return self.address


scopes = threading.local()


@on_fake_gpu("delay_us=20000")
def test_a_framework_that_allocates(path):
    """As PyTorch: its very objects come back, made while the stream of the start is current, on whichever thread, and
    written after what that stream held."""
    stream = fake_gpu.new_stream(1)
    scopes.stream = stream

    @contextlib.contextmanager
    def scope():
        before, scopes.stream = getattr(scopes, "stream", None), stream
        yield
        scopes.stream = before

    rows = [({"dtype": name}, 1) if name == "F32" else f"no {name}" for name, _ in _frameworks._dtypes.DTYPES]
    _frameworks._made["torch", "cuda:1"] = _frameworks.Framework(
        "torch", (Made, rows, "address_of"), capture=lambda: (stream, scope))
    options = {"framework": "pt", "device": "cuda:1"}
    loaded = headrace.load(path, "F32.*", **options)
    with headrace.start(path, "F32.*", window_bytes=1, **options) as job:
        later = {"F32.wide": job.future("F32.wide").result(), "F32.small": job.get("F32.small")}
    for name, made in [*loaded.items(), *later.items()]:
        assert isinstance(made, Made) and read_back(made.address, made.nbytes, 1) == tensors()[name][2]
    assert set(Made.streams) == {stream}
    raises(errors.Unsupported, "no BF16", headrace.load, path, "BF16.small", **options)


@on_fake_gpu()
def test_frameworks_that_cannot(path):
    raises(errors.Unsupported, "device='cpu'", headrace.load, path, framework="numpy", device="cuda")
    raises(errors.Unsupported, "device='cpu'", headrace.safe_open, path, "np", "cuda:0")
    with contextlib.suppress(ImportError):
        import torch

        if torch.version.cuda is None:
            raises(errors.DeviceUnavailable, "without CUDA.*framework=None", headrace.load, path, framework="pt",
                   device="cuda:1")
            from headrace import torch as ours

            raises(errors.DeviceUnavailable, "without CUDA", ours.load_file, path, device=0)
            assert ours.warm_up(path, "cuda:0") == ours.warm_up(1 << 30) == ours.warm_up(path, "cpu") == 0
        loaded = headrace.load(path, "F32.small", framework="pt", device=torch.device("cpu"), warm_up=True)
        assert loaded["F32.small"].numpy().tobytes() == tensors()["F32.small"][2]
        assert headrace.load(path, "F32.small", device=torch.device("cuda", 1))["F32.small"].device == "cuda:1"


# ------------------------------------------------------------------------------------------------ devices, loaders


@on_fake_gpu()
def test_names_of_devices(path):
    def load(device, **options):
        return headrace.load(path, "F32.small", device=device, **options)["F32.small"].device

    facts = headrace._core.device_find("cuda:1")
    assert [load(name) for name in ("cuda:1", 1, facts["pci"], facts["uuid"])] == ["cuda:1"] * 4
    assert [load(name) for name in ("cuda", "auto", 0, "cpu", None)] == ["cuda:0", "cuda:0", "cuda:0", "cpu", "cpu"]
    loader = headrace.Loader(device="cuda:1")
    assert (load(None, loader=loader), load("cuda:0", loader=loader)) == ("cuda:1", "cuda:0")
    raises(errors.DeviceUnavailable, "cuda:2", load, 2)


@on_fake_gpu(CUDA_VISIBLE_DEVICES="1")
def test_visible_devices(path):
    loaded = headrace.load(path, "F32.small", device="cuda")["F32.small"]
    assert bytes_on(loaded, 0) == tensors()["F32.small"][2]
    raises(errors.DeviceUnavailable, "cuda:1", headrace.load, path, device="cuda:1")


@on_fake_gpu()
def test_pinned_memory_is_kept_and_given_back(path):
    headrace.load(path, device=0)
    kept = live().registered_bytes
    assert kept > 0
    headrace.load(path, device=0)
    assert live().registered_bytes == kept
    headrace.release()
    assert live().registered_bytes == 0
    job = headrace.start(path, device=0)
    job.wait()
    assert live().registered_bytes > 0
    headrace.release()  # the job still holds the loader
    assert live().registered_bytes == 0
    loader = headrace.Loader(staging_bytes=8 << 20, lanes=1)
    headrace.load(path, device=0, loader=loader)
    assert 0 < live().registered_bytes <= 8 << 20
    assert loader.trim() > 0 and loader.trim() == 0
    with headrace.open(path) as checkpoint:
        checkpoint.load(device=0, loader=headrace.Loader(numa=False))
        assert checkpoint.last_stats.placement == "not bound: switched off"
        checkpoint.load(device=0)
        assert checkpoint.last_stats.placement not in ("", "not bound: switched off")
        checkpoint.load()
        assert checkpoint.last_stats.placement == ""
    raises(errors.InvalidArgument, "lane", headrace.Loader, device=0, lanes=17)
    raises(errors.InvalidArgument, "staging", headrace.Loader, device=0, staging_bytes=1)


@on_fake_gpu(HEADRACE_STAGING_BYTES=str(8 << 20), HEADRACE_LANES="x")
def test_the_environment_sets_defaults(path):
    raises(errors.InvalidArgument, "HEADRACE_LANES", headrace.load, path)
    os.environ["HEADRACE_LANES"] = "1"
    headrace.load(path, device=0)
    assert 0 < live().registered_bytes <= 8 << 20


@on_fake_gpu()
def test_statistics_and_the_log_line(path):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("headrace").addHandler(handler)
    logging.getLogger("headrace").setLevel(logging.INFO)
    folder = path.parent / "cache" / "headrace"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder.parent)
    file = folder / "limits.json"
    file.unlink(missing_ok=True)
    with headrace.open(path) as checkpoint:
        checkpoint.load(device=1)
        stats, facts = checkpoint.last_stats, headrace._core.device_find("cuda:1")
        assert (stats.device, stats.device_name) == ("cuda:1", facts["name"])
        assert stats.bytes_sent >= checkpoint.nbytes and stats.copy_count + stats.kernel_count > 0
        assert stats.staging_bytes == live().registered_bytes and "cuda:1" in str(stats) and stats.staging
        assert f"to cuda:1 ({facts['name']})" in lines[-1] and "% of the link" not in lines[-1]
        for text in ["{", "[]", '{"limits": [{}]}', '{"limits": 1}']:
            file.write_text(text)
            checkpoint.load(device=1)
            assert "% of the link" not in lines[-1]
        entry = {"host": socket.gethostname(), "time": 1893456000, "device_uuid": facts["uuid"],
                 "to_device": [1, 2, 50_000_000_000, 3]}
        file.write_text(json.dumps({"limits": [entry, entry | {"host": "other", "time": 1993456000}]}))
        checkpoint.load(device=1)
        assert "% of the link's 50.0 GB/s (probed 20" in lines[-1]
        checkpoint.load()
        assert "cpu" not in lines[-1] and checkpoint.last_stats.bytes_sent == 0


@on_fake_gpu()
def test_probe(path):
    limits = headrace.probe(path, seconds=0.3)
    assert limits.device["device"] == "cuda:0" and list(limits.to_device) == [1 << 20, 4 << 20, 16 << 20, 64 << 20]
    assert all(rate > 0 for rate in limits.to_device.values()) and limits.memory_copy > 0
    assert headrace.probe(device="cpu", seconds=0.1).device["device"] == "cpu"
    raises(errors.DeviceUnavailable, "cuda:9", headrace.probe, device="cuda:9")
    raises(errors.InvalidArgument, "seconds", headrace.probe, seconds=0)


@on_fake_gpu()
def test_begin_starts_the_driver(path):
    headrace.begin(path, device="cuda:1")
    wait_until(lambda: live().retain_count > 0)
    assert bytes_on(headrace.load(path, "F32.small", device="cuda:1")["F32.small"], 1) == tensors()["F32.small"][2]
    headrace.begin(path, device="cuda:9").checkpoint()  # no error before the load


@on_fake_gpu()
def test_what_is_loaded_whole_is_read_ahead_while_the_driver_starts(path):
    data = bytes(range(256)) * (64 << 10)
    make = _core.Loader

    def slow(*arguments):
        time.sleep(0.3)
        return make(*arguments)

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        cold = reference.write_by_hand(Path(folder) / "cold.safetensors",
                                       {"a": ("U8", [16 << 20], data), "b": ("U8", [16 << 20], data)})
        for names in (None, "a"):
            loader = headrace.Loader()
            if not page_cache.empty(cold):
                return
            with mock.patch.object(_core, "Loader", slow), headrace.open(cold) as checkpoint:
                assert bytes_on(checkpoint.load(names, device="cuda", loader=loader)["a"], 0) == data
                assert ("read ahead" in checkpoint.last_stats.route_reason) == (names is None)


# --------------------------------------------------------------------------------------------------------- failures


@on_fake_gpu("driver=none")
def test_no_device(path):
    raises(errors.DeviceUnavailable, "", headrace.load, path, device="cuda")
    assert headrace.load(path, "F32.small", device="auto")["F32.small"].device == "cpu"


@on_fake_gpu("memory=1048576")
def test_out_of_device_memory(path):
    error = raises(errors.OutOfMemory, "", headrace.load, path, device=0)
    assert isinstance(error, MemoryError)
    wait_until(lambda: live().allocation_bytes == 0)
    assert bytes_on(headrace.load(path, "F32.small", device=0)["F32.small"], 0) == tensors()["F32.small"][2]


@on_fake_gpu()
def test_a_failing_call_ends_the_load_and_leaves_nothing(path):
    headrace.load(path, device=0)
    wait_until(lambda: live().allocation_bytes == 0)
    failed = 0
    for nth in range(1, 40):
        fake_gpu.driver().fake_cuda_fail_nth(nth, 999)
        try:
            headrace.load(path, "*.wide", device=0)
        except errors.HeadraceError as error:
            assert error.kind in ("DeviceError", "OutOfMemory", "DeviceUnavailable")
            assert error.driver_code in (999, None)
            failed += 1
        fake_gpu.driver().fake_cuda_fail_nth(0, 0)
        wait_until(lambda: live().allocation_bytes == 0)
    assert failed > 5
    assert headrace.verify(path, device=0) > 0


@on_fake_gpu()
def test_after_a_fork_the_child_calls_no_driver(path):
    """And neither do its objects when they die."""
    driver, loader = fake_gpu.driver(), headrace.Loader(device=0)
    loaded = headrace.load(path, device=0, loader=loader)
    job = headrace.start(path, device=0, loader=loader, window_bytes=1)
    capsule = loaded["F32.small"].__dlpack__()
    shared = headrace.load(path, "F32.small", device=0)
    child = os.fork()
    if child == 0:
        raises(errors.Forked, "fork", job.get, "F32.wide")
        raises(errors.Forked, "fork", headrace.load, path, device=0, loader=loader)
        raises((errors.Forked, errors.DeviceUnavailable), "", headrace.load, path, device=0)
        job.close()
        loader.trim()
        headrace.release()
        del loaded, capsule, shared, job, loader
        gc.collect()
        small = bytes(headrace.load(path, "F32.small")["F32.small"]) == tensors()["F32.small"][2]
        os._exit(0 if small and driver.fake_cuda_forked_calls() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes_on(loaded["F32.small"], 0) == tensors()["F32.small"][2]
    assert len(job.wait()) == len(tensors())


@on_fake_gpu()
def test_after_a_fork_the_child_ends_as_it_should(path):
    """With the interpreter's own end, which clears what is left."""
    loaded = headrace.load(path, device=0)
    job = headrace.start(path, device=0)
    child = os.fork()
    if child == 0:
        sys.exit(len(loaded) == 0 or job is None)
    assert os.waitpid(child, 0)[1] == 0


@on_fake_gpu("delay_us=3000")
def test_the_process_ends_while_loads_run(path):
    jobs = [headrace.start(path, device=device) for device in (0, 1, 0)]
    kept = headrace.load(path, "F32.small", device=0)
    globals()["kept"] = jobs, kept  # until the interpreter takes it


@on_fake_gpu("delay_us=300000")
def test_ctrl_c_ends_a_wait(path):
    loader = headrace.Loader(device=0, lanes=1, threads=1, chunk_bytes=64 << 10)  # hundreds of copies
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is not there in a shell's background
    headrace.load(path, "F32.small", device=0, loader=loader)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    raises(KeyboardInterrupt, "", headrace.load, path, device=0, loader=loader)
    assert time.monotonic() - begin < 5
    wait_until(lambda: live().allocation_bytes == 0)
