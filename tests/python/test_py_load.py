"""Loading through every way of the Python package, bit for bit against the safetensors package."""

import array
import itertools
import os
import random
import threading

import numpy
import pytest
import reference

import headrace

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
WITH_TORCH = [pytest.param("pt", marks=needs_torch)]

SHAPES = [[], [0], [1], [3, 5], [2, 3, 4], [4, 0, 2], [257]]


@pytest.fixture(scope="module")
def tensors() -> dict[str, reference.Tensor]:
    """Every dtype that numpy or torch can hold in whole elements, in several shapes, at odd offsets."""
    generator = numpy.random.default_rng(1)
    result = {}
    for dtype, bits in reference.DTYPE_BITS.items():
        for shape in [[4, 8]] if bits < 8 else SHAPES:
            kind, dims, data = reference.random_tensor(generator, dtype, shape)
            if dtype == "BOOL":
                data = bytes(byte & 1 for byte in data)
            result[f"{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"] = (kind, dims, data)
    return result


@pytest.fixture(scope="module")
def path(tensors, tmp_path_factory):
    return reference.write_by_hand(tmp_path_factory.mktemp("load") / "all.safetensors", tensors, padding=3)


def names_for_torch(tensors):
    return [name for name, (dtype, _, _) in tensors.items() if not dtype.startswith("F6")]


def bytes_of(tensor) -> bytes:
    if torch is not None and isinstance(tensor, torch.Tensor):
        return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return bytes(tensor) if isinstance(tensor, headrace.Tensor) else tensor.tobytes()


def assert_same(loaded, tensors, names):
    assert sorted(loaded) == sorted(names)
    for name in names:
        dtype, shape, data = tensors[name]
        if dtype == "F4" and not isinstance(loaded[name], headrace.Tensor):
            shape = [*shape[:-1], shape[-1] // 2]
        assert list(loaded[name].shape) == shape, name
        assert bytes_of(loaded[name]) == data, name


WAYS = {
    "load": lambda path, **options: headrace.load(path, **options),
    "stream": lambda path, **options: dict(headrace.stream(path, **options)),
    "stream, by name": lambda path, **options: dict(headrace.stream(path, order="name", **options)),
    "stream, file order": lambda path, **options: dict(headrace.stream(path, order="file", **options)),
    "small window": lambda path, **options: dict(headrace.stream(path, window_bytes=1, **options)),
    "lazy, as it comes": lambda path, **options: dict(headrace.stream(path, lazy=True, **options)),
    "lazy": lambda path, **options: dict(headrace.stream(path, lazy=True, order="file", **options)),
    "wait": lambda path, **options: headrace.start(path, **options).wait(),
    "futures": lambda path, **options: by_futures(headrace.start(path, **options)),
    "get": lambda path, **options: by_get(headrace.start(path, **options)),
}


def by_futures(job):
    futures = {name: job.future(name) for name in job.names()}
    return {name: future.result(60) for name, future in futures.items()}


def by_get(job):
    with job:
        return {name: job.get(name) for name in job.names()}


@needs_torch
@pytest.mark.parametrize("way", WAYS)
def test_torch(way, path, tensors):
    names = names_for_torch(tensors)
    loaded = WAYS[way](path, framework="pt", names=names)
    assert_same(loaded, tensors, names)
    assert {str(loaded[f"{dtype}.4x8"].dtype) for dtype in ["F4"]} == {"torch.float4_e2m1fn_x2"}


@pytest.mark.parametrize("way", WAYS)
def test_own_tensors_of_every_dtype(way, path, tensors):
    assert_same(WAYS[way](path), tensors, tensors)


@pytest.mark.parametrize("way", WAYS)
def test_numpy(way, path, tensors):
    pytest.importorskip("ml_dtypes")
    names = [name for name in names_for_torch(tensors) if not name.startswith("F4")]
    assert_same(WAYS[way](path, framework="np", names=names), tensors, names)


@needs_torch
def test_equal_to_the_safetensors_package(path, tensors):
    from safetensors import safe_open

    names = names_for_torch(tensors)
    loaded = headrace.load(path, names, framework="torch")
    with safe_open(path, "pt") as file:
        for name in names:
            theirs = file.get_tensor(name)
            assert loaded[name].dtype == theirs.dtype and loaded[name].shape == theirs.shape
            assert bytes_of(loaded[name]) == bytes_of(theirs), name


@needs_torch
def test_loaded_tensors_are_ordinary(path):
    tensor = headrace.load(path, "F32.3x5", framework="pt")["F32.3x5"]
    assert tensor.is_contiguous() and tensor._base is None and tensor.untyped_storage().resizable()
    tensor += 1  # writable
    tensor.resize_(100)


def test_dtypes_that_a_framework_lacks_are_refused_by_name(path):
    with pytest.raises(headrace.errors.Unsupported, match="F6_E2M3.*framework=None") as caught:
        headrace.load(path, "F6_*", framework="np" if torch is None else "pt")
    assert caught.value.tensor.startswith("F6_")
    with pytest.raises(NotImplementedError, match="numpy has no dtype for F4"):
        headrace.load(path, "F4.*", framework="numpy")


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("framework", [*WITH_TORCH, None])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_under_a_window_of_one_tensor(path, tensors, seed, framework, lazy):
    names = names_for_torch(tensors)
    order = list(reversed(names)) if seed == 0 else random.Random(seed).sample(names, len(names))
    with headrace.start(path, names, framework=framework, window_bytes=1, lazy=lazy) as job:
        loaded = {name: job.get(name) for name in order}
    assert_same(loaded, tensors, names)


@pytest.mark.parametrize("take", [list, headrace.Job.wait])
def test_an_empty_job_gives_nothing_more(path, take):
    job = headrace.start(path)
    assert len(take(job)) == len(job)
    assert list(job) == [] and job.wait() == {}
    job = headrace.start(path)
    job.close()
    with pytest.raises(headrace.errors.Cancelled):
        list(job)


def test_each_tensor_is_handed_out_once(path):
    with headrace.start(path, framework=None) as job:
        job.get("F32.3x5")
        with pytest.raises(headrace.errors.InvalidArgument, match="handed out before"):
            job.get("F32.3x5")
        future = job.future("I8.257")
        assert job.future("I8.257") is future
        assert job.get("I8.257") is future.result()
        with pytest.raises(KeyError):
            job.get("nobody")
        assert len(job.wait()) == len(job) - 2


def test_many_threads_take_from_one_job(path, tensors):
    names = list(tensors)
    loaded = {}
    with headrace.start(path, window_bytes=1 << 10) as job:

        def take(part):
            for name in part:
                loaded[name] = job.get(name)

        threads = [threading.Thread(target=take, args=(names[i::5],)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert_same(loaded, tensors, names)


def test_many_threads_load_at_once(path, tensors):
    names = [name for name in tensors if name.startswith(("F32", "I8", "U16"))]
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(headrace.load(path, names, framework="np"))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for loaded in results:
        assert_same(loaded, tensors, names)


# ------------------------------------------------------------------------------------------------- names and slices


def test_names(path):
    with headrace.open(path) as checkpoint:
        assert list(checkpoint.load("F32.3x5")) == ["F32.3x5"]
        expected = {name for name in checkpoint if name.startswith("F32.")} | {"I8.1"}
        assert set(checkpoint.load(["F32.*", "I8.1", "F32.1"])) == expected
        for nothing in ["F33.1", "F33.*", ["F32.1", "nobody"]]:
            with pytest.raises(headrace.errors.TensorNotFound):
                checkpoint.load(nothing)
        assert checkpoint.load([]) == {}


INDICES = [0, -1, slice(1, None), slice(None, None, 2), slice(-3, -1), slice(5, 1), slice(-100, 100), Ellipsis, ()]


@pytest.mark.parametrize("framework", [*WITH_TORCH, "np", None])
def test_slices_follow_numpy(tmp_path, framework):
    array = numpy.arange(5 * 6 * 7, dtype=numpy.int32).reshape(5, 6, 7)
    path = reference.write_by_hand(tmp_path / "x.safetensors", {"x": ("I32", [5, 6, 7], array.tobytes())}, padding=1)
    simple = [index for index in INDICES if index not in (Ellipsis, ())]
    cases = [*INDICES, *itertools.product(simple, repeat=2), *itertools.product(simple[::2], repeat=3)]
    cases += [(Ellipsis, index) for index in simple] + [(index, Ellipsis, index) for index in simple]
    with headrace.open(path) as checkpoint:
        for index in cases:
            loaded = checkpoint.load(slices={"x": index}, framework=framework)["x"]
            if framework is None:  # keeps dimensions that an integer drops elsewhere
                loaded = numpy.frombuffer(loaded, numpy.int32).reshape(array[index].shape)
            assert loaded.shape == array[index].shape, index
            assert numpy.array_equal(numpy.asarray(loaded), array[index]), index


WRONG = [slice(None, None, -1), slice(0, 1, 0), 5, -6, None, 1.5, [0, 1], True, (0, 0, 0, 0), (..., ...)]


@pytest.mark.parametrize("index", WRONG)
def test_wrong_slices_are_refused(path, index):
    with pytest.raises(ValueError, match=r"tensor 'F32.2x3x4'"):
        headrace.load(path, "F32.2x3x4", slices={"*": index}, framework="np")


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_shards_tile_the_tensor(path, tensors, dim, world):
    whole = numpy.frombuffer(tensors["F32.2x3x4"][2], numpy.float32).reshape(2, 3, 4)
    shards = [headrace.shard(dim, rank, world) for rank in range(world)]
    parts = [headrace.load(path, "F32.2x3x4", slices={"F32.*": part}, framework="np")["F32.2x3x4"] for part in shards]
    assert numpy.concatenate(parts, dim).tobytes() == whole.tobytes()
    block = -(-whole.shape[dim] // world)
    assert all(part.shape[dim] == block for part in parts[: whole.shape[dim] // block])


def test_an_exact_name_goes_before_patterns(path):
    slices = {"F32.*": numpy.s_[:1], "F32.3x5": numpy.s_[:2]}
    loaded = headrace.load(path, ["F32.3x5", "F32.257"], slices=slices, framework="np")
    assert loaded["F32.3x5"].shape == (2, 5) and loaded["F32.257"].shape == (1,)
    with pytest.raises(KeyError):
        headrace.load(path, slices={"nothing.*": 0})


def test_only_the_needed_bytes_are_read(tmp_path):
    path = reference.write_by_hand(tmp_path / "x.safetensors", {"x": ("U8", [1 << 24], bytes(1 << 24))})
    with headrace.open(path) as checkpoint:
        checkpoint.load(slices={"x": numpy.s_[1000:2000]})
        assert checkpoint.last_stats.bytes_needed == 1000 and checkpoint.last_stats.bytes_read < 10000


@needs_torch
def test_f4_slices_keep_pairs(path, tensors):
    loaded = headrace.load(path, "F4.4x8", framework="pt", slices={"F4*": numpy.s_[1:3]})["F4.4x8"]
    assert loaded.shape == (2, 4) and bytes_of(loaded) == tensors["F4.4x8"][2][4:12]
    loaded = headrace.load(path, "F4.4x8", framework="pt", slices={"F4*": 3})["F4.4x8"]
    assert loaded.shape == (4,) and bytes_of(loaded) == tensors["F4.4x8"][2][12:]
    with pytest.raises(headrace.HeadraceError, match="F4"):
        headrace.load(path, "F4.4x8", framework="pt", slices={"F4*": numpy.s_[:, :3]})


def test_dtype_is_named_in_many_ways(path):
    headrace.load(path, "BF16.*", dtype={"BF16.*": "bfloat16"})
    if torch is not None:
        headrace.load(path, "F32.*", dtype=torch.float32)
    headrace.load(path, "F32.*", dtype=numpy.dtype("float32"))
    with pytest.raises(ValueError, match="none of"):
        headrace.load(path, "F32.1", dtype="float33")


# -------------------------------------------------------------------------------------------------------------- into


@needs_torch
def test_into_torch(path, tensors):
    model = torch.nn.Linear(5, 3, bias=False)
    transposed = torch.zeros(5, 3, dtype=torch.bfloat16).t()
    every_other = torch.zeros(3, 10, dtype=torch.int16)[:, ::2]
    targets = {"F32.3x5": model.weight, "BF16.3x5": transposed, "I16.3x5": every_other}
    targets["F64.0"] = torch.zeros(0, dtype=torch.float64)
    loaded = headrace.load(path, into=targets)
    assert all(loaded[name] is targets[name] for name in targets)
    assert_same({name: tensor.detach() for name, tensor in targets.items()}, tensors, targets)
    assert every_other._base[:, 1::2].count_nonzero() == 0


def test_into_numpy_and_buffers(path, tensors):
    array = numpy.zeros((5, 3), numpy.float32).T
    backwards = numpy.zeros((2, 3, 4), numpy.int64)[:, ::-1, ::-1]
    buffer = bytearray(257)
    targets = {"F32.3x5": array, "I64.2x3x4": backwards, "I8.257": buffer}
    headrace.load(path, into=targets)
    for name, target in targets.items():
        assert (target.tobytes() if target is not buffer else bytes(buffer)) == tensors[name][2]
    buffer.append(0)  # not held any more


def test_into_with_slices(path, tensors):
    whole = numpy.frombuffer(tensors["F32.3x5"][2], numpy.float32).reshape(3, 5)
    row, block = numpy.zeros(5, numpy.float32), numpy.zeros((3, 2), numpy.float32)
    headrace.load(path, into={"F32.3x5": row}, slices={"F32.3x5": 1})
    headrace.load(path, into={"F32.3x5": block}, slices={"F32.3x5": numpy.s_[:, ::3]})
    assert row.tobytes() == whole[1].tobytes() and block.tobytes() == whole[:, ::3].tobytes()


MISFITS = {
    "bytes": lambda: bytes(60),
    "one byte more": lambda: bytearray(61),
    "text": lambda: "text",
    "another dtype": lambda: numpy.zeros((3, 5), numpy.complex64),
    "the other byte order": lambda: numpy.zeros((3, 5), numpy.dtype(numpy.float32).newbyteorder("S")),
    "a buffer of other elements": lambda: array.array("h", bytes(60)),
    "another shape": lambda: numpy.zeros((5, 3), numpy.float32),
    "broadcast": lambda: numpy.broadcast_to(numpy.zeros(5, numpy.float32), (3, 5)),
    "torch, another shape": lambda: torch.zeros(3, 4),
    "torch, another dtype": lambda: torch.zeros(3, 5, dtype=torch.complex64),
    "torch, expanded": lambda: torch.zeros(1, 5).expand(3, 5),
    "torch, meta": lambda: torch.zeros(3, 5, device="meta"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_into_refuses_what_does_not_fit(path, misfit):
    if torch is None and misfit.startswith("torch"):
        pytest.skip("PyTorch is not installed")
    with pytest.raises(headrace.HeadraceError, match=r"tensor 'F32.3x5'"):
        headrace.load(path, into={"F32.3x5": MISFITS[misfit]()})


def test_into_unknown_name(path):
    with pytest.raises(headrace.errors.TensorNotFound):
        headrace.load(path, into={"nobody": bytearray(1)})
    with pytest.raises(headrace.errors.InvalidArgument, match="'F32.3x5', which names= does not ask for"):
        headrace.load(path, ["U8*"], into={"F32.3x5": bytearray(60)})


# -------------------------------------------------------------------------------------------------- everything else


@pytest.mark.parametrize("framework", [*WITH_TORCH, "np", None])
def test_out_of_memory_names_the_tensor(tmp_path, framework):
    header = b'{"huge":{"dtype":"U8","shape":[4398046511104],"data_offsets":[0,4398046511104]}}'
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (4 << 40))
    with pytest.raises(MemoryError) as caught:
        headrace.load(path, framework=framework)
    assert isinstance(caught.value, headrace.errors.OutOfMemory) and "4398046511104" in str(caught.value)
    if framework is not None:  # then it is one tensor's memory, and the framework said why
        assert caught.value.tensor == "huge" and caught.value.__cause__ is not None


@needs_torch
def test_a_default_device_does_not_reach_the_destinations(path, tensors):
    with torch.device("meta"):
        loaded = headrace.load(path, "F32.*", framework="pt")
    assert bytes_of(loaded["F32.3x5"]) == tensors["F32.3x5"][2]


@pytest.mark.parametrize("device", ["cuda:99", 99, "mps", "GPU-0", -1, True, 1.5, ""])
def test_what_is_no_device_is_refused(path, device):
    with pytest.raises((headrace.errors.DeviceUnavailable, headrace.errors.InvalidArgument)):
        headrace.load(path, device=device)
    with pytest.raises((headrace.errors.DeviceUnavailable, headrace.errors.InvalidArgument)):
        headrace.Loader(device=device)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", None])
def test_host_memory_by_its_names(path, tensors, device):
    loader = headrace.Loader(device=device, staging_bytes=64 << 20, lanes=2)
    loaded = headrace.load(path, "F32.3x5", device=device, loader=loader)["F32.3x5"]
    assert loaded.device == "cpu" and bytes(loaded) == bytes(loaded.raw()) == tensors["F32.3x5"][2]
    assert loaded.raw().dtype == "U8" and loaded.raw().shape == (60,)
    assert not hasattr(loaded, "__cuda_array_interface__")
    assert loader.trim() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"framework": "tensorflow"}, {"order": "backwards"}, {"window_bytes": -1},
        {"deadline": 0}, {"deadline": -1}, {"deadline": float("nan")}, {"deadline": float("inf")}, {"deadline": "5"},
    ],
)
def test_wrong_options_are_refused(path, options):
    with pytest.raises(headrace.HeadraceError):
        headrace.load(path, **options)


@pytest.mark.parametrize("route", ["auto", "pread", "uring", "mmap"])
@pytest.mark.parametrize("framework", ["np", None])
@pytest.mark.parametrize("threads", [1, 3])
def test_routes(path, tensors, route, threads, framework):
    loader = headrace.Loader(route=route, threads=threads, chunk_bytes=1 << 16)
    names = [name for name in tensors if framework is None or not name.startswith(("F4", "F6"))]
    try:
        assert_same(headrace.load(path, names, loader=loader, framework=framework), tensors, names)
        assert_same(dict(headrace.stream(path, names, loader=loader, framework=framework)), tensors, names)
    except headrace.errors.Unsupported as error:
        assert route == "uring"
        pytest.skip(str(error))


@pytest.mark.parametrize("framework", [None, "np", "pt"])
def test_shapes_without_elements_that_nothing_can_hold(tmp_path, framework):
    pytest.importorskip("torch" if framework == "pt" else "numpy")
    for shape in ([0, 2**63], [2**64 - 1, 0], [0, 2**62, 2**62]):
        path = reference.write_by_hand(tmp_path / "x.safetensors", {"x": ("F32", shape, b""), "y": ("U8", [2], b"ab")})
        assert headrace.open(path)["x"].shape == tuple(shape)
        assert headrace.load(path, "y", framework=framework)["y"].shape == (2,)
        part = headrace.load(path, "x", slices={"x": numpy.s_[:3, :3]}, framework="np") if len(shape) == 2 else None
        assert part is None or 0 in part["x"].shape
        if framework is None and len(shape) == 3:
            assert headrace.load(path)["x"].shape == tuple(shape)
            continue
        with pytest.raises(headrace.errors.Unsupported, match="tensor 'x'") as caught:
            headrace.load(path, framework=framework)
        assert caught.value.tensor == "x"


MIXES = {  # what some of the tensors are asked for, so that a mapping serves the others alone
    "misaligned": {},
    "slices": {"slices": {"f*": numpy.s_[1:]}},
    "dtype": {"dtype": {"f*": "F64"}},
}


@pytest.mark.parametrize("route", ["auto", "pread", "uring", "mmap"])
@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize("mix", MIXES)
def test_small_tensors_of_all_kinds_side_by_side(tmp_path, route, framework, mix):
    """Each gets its own bytes, by whichever way, and not what its memory held before."""
    pytest.importorskip("torch" if framework == "pt" else "numpy")
    stored = {}
    for number in range(40):
        stored[f"u{number:02}"] = ("U8", [200], bytes([number + 1]) * 200)
        values = numpy.arange(number, number + 50, dtype="f4")
        stored[f"f{number:02}"] = ("F32", [50], values.tobytes())
        stored[f"odd{number:02}"] = ("U8", [3 if mix == "misaligned" else 4], b"abcd"[:3 if mix == "misaligned" else 4])
    path = reference.write_by_hand(tmp_path / "mixed.safetensors", stored)
    try:
        loader = headrace.Loader(route=route)
    except headrace.errors.Unsupported as error:
        pytest.skip(str(error))
    for way in ("load", "stream", "lazy"):
        junk = [numpy.full(size, 0xEE, numpy.uint8) for size in (3, 196, 200, 400) for _ in range(50)]
        del junk
        with headrace.start(path, framework=framework, loader=loader, lazy=way == "lazy", **MIXES[mix]) as job:
            loaded = job.wait() if way == "load" else dict(job) if way == "stream" else {n: job.get(n) for n in stored}
        for name, (_, _, data) in stored.items():
            array = numpy.frombuffer(data, "f4" if name[0] == "f" else "u1")
            array = array[1:] if name[0] == "f" and mix == "slices" else array
            array = array.astype("f8") if name[0] == "f" and mix == "dtype" else array
            assert numpy.asarray(loaded[name]).tobytes() == array.tobytes(), (way, name)


def test_the_environment_sets_options(monkeypatch, path):
    monkeypatch.setenv("HEADRACE_THREADS", "1")
    monkeypatch.setenv("HEADRACE_ROUTE", "pread")
    headrace.release()
    try:
        with headrace.open(path) as checkpoint:
            checkpoint.load()
            assert checkpoint.last_stats.thread_count == 1 and checkpoint.last_stats.route == "pread"
        monkeypatch.setenv("HEADRACE_CHUNK_BYTES", "many")
        with pytest.raises(ValueError, match="HEADRACE_CHUNK_BYTES"):
            headrace.Loader()
    finally:
        monkeypatch.undo()
        headrace.release()


def test_progress_and_log(path, caplog):
    calls = []
    with caplog.at_level("INFO", "headrace"):
        headrace.load(path, progress=lambda *counts: calls.append(counts))
    assert calls[-1][0] == calls[-1][1] and calls[-1][2] == calls[-1][3]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and "GB/s" in lines[0] and "route" in lines[0] and "bottleneck" in lines[0]
    headrace.load(path, progress=True)


def test_an_exception_of_the_progress_function_ends_the_load(tmp_path):
    path = reference.write_by_hand(tmp_path / "x.safetensors", {"x": ("U8", [1 << 20], bytes(1 << 20))})

    def fail(*counts):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        headrace.load(path, progress=fail)


def test_an_exception_of_the_progress_function_at_the_end_is_raised_too(tmp_path):
    path = reference.write_by_hand(tmp_path / "x.safetensors", {"x": ("U8", [1 << 20], bytes(1 << 20))})
    calls = []

    def fail(*counts):
        calls.append(counts)
        if counts[0] == counts[1]:
            raise ZeroDivisionError

    for _ in range(20):
        calls.clear()
        try:
            headrace.load(path, progress=fail)
        except ZeroDivisionError:
            assert calls[-1][0] == calls[-1][1]
        else:
            assert all(done < total for done, total, *_ in calls)


def test_verify(path, tensors):
    assert headrace.verify(path) == sum(len(data) for _, _, data in tensors.values())


def test_jax(path, tensors):
    jax = pytest.importorskip("jax")
    names = [n for n in tensors if n.split(".")[0] in ("BF16", "F32", "F8_E4M3", "U16", "BOOL", "C64")]
    loaded = headrace.load(path, names, framework="jax")
    assert all(isinstance(array, jax.Array) for array in loaded.values())
    assert_same({name: numpy.asarray(array) for name, array in loaded.items()}, tensors, names)
    with pytest.raises(headrace.errors.Unsupported, match="jax_enable_x64"):
        headrace.load(path, "F64.*", framework="jax")


def test_keep_cache(tmp_path, monkeypatch):
    tensor = numpy.arange(8 << 20, dtype=numpy.uint8).tobytes()
    path = reference.write_by_hand(tmp_path / "cold.safetensors", {"a": ("U8", [8 << 20], tensor)})
    found = []
    for keep in (False, True):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with headrace.open(path) as checkpoint:
            checkpoint.load(loader=headrace.Loader(keep_cache=keep))
            found.append(checkpoint.last_stats)
    if found[0].storage == "":
        pytest.skip("the page cache cannot be emptied here")
    assert "keep_cache" not in found[0].storage and "keep_cache" in found[1].storage
    assert found[0].storage.split()[0] == headrace.storage(path).split(":")[0].split(",")[0]
    assert found[1].bytes_direct == 0 and (found[0].bytes_direct > 0) == found[0].storage.startswith("direct ")
    monkeypatch.setenv("HEADRACE_KEEP_CACHE", "2")
    with pytest.raises(headrace.errors.InvalidArgument, match="HEADRACE_KEEP_CACHE"):
        headrace.Loader()
    with pytest.raises(FileNotFoundError):
        headrace.storage(tmp_path / "none")
