"""Loads to several devices at once: which device a key of a map means, and, on the fake driver's two GPUs, that every
byte lies where the map says."""

import contextlib
import importlib
import threading

import fake_gpu
import numpy
import pytest
import reference
from fake_gpu import live, on_fake_gpu, read_back, wait_until
from test_gpu_fake import Array, raises

import headrace
from headrace import _core, _dtypes, _frameworks, _places, errors

LAYERS = 12
MAP = {"model.embed": "cpu", "model.layers": 0, "model.layers.1": "cuda:1", "model.layers.10": "cpu",
       "model.layers.2.w": 1, "*.bias": "cuda:1", "lm_head": "cuda"}


def tensors() -> dict[str, reference.Tensor]:
    random = numpy.random.default_rng(31)
    shapes = {"model.embed.weight": [1000, 64], "lm_head.weight": [64, 300], "lm_head.bias": [300], "model.empty": [0]}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.w": [256, 512], f"model.layers.{layer}.norm": [7],
                   f"model.layers.{layer}.bias": [33]}
    return {name: reference.random_tensor(random, "F32", shape) for name, shape in shapes.items()}


def expected_device(name: str) -> str:
    """MAP, spelled out."""
    if name == "model.layers.2.w" or name.endswith(".bias") or name.startswith("model.layers.1."):
        return "cuda:1"
    return "cpu" if name.startswith(("model.embed", "model.layers.10.", "model.empty")) else "cuda:0"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return reference.write_by_hand(tmp_path_factory.mktemp("map") / "x.safetensors", tensors(), padding=5)


def bytes_of(tensor) -> bytes:
    if tensor.device == "cpu":
        return bytes(tensor)
    assert tensor.__dlpack_device__() == (2, int(tensor.device[5:]))
    return read_back(tensor.data_ptr(), tensor.nbytes, int(tensor.device[5:]))


def check(loaded) -> None:
    """Each tensor on its device, and its bytes there."""
    for name, tensor in loaded.items():
        assert tensor.device == expected_device(name), name
        assert bytes_of(tensor) == tensors()[name][2], name


# ------------------------------------------------------------------------------------------------ what a key means


def places(path, device_map, default=None, names=None):
    with headrace.open(path) as checkpoint:
        indices = headrace._request.select(checkpoint._core, names)
        found = _places.resolve(checkpoint._core, indices, device_map, default)
        listed = list(checkpoint) if indices is None else [list(checkpoint)[index] for index in indices]
        return dict(zip(listed, found, strict=True))


def test_modules_cover_what_is_in_them(path, monkeypatch):
    monkeypatch.setattr(_places._devices, "name_of", str)
    found = places(path, {"": "a", "model.layers.1": "b", "model": "c", "model.layers.1.w": "d"})
    assert found["lm_head.weight"] == "a" and found["model.embed.weight"] == found["model.layers.10.w"] == "c"
    assert found["model.layers.1.norm"] == "b" and found["model.layers.1.w"] == "d"
    assert set(places(path, {"lm_head": "x"}, names="lm_head.*").values()) == {"x"}


def test_exact_names_go_before_patterns_and_those_before_modules(path, monkeypatch):
    monkeypatch.setattr(_places._devices, "name_of", str)
    found = places(path, {"model.layers.3": "module", "*.norm": "first", "model.*.3.*": "second", "": "rest",
                          "model.layers.3.norm": "exact", "lm_head.bias": "exact"})
    assert (found["model.layers.3.norm"], found["model.layers.4.norm"]) == ("exact", "first")
    assert (found["model.layers.3.w"], found["model.layers.2.w"]) == ("second", "rest")
    assert found["lm_head.bias"] == "exact"


def test_what_no_key_covers(path):
    error = raises(errors.InvalidArgument, "'model.embed.weight'.* more: .*device=", headrace.load, path,
                   device_map={"lm_head": "cpu"})
    assert error.tensor == "model.embed.weight" and "'lm_head" not in str(error)
    error = raises(errors.InvalidArgument, "covers 'lm_head.bias': ", headrace.load, path,
                   ["lm_head.bias", "lm_head.weight"], device_map={"lm_head.weight": "cpu"})
    assert error.tensor == "lm_head.bias"
    assert set(places(path, {"lm_head": "cpu"}, "cuda:7").values()) == {"cpu", "cuda:7"}
    assert set(places(path, {"lm_head": "cpu", "": "cpu"}).values()) == {"cpu"}
    headrace.load(path, "lm_head.*", device_map={"lm_head": "cpu", "model": "disk", "not.there": "cuda:77"})


def test_modules_without_tensors_are_no_error_and_patterns_without_are(path, caplog):
    """As maps of whole models have them: rotary embeddings, activations, heads that are tied."""
    device_map = {"model": "cpu", "lm_head": "cpu", "model.rotary_emb": "cpu", "act": "cpu", "model.layers.1": "cpu"}
    with caplog.at_level("INFO", "headrace"):
        assert set(places(path, device_map).values()) == {"cpu"}
    assert "'model.rotary_emb', 'act' name no tensor of this load" in caplog.text
    assert set(places(path, {"*.bias": "cpu", "": "cpu"}, names="model.embed.*").values()) == {"cpu"}
    for pattern in ("*.scale", "mode?", "[x]*"):
        raises(errors.TensorNotFound, "no tensor's name matches", places, path, {"": "cpu", pattern: "cpu"})


def test_maps_that_are_refused(path):
    for wrong in ("auto", "cuda:0", 0, ["cpu"], {0: "cpu"}):
        raises(errors.InvalidArgument, "device_map=", headrace.load, path, device_map=wrong)
        if isinstance(wrong, dict):
            raises(errors.InvalidArgument, "device_map=", headrace.begin, path, device_map=wrong)
    for device in ("disk", "meta"):
        error = raises(errors.InvalidArgument, f"'lm_head' on '{device}'.*names=", headrace.load, path,
                       device_map={"": "cpu", "lm_head": device})
        assert error.tensor.startswith("lm_head.")
    raises(errors.InvalidArgument, "'lm_head' on 1.5", headrace.load, path, device_map={"": "cpu", "lm_head": 1.5})
    raises((errors.InvalidArgument, errors.DeviceUnavailable), "'lm_head' on 'tpu'", headrace.load, path,
           device_map={"": "cpu", "lm_head": "tpu"})
    raises(errors.TensorNotFound, "'\\*.scale'", headrace.load, path, device_map={"": "cpu", "*.scale": "cpu"})


def test_in_host_memory_only(path):
    for framework in (None, "np"):
        loaded = headrace.load(path, framework=framework, device_map={"": "cpu", "lm_head": "cpu:0"})
        for name, (_, _, data) in tensors().items():
            found = loaded[name]
            assert (bytes(found) if framework is None else found.tobytes()) == data, name
    torch = pytest.importorskip("torch")
    loaded = headrace.load(path, framework="pt", device_map={"": torch.device("cpu")}, warm_up=True)
    assert all(loaded[name].numpy().tobytes() == data for name, (_, _, data) in tensors().items())


def test_the_core_checks_its_arguments(path):
    with headrace.open(path) as checkpoint:
        loader = headrace.Loader()._core_of(("cpu",))
        count = len(checkpoint)
        for wrong in ({"places": b"\1" * count}, {"places": bytes(count - 1)}, {"places": "x"},
                      {"streams": []}, {"streams": [0, 0]}, {"streams": [-1.5]},
                      {"maker": (str, [], None)}, {"maker": (str, [[]], None)}):
            given = {"places": None, "maker": None, "streams": [0]} | wrong
            with pytest.raises((IndexError, ValueError, TypeError)):
                _core.Load(loader, checkpoint._core, None, given["places"], {}, {}, {}, given["maker"], 0, 0, 0, None,
                           given["streams"])


# -------------------------------------------------------------------------------------- bytes, on two GPUs and the host


@on_fake_gpu()
def test_each_tensor_lies_where_the_map_says(path):
    with headrace.open(path) as checkpoint:
        check(checkpoint.load(device_map=MAP, device="cpu"))
        stats = checkpoint.last_stats
        assert (stats.device, stats.item_count) == ("cpu,cuda:0,cuda:1", len(tensors()))
        assert stats.bytes_ready == checkpoint.nbytes and "to cpu,cuda:0,cuda:1 (" in str(stats)
        on_gpus = sum(len(data) for name, (_, _, data) in tensors().items() if expected_device(name) != "cpu")
        assert on_gpus <= stats.bytes_sent < checkpoint.nbytes
        check(checkpoint.load("model.layers.[12].*", device_map=MAP))
        assert checkpoint.last_stats.device == "cuda:0,cuda:1"
        check(checkpoint.load("model.layers.1.*", device_map=MAP))
        assert checkpoint.last_stats.device == "cuda:1"


@on_fake_gpu("no_kernel=1,no_batch=1")
def test_windows_slices_orders_and_futures(path):
    options = {"device_map": MAP, "device": "cpu"}
    for window in (1, 1 << 20):
        for order in ("ready", "file", "name"):
            check(dict(headrace.stream(path, order=order, window_bytes=window, **options)))
    with headrace.start(path, lazy=True, **options) as job:
        check({name: job.get(name) for name in reversed(job.names())})
    with headrace.start(path, **options) as job:
        check({name: future.result() for name, future in [(name, job.future(name)) for name in job.names()]})
    index = numpy.s_[3:250:7, ::3]
    for name, tensor in headrace.stream(path, "*.w", slices={"*": index}, **options):
        data = numpy.frombuffer(tensors()[name][2], "u4").reshape(256, 512)[index]
        assert tensor.device == expected_device(name) and bytes_of(tensor) == data.tobytes()


@on_fake_gpu()
def test_one_loader_for_the_same_devices(path):
    loader = headrace.Loader()
    headrace.load(path, device_map={"": 0, "lm_head": 1}, loader=loader)
    headrace.load(path, device_map={"": 1, "lm_head": 0}, loader=loader)
    assert list(loader._cores) == [("cpu",), ("cuda:0", "cuda:1")]
    kept = live().registered_bytes
    assert kept > 0 and loader.trim() == kept and live().registered_bytes == 0
    assert headrace.verify(path, device_map=MAP, device="cpu") == sum(len(data) for _, _, data in tensors().values())


@on_fake_gpu()
def test_begin_starts_the_devices_of_a_map(path):
    headrace.begin(path, device_map={"": "cuda:1", "model": 0})
    wait_until(lambda: live().retain_count >= 2)
    check(headrace.load(path, device_map=MAP, device="cpu"))
    headrace.begin(path, device_map={"": "disk"}).checkpoint()  # the load would say what is wrong


@on_fake_gpu("delay_us=20000")
def test_into_memory_of_several_devices(path):
    """Written on each device after what the stream held that used the memory last."""
    names = [name for name in tensors() if name.startswith(("model.layers", "lm_head"))]
    other = path.parent / "zeros.safetensors"
    reference.write_by_hand(other, {name: (*tensors()[name][:2], bytes(len(tensors()[name][2]))) for name in names})
    memory = headrace.load(other, device_map=MAP)
    streams = [fake_gpu.new_stream(ordinal) for ordinal in (0, 1)]
    targets = {}
    for name, tensor in memory.items():
        if tensor.device == "cpu":
            targets[name] = numpy.empty(tensor.shape, "f4")
            continue
        ordinal = int(tensor.device[5:])
        fake_gpu.fill_later(tensor.data_ptr(), tensor.nbytes, streams[ordinal], ordinal)
        targets[name] = Array(tensor, stream=streams[ordinal])
    for options in ({}, {"device_map": MAP}):
        assert headrace.load(path, into=targets, **options) == targets
        for name, target in targets.items():
            found = target.tobytes() if isinstance(target, numpy.ndarray) else bytes_of(memory[name])
            assert found == tensors()[name][2], name
    raises(errors.InvalidArgument, "on cuda:1, but the load goes to cuda:0", headrace.load, path, into=targets,
           device_map={"": 0, "model.layers.10": "cpu"})
    targets["lm_head.bias"].__cuda_array_interface__["stream"] = fake_gpu.new_stream(1)
    raises(errors.InvalidArgument, "two CUDA streams of cuda:1", headrace.load, path, into=targets)


def matrix(name: str) -> numpy.ndarray:
    dtype, shape, data = tensors()[name]
    return numpy.frombuffer(data, "f4").reshape(shape)


@on_fake_gpu()
def test_ranges_of_a_tensor_into_memory_of_several_devices(path):
    """Each range to the device of its memory, whatever device the first of them is on."""
    name, rows = "model.layers.0.w", {0: (100, 180), 1: (180, 256)}
    memory = {ordinal: headrace.load(path, name, device=ordinal, slices={name: numpy.s_[first:last]})[name]
              for ordinal, (first, last) in rows.items()}
    on = {0: numpy.s_[20:100], 1: headrace.pick(0, ranges=[(200, 256), (0, 20)])}  # other rows of as many
    here, bias = numpy.empty((100, 512), "f4"), numpy.empty(300, "f4")
    parts = [(on[ordinal], Array(memory[ordinal])) for ordinal in (1, 0)]
    parts.insert(0, (headrace.pick(0, range(99, -1, -1)), here))
    targets = {name: parts, "lm_head.bias": bias}
    loaded = headrace.load(path, into=targets)
    assert loaded["lm_head.bias"] is bias and bias.tobytes() == tensors()["lm_head.bias"][2]
    whole = matrix(name)
    assert here.tobytes() == whole[99::-1].tobytes()
    assert bytes_of(memory[0]) == whole[20:100].tobytes()
    assert bytes_of(memory[1]) == numpy.concatenate([whole[200:256], whole[:20]]).tobytes()
    raises(errors.InvalidArgument, "on cuda:1, but the load goes to cpu", headrace.load, path, into=targets,
           device="cpu")
    raises(errors.InvalidArgument, "on cpu, but the load goes to cuda:0", headrace.load, path, into=targets,
           device_map={"": 0})


@on_fake_gpu()
def test_blocks_of_a_rank_on_several_devices(path):
    shards = {"model.layers.*.w": -1, "lm_head.weight": 0}
    for world in (1, 3):
        for rank in range(world):
            found = headrace.load(path, device_map=MAP, device="cpu", shard=shards, rank=rank, world=world)
            for name, tensor in found.items():
                dim = 1 if name.endswith(".w") else 0 if name == "lm_head.weight" else None
                expected = matrix(name)
                if dim is not None:
                    block = -(-expected.shape[dim] // world)
                    expected = expected.take(range(rank * block, min((rank + 1) * block, expected.shape[dim])), dim)
                assert tensor.device == expected_device(name), name
                assert bytes_of(tensor) == expected.tobytes(), name


# ------------------------------------------------------------------------------------------------------- frameworks


class Made:
    """A tensor of a framework that allocates for itself, of memory that queued work of the device's stream writes."""

    current = threading.local()  # device: stream

    def __init__(self, shape, dtype, device) -> None:
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.nbytes = int(numpy.prod(shape)) * 4
        self.stream = getattr(Made.current, device, None)
        if device == "cpu":
            self.memory = numpy.empty(max(self.nbytes, 1), "u1")
            self.address = self.memory.ctypes.data
        elif self.nbytes:
            self.address = fake_gpu.allocate(self.nbytes, int(device[5:]))
            fake_gpu.fill_later(self.address, self.nbytes, self.stream, int(device[5:]))
        else:
            self.address = 0

    def address_of(self) -> int:
        return self.address

    @property
    def __cuda_array_interface__(self) -> dict:
        return {"shape": self.shape, "typestr": "<f4", "data": (self.address, False), "strides": None,
                "stream": self.stream, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, int(self.device[5:])

    def data(self) -> bytes:
        if self.device == "cpu":
            return self.memory[: self.nbytes].tobytes()
        return read_back(self.address, self.nbytes, int(self.device[5:]))


def framework_on(device: str):
    stream = None if device == "cpu" else fake_gpu.new_stream(int(device[5:]))

    @contextlib.contextmanager
    def scope():
        before = getattr(Made.current, device, None)
        setattr(Made.current, device, stream)
        yield
        setattr(Made.current, device, before)

    rows = [({"dtype": name, "device": device}, 1) if name == "F32" else f"no {name}" for name, _ in _dtypes.DTYPES]
    capture = None if device == "cpu" else lambda: (stream, scope)
    return stream, _frameworks.Framework("torch", (Made, rows, "address_of"), capture=capture)


@on_fake_gpu("delay_us=20000")
def test_a_framework_that_allocates_on_each(path):
    """Each in memory of its device, made while the streams of all are current, on whichever thread, and written after
    what they held."""
    streams = {}
    for device in ("cpu", "cuda:0", "cuda:1"):
        streams[device], _frameworks._made["torch", device] = framework_on(device)
        setattr(Made.current, device, streams[device])
    options = {"framework": "pt", "device_map": MAP, "device": "cpu"}
    loaded = headrace.load(path, **options)
    streamed = dict(headrace.stream(path, window_bytes=1, **options))
    with headrace.start(path, window_bytes=1, **options) as job:
        later = {name: job.future(name) for name in job.names()}
        later = {name: future.result() for name, future in later.items()}
    for name, made in [*loaded.items(), *streamed.items(), *later.items()]:
        assert isinstance(made, Made) and made.device == expected_device(name), name
        assert made.stream == streams[made.device] and made.data() == tensors()[name][2], name
    assert vars(Made.current) == streams


@on_fake_gpu("delay_us=20000")
def test_tensors_of_parts_on_each(path):
    """Made on the device of their tensor, and written after what its stream held; beside whole ones elsewhere."""
    streams = {}
    for device in ("cpu", "cuda:0", "cuda:1"):
        streams[device], _frameworks._made["torch", device] = framework_on(device)
        setattr(Made.current, device, streams[device])
    rows = {f"model.layers.{layer}.w": [9, 3, 4, 200] for layer in (0, 1, 2, 3)}
    options = {"framework": "pt", "device_map": MAP, "device": "cpu",
               "slices": {name: headrace.pick(0, picked) for name, picked in rows.items()},
               "shard": {"lm_head.weight": (0, (40, 24)), "model.layers.4.w": (1, (128, 384))}, "rank": 1, "world": 2}
    rows["lm_head.weight"] = [*range(20, 40), *range(52, 64)]
    columns = {"model.layers.4.w": [*range(64, 128), *range(320, 512)]}
    for found in (headrace.load(path, **options), dict(headrace.stream(path, window_bytes=1, **options))):
        assert set(found) == set(tensors())
        for name, made in found.items():
            expected = matrix(name)
            expected = expected[rows[name]] if name in rows else expected
            expected = expected[:, columns[name]] if name in columns else expected
            assert made.device == expected_device(name) and made.shape == expected.shape, name
            assert made.stream == streams[made.device] and made.data() == expected.tobytes(), name


@on_fake_gpu()
def test_frameworks_that_cannot(path):
    raises(errors.Unsupported, "device='cpu'", headrace.load, path, framework="np",
           device_map={"": "cpu", "lm_head": 0})
    with contextlib.suppress(ImportError):
        import torch

        if torch.version.cuda is None:
            raises(errors.DeviceUnavailable, "without CUDA", headrace.load, path, framework="pt", device_map=MAP,
                   device="cpu")
            assert importlib.import_module("headrace.torch").warm_up(path, device_map=MAP) == 0


# --------------------------------------------------------------------------------------------------------- failures


@on_fake_gpu()
def test_a_failing_call_frees_all_devices(path):
    options = {"device_map": {"": 0, "model": 1, "lm_head.bias": "cpu"}}
    headrace.load(path, **options)
    wait_until(lambda: live().allocation_bytes == 0)
    before = live()
    failed = 0
    for nth in range(1, 60):
        fake_gpu.driver().fake_cuda_fail_nth(nth, 999)
        try:
            headrace.load(path, ["*.w", "lm_head.*"], **options)
        except errors.HeadraceError as error:
            assert error.kind in ("DeviceError", "OutOfMemory", "DeviceUnavailable")
            failed += 1
        fake_gpu.driver().fake_cuda_fail_nth(0, 0)
        wait_until(lambda: live().allocation_bytes == 0)
        assert live().registered_bytes <= max(before.registered_bytes, 256 << 20)
    assert failed > 10
    assert headrace.verify(path, **options) > 0


@on_fake_gpu("memory=2097152")
def test_too_little_memory_on_one_of_them(path):
    raises(errors.OutOfMemory, "", headrace.load, path, device_map={"": 0, "model": 1})
    wait_until(lambda: live().allocation_bytes == 0)
    loaded = headrace.load(path, "lm_head.*", device_map={"": 0, "lm_head.bias": 1})
    assert bytes_of(loaded["lm_head.bias"]) == tensors()["lm_head.bias"][2]
