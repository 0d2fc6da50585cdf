"""save_file and save against those of the safetensors package: the same bytes, the same refusals, read back by both."""

import array
import json
import os
import resource
import signal
import threading
import time

import numpy
import pytest
import reference

import headrace

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")
theirs = pytest.importorskip("safetensors.torch")
their_numpy = pytest.importorskip("safetensors.numpy")
ours = pytest.importorskip("headrace.torch")
our_numpy = pytest.importorskip("headrace.numpy")

NAMES = ["", "a", "b.weight", "layers.10.w", "layers.9.w", 'q"uo\\te\n\t\x01\x7f', "ünï.\u2028.\U0001f600", "Z"]
TORCH_DTYPES = [dtype for dtype in reference.DTYPE_BITS if not dtype.startswith("F6")]


def random_tensors(seed):
    """Some of every dtype, shape and name, and at most one pair of metadata: the reference keeps no order of them."""
    generator = numpy.random.default_rng(seed)
    tensors = {}
    for number in range(generator.integers(0, 12)):
        name = f"{generator.choice(NAMES)}{number if generator.integers(2) else ''}"
        dtype = generator.choice(TORCH_DTYPES)
        shape = [int(generator.integers(0, 7)) for _ in range(generator.integers(0, 4))]
        if dtype == "F4":
            shape = [*shape, 2 * int(generator.integers(0, 5))]
        _, _, data = reference.random_tensor(generator, dtype, shape)
        kind = headrace._dtypes.torch_dtype(torch, dtype)
        packed = [*shape[:-1], shape[-1] // 2] if dtype == "F4" else shape
        tensor = torch.empty(packed, dtype=kind)
        if tensor.numel():
            raw = [byte & 1 for byte in data] if dtype == "BOOL" else list(data)
            tensor.untyped_storage().copy_(torch.tensor(raw, dtype=torch.uint8).untyped_storage())
        tensors[name] = tensor
    metadata = [None, {str(generator.choice(NAMES)): str(generator.choice(NAMES))}][generator.integers(2)]
    return tensors, metadata


@pytest.mark.parametrize("seed", range(60))
def test_bytes_of_torch(tmp_path, seed):
    tensors, metadata = random_tensors(seed)
    expected = theirs.save(tensors, metadata)
    ours.save_file(tensors, tmp_path / "m.safetensors", metadata)
    assert (tmp_path / "m.safetensors").read_bytes() == expected
    assert ours.save(tensors, metadata) == headrace.save(tensors, metadata) == expected
    assert os.listdir(tmp_path) == ["m.safetensors"]


def same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.numel() == 0 or torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("align", [None, 8, 4096])
def test_read_back(tmp_path, seed, align):
    tensors, metadata = random_tensors(seed)
    tensors = {name: tensor for name, tensor in tensors.items() if "float4" not in str(tensor.dtype)
               and "e8m0" not in str(tensor.dtype)}
    path = tmp_path / "m.safetensors"
    ours.save_file(tensors, path, metadata, align=align)
    for reader in (theirs, ours):
        loaded = reader.load_file(path)
        assert loaded.keys() == tensors.keys()
        assert all(same(loaded[name], tensors[name]) for name in tensors)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == metadata
    if align:
        header_size = int.from_bytes(path.read_bytes()[:8], "little")
        assert (8 + header_size) % align == 0


def test_metadata_keeps_its_order(tmp_path):
    metadata = {letter: letter for letter in "zmakqb"}
    data = headrace.save({"x": numpy.zeros(1)}, metadata)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert list(header) == ["__metadata__", "x"] and list(header["__metadata__"]) == list(metadata)
    assert headrace.save({}, {})[8:].strip() == b'{"__metadata__":{}}'
    assert headrace.save({}) == theirs.save({})


# --------------------------------------------------------------------------------------------- other tensors


def test_numpy(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    base = numpy.arange(24, dtype="int16").reshape(2, 3, 4)
    arrays = {"c": base, "s": numpy.array(3.5), "bool": numpy.array([True, False]), "z": numpy.zeros((0, 3)),
              "bf": numpy.arange(5).astype(ml_dtypes.bfloat16), "f8": numpy.arange(5).astype(ml_dtypes.float8_e4m3fn)}
    assert our_numpy.save(arrays) == their_numpy.save(arrays)
    our_numpy.save_file(arrays, tmp_path / "n.safetensors", {"a": "b"})
    assert (tmp_path / "n.safetensors").read_bytes() == their_numpy.save(arrays, {"a": "b"})
    # the elements in their order, whatever lies how in memory
    views = {"t": base.T, "step": base[:, ::2], "back": base[::-1], "big": base.astype(">i2"), "zero": base[0, 0, 0:0]}
    loaded = our_numpy.load(our_numpy.save(views))
    assert all(loaded[name].dtype == numpy.int16 and (loaded[name] == view).all() for name, view in views.items())
    assert our_numpy.save({"s": numpy.float64(3.5)}) == their_numpy.save({"s": numpy.array(3.5)})
    assert our_numpy.save({"big": views["big"]}) == their_numpy.save({"big": views["big"]})


def test_buffers():
    tensors = {"bytes": b"abc", "array": array.array("f", [1, 2]), "long": array.array("l", [3]),
               "view": memoryview(bytearray(range(12))).cast("B", (3, 4)), "step": memoryview(b"abcdef")[::2],
               "bool": memoryview(b"\1\0").cast("?")}
    loaded = our_numpy.load(headrace.save(tensors))
    assert {name: array.dtype.name for name, array in loaded.items()} == {
        "bytes": "uint8", "array": "float32", "long": "int64", "view": "uint8", "step": "uint8", "bool": "bool"}
    assert loaded["step"].tobytes() == b"ace" and loaded["view"].shape == (3, 4) and loaded["array"].tolist() == [1, 2]


def test_jax():
    jax = pytest.importorskip("jax")
    flax = pytest.importorskip("safetensors.flax", exc_type=ImportError)
    from headrace import jax as our_jax

    arrays = {"a": jax.numpy.arange(6.0).reshape(2, 3), "b": jax.numpy.ones(3, "bfloat16"), "t": jax.numpy.eye(3).T}
    assert our_jax.save(arrays, {"k": "v"}) == flax.save(arrays, {"k": "v"})


def test_headrace_tensors(tmp_path):
    generator = numpy.random.default_rng(4)
    tensors = {dtype: reference.random_tensor(generator, dtype, [3, 8]) for dtype in reference.DTYPE_BITS}
    path = reference.write_by_hand(tmp_path / "in.safetensors", tensors, 0, None)
    with headrace.open(path) as checkpoint:
        loaded = checkpoint.load()
    headrace.save_file(loaded, tmp_path / "out.safetensors")
    again = headrace.load(tmp_path / "out.safetensors")
    for name, tensor in loaded.items():
        assert (again[name].dtype, again[name].shape) == (tensor.dtype, tensor.shape)
        assert bytes(memoryview(again[name].raw())) == bytes(memoryview(tensor.raw())), name


class OnlyDLPack:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_dlpack():
    tensor = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    assert headrace.save({"x": OnlyDLPack(tensor)}) == theirs.save({"x": tensor})


# ---------------------------------------------------------------------------------------------- what is refused


def both_refuse(tensors, kind):
    messages = []
    for module in (theirs, ours):
        with pytest.raises(kind) as caught:
            module.save(tensors)
        messages.append(" ".join(str(caught.value).split()))
    return messages


def test_refused_as_the_reference_does():
    base = torch.zeros(4, 4)
    cases = [({"a": base.t()}, ValueError), ({"a": base[:, :2]}, ValueError), ({"a": base.to_sparse()}, ValueError),
             ({"a": 1}, ValueError), ([base], ValueError), ({"a": base, "b": base}, RuntimeError),
             ({"a": base[:2], "b": base[1:]}, RuntimeError)]
    for tensors, kind in cases:
        first, second = both_refuse(tensors, kind)
        assert first.split("{")[0] == second.split("{")[0]
    disjoint = {"a": base[:2], "b": base[2:]}
    assert ours.save(disjoint) == theirs.save(disjoint)
    for save in (headrace.save, ours.save):
        with pytest.raises(RuntimeError, match="share memory"):
            save({"a": base, "b": base.view(-1)})


def test_refused(tmp_path):
    zeros, path = numpy.zeros(3), tmp_path / "x.safetensors"
    for tensors, kind, said in [
        ({"__metadata__": zeros}, "InvalidArgument", "__metadata__"), ({1: zeros}, "InvalidArgument", "str"),
        ({"a\0": zeros}, "NameHasNul", "NUL"), ({"a": numpy.zeros(1, "complex128")}, "Unsupported", "complex128"),
        ({"a": numpy.zeros(1, "f4,i4")}, "Unsupported", "'a'"), ({"a": object()}, "InvalidArgument", "'a'"),
        ({"a": torch.zeros(1, device="meta")}, "Unsupported", "meta"), ([zeros], "InvalidArgument", "dict"),
        ({"a": torch.zeros(1, dtype=torch.float4_e2m1fn_x2)[0]}, "MisalignedSlice", "F4"),
    ]:
        with pytest.raises(getattr(headrace.errors, kind), match=said):
            headrace.save_file(tensors, path)
    for options, said in [({"metadata": {"a": 1}}, "'a'"), ({"metadata": {2: "b"}}, "2"), ({"align": 12}, "align"),
                          ({"shard_size": 0}, "shard_size"), ({"shard_size": "5 apples"}, "shard_size")]:
        with pytest.raises(headrace.errors.InvalidArgument, match=said):
            headrace.save_file({"a": zeros}, path, **options)
    assert os.listdir(tmp_path) == []
    for size in ("1kB", "1000", "1000 b", "0.9765625KiB"):
        assert headrace._save.size_of(size) == 1000
    assert headrace._save.size_of("2k") == headrace._save.size_of("2kib") == 2048
    with pytest.raises(headrace.errors.FileNotFound) as caught:
        headrace.save_file({"a": zeros}, tmp_path / "missing" / "x")
    assert isinstance(caught.value, FileNotFoundError) and caught.value.file == str(tmp_path / "missing" / "x")


def test_an_error_names_the_file_once(tmp_path, monkeypatch):
    zeros = numpy.zeros(4000)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    for name in (str(tmp_path), "parts"):
        with pytest.raises(headrace.errors.NotARegularFile, match="a folder; give the name of a file") as caught:
            headrace.save_file({"a": zeros}, name)
        assert str(caught.value).count(name) == 1
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(headrace.errors.IoError, match="^y.safetensors: there is no room") as caught:
            headrace.save_file({"a": zeros}, "y.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert str(caught.value).count("y.safetensors") == 1


# ---------------------------------------------------------------------------------- an older checkpoint beside it

OLD = {name: torch.zeros(8) for name in "abc"}
NEW = {name: torch.ones(8) for name in "abc"}


def a_model_of(tensor):
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(tensor)
    return model


SAVES = {
    "save_file": lambda path: headrace.save_file(NEW, path),
    "in shards that are one": lambda path: headrace.save_file(NEW, path, shard_size=96),
    "torch": lambda path: ours.save_file(NEW, path),
    "model": lambda path: ours.save_model(a_model_of(torch.ones(8)), path),
    "numpy": lambda path: our_numpy.save_file({name: tensor.numpy() for name, tensor in NEW.items()}, path),
}


@pytest.mark.parametrize("save", SAVES)
def test_a_file_beside_an_index_of_others(tmp_path, save):
    """A reader of the folder goes by the index, so it would get the old tensors."""
    headrace.save_file(OLD, tmp_path / "model.safetensors", shard_size=32)
    before = {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)}
    with pytest.raises(headrace.errors.InvalidArgument, match="names other files .*remove it") as caught:
        SAVES[save](tmp_path / "model.safetensors")
    assert caught.value.file == str(tmp_path / "model.safetensors.index.json")
    assert before == {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)}
    SAVES[save](tmp_path / "adapter.safetensors")  # another checkpoint, which nobody takes for this one
    for file in before:
        (tmp_path / file).unlink()
    (tmp_path / "adapter.safetensors").unlink()
    SAVES[save](tmp_path / "model.safetensors")
    assert all((tensor == 1).all() for tensor in headrace.load(tmp_path, framework="torch").values())


def test_an_index_of_the_file_itself_or_that_no_one_can_read(tmp_path):
    path, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys("abc", "model.safetensors")}))
    headrace.save_file(NEW, path)
    assert (headrace.load(tmp_path, framework="torch")["a"] == 1).all()
    for text in ("", "{", "[]", '{"weight_map": 3}', "\udc80"):
        index.write_bytes(os.fsencode(text))
        headrace.save_file(NEW, path)


def test_shards_beside_a_file(tmp_path):
    """Ours go by the index, which is of the new ones; other readers take a file of the plain name first."""
    path = tmp_path / "model.safetensors"
    headrace.save_file(OLD, path)
    with pytest.raises(headrace.errors.InvalidArgument, match="remove it first") as caught:
        headrace.save_file(NEW, path, shard_size=64)
    assert caught.value.file == str(path) and os.listdir(tmp_path) == ["model.safetensors"]
    path.unlink()
    headrace.save_file(OLD, path, shard_size=32)
    headrace.save_file(NEW, path, shard_size=64)  # an index is replaced, the shards of another count stay
    assert len(os.listdir(tmp_path)) == 6
    assert all((tensor == 1).all() for tensor in headrace.load(tmp_path, framework="torch").values())


def test_the_stand_in_writes_as_the_package_does(tmp_path, caplog):
    from headrace.compat.safetensors import numpy as stand_in_numpy
    from headrace.compat.safetensors import torch as stand_in

    headrace.save_file(OLD, tmp_path / "model.safetensors", shard_size=32)
    arrays = {name: tensor.numpy() for name, tensor in NEW.items()}
    for save in (lambda path: stand_in.save_file(NEW, path), lambda path: stand_in_numpy.save_file(arrays, path),
                 lambda path: stand_in.save_model(a_model_of(torch.ones(8)), path)):
        save(tmp_path / "model.safetensors")
        assert (theirs.load_file(tmp_path / "model.safetensors")["a"] == 1).all()
        (tmp_path / "model.safetensors").unlink()
    assert caplog.text == ""


# ------------------------------------------------------------------------------------------------------- shards


def hub_split(sizes, limit):
    """The rule of the hub's library: which names share a file."""
    files, current, room = [], [], limit
    for name, size in sizes.items():
        if size > limit:
            files.append([name])
            continue
        if size > room:
            files.append(current)
            current, room = [], limit
        current.append(name)
        room -= size
    return files + [current] if current else files


@pytest.mark.parametrize("seed", range(12))
def test_shards(tmp_path, seed):
    tensors, metadata = random_tensors(seed)
    limit = 1 + 37 * seed
    headrace.save_file(tensors, tmp_path / "model.safetensors", metadata, shard_size=limit)
    files = hub_split({name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}, limit)
    if len(files) < 2:
        assert os.listdir(tmp_path) == ["model.safetensors"]
        assert (tmp_path / "model.safetensors").read_bytes() == theirs.save(tensors, metadata)
        return
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in tensors.values())
    for number, names in enumerate(files, start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        assert {name for name, in_file in index["weight_map"].items() if in_file == file} == set(names)
        assert (tmp_path / file).read_bytes() == theirs.save({name: tensors[name] for name in names}, metadata)
    with headrace.open(tmp_path) as checkpoint:
        assert set(checkpoint) == set(tensors) and not checkpoint.warnings


def test_sizes(tmp_path):
    from headrace._save import size_of

    assert [size_of(size) for size in (None, 7, "7", "5GB", "1.5KiB", "2 MB")] == [0, 7, 7, 5 * 10**9, 1536, 2 * 10**6]


# ------------------------------------------------------------------------------------------------------- models


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 3)
        self.two = torch.nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.flipped = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"two.weight": "mine"}])
def test_models(tmp_path, metadata):
    model = Tied()
    given = None if metadata is None else dict(metadata)
    ours.save_model(model, tmp_path / "ours", given)
    theirs.save_model(model, tmp_path / "theirs", None if metadata is None else dict(metadata))
    assert given == metadata
    if metadata != {"format": "pt"}:
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    with safetensors.safe_open(tmp_path / "ours", "pt") as one, safetensors.safe_open(tmp_path / "theirs", "pt") as two:
        assert one.metadata() == two.metadata() and one.keys() == two.keys()
    for load_model in (ours.load_model, theirs.load_model):
        fresh = Tied()
        assert load_model(fresh, tmp_path / "ours") == (set(), [])
        assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), fresh.state_dict().values()))
    with pytest.raises(ValueError, match=r"non contiguous.*force_contiguous=True"):
        ours.save_model(model, tmp_path / "x", force_contiguous=False)


def test_models_that_do_not_fit(tmp_path):
    ours.save_file({"one.weight": torch.zeros(3, 3), "more": torch.zeros(1)}, tmp_path / "m")
    results = [module.load_model(Tied(), tmp_path / "m", strict=False) for module in (ours, theirs)]
    assert results[0] == results[1]
    messages = []
    for module in (ours, theirs):
        with pytest.raises(RuntimeError) as caught:
            module.load_model(Tied(), tmp_path / "m")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    part = torch.zeros(4)
    model = torch.nn.Module()
    model.a, model.b = torch.nn.Parameter(part[:3]), torch.nn.Parameter(part[1:])
    for module in (ours, theirs):
        with pytest.raises(RuntimeError, match="None is covering the entire storage"):
            module.save_model(model, tmp_path / "x")


# ------------------------------------------------------------------------------------------------------ the file


def test_replaced_while_mapped(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = {"a": torch.arange(1000), "b": torch.ones(3)}
    ours.save_file(tensors, path)
    mapped = ours.load_file(path)  # reads when touched
    path.chmod(0o640)
    ours.save_file({name: tensor for name, tensor in mapped.items()}, path)
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes() == theirs.save(tensors)
    ours.save_file({"other": torch.zeros(1)}, path)
    assert torch.equal(mapped["a"], tensors["a"])


def test_other_threads_run(tmp_path):
    """While one thread writes, others have the interpreter."""
    big = numpy.zeros(300_000_000, "uint8")
    ticks = 0
    done = threading.Event()

    def write():
        headrace.save_file({"big": big}, tmp_path / "big", sync=False)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    assert ticks > 5
    (tmp_path / "big").unlink()


def test_ctrl_c(tmp_path):
    """It ends the call, and leaves nothing but a whole file, should that have been ready."""
    big = numpy.zeros(600_000_000, "uint8")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which is not there in a shell's background
    try:
        threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            headrace.save_file({"big": big}, tmp_path / "big", sync=False, threads=1)
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)
    left = os.listdir(tmp_path)
    assert left == [] or (left == ["big"] and headrace.open(tmp_path / "big")["big"].nbytes == big.nbytes)


def test_at_once(tmp_path):
    """Threads that write one path leave one of the files."""
    candidates = [{"x": numpy.full(100_000, number)} for number in range(4)]
    threads = [threading.Thread(target=headrace.save_file, args=(tensors, tmp_path / "x")) for tensors in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() in [headrace.save(tensors) for tensors in candidates]
