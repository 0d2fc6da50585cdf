"""headrace.compat.safetensors against the safetensors package: the same calls to both, the same outcomes."""

import copy
import errno
import functools
import importlib
import itertools
import logging
import operator
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import reference
import safetensors.numpy

import headrace
from headrace.compat import _aside
from headrace.compat import safetensors as ours

theirs = safetensors
PAIR = (ours, theirs)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(_aside, "_said", set())


def plain(value):
    """What can be compared of a result: bytes instead of tensors."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if type(value).__module__.startswith("torch"):
        torch = sys.modules["torch"]
        flat = value.detach().clone(memory_format=torch.contiguous_format).flatten()
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return "torch", str(value.dtype), list(value.shape), str(value.device), data
    if hasattr(value, "dtype"):
        kind = "numpy" if isinstance(value, numpy.ndarray) else "jax"
        return kind, str(value.dtype), list(value.shape), numpy.asarray(value).tobytes()
    return bytes(value) if isinstance(value, bytearray) else value


def outcome(call, module):
    try:
        return plain(call(module))
    except Exception as error:
        return error


def check(call):
    """The same result from both, or the same class of exception with the same text. Returns theirs."""
    mine, expected = (outcome(call, module) for module in PAIR)
    if isinstance(expected, Exception):
        assert type(mine) is type(expected), (mine, expected)
        assert words(mine) == words(expected)
    else:
        assert mine == expected
    return expected


def words(error: Exception) -> str:
    """Their temporary names are random, and classes have other modules."""
    text = str(error).partition(" at path")[0]
    return text.replace("builtins.", "").replace("TensorSpec.__new__()", "TensorSpec.__init__()")


def sub(module, name):
    return importlib.import_module(f"{module.__name__}.{name}")


DTYPES = [dtype for dtype in reference.DTYPE_BITS if not dtype.startswith("F6")]
SHAPES = [[2, 3, 4], [], [0, 3], [6]]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    generator = numpy.random.default_rng(9)
    tensors = {}
    for number, (dtype, shape) in enumerate(itertools.product(DTYPES, SHAPES)):
        if dtype == "F4" and shape in ([], [0, 3]):
            continue
        kind, dims, data = reference.random_tensor(generator, dtype, shape)
        if dtype == "BOOL":
            data = bytes(byte & 1 for byte in data)
        tensors[f"{'zyxw'[number % 4]}.{dtype}.{number}"] = kind, dims, data
    folder = tmp_path_factory.mktemp("compat")
    return reference.write_by_hand(folder / "all.safetensors", tensors, 1, {"format": "pt", "a": "b"})


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """What every framework holds."""
    arrays = {"a": numpy.arange(24, dtype="f4").reshape(4, 6), "s": numpy.array(3, "i4")}
    arrays["z"] = numpy.zeros((0, 2), "f2")
    file = tmp_path_factory.mktemp("compat") / "small.safetensors"
    theirs.numpy.save_file(arrays, file, {"format": "np"})
    return file


# -------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("framework", ["pt", "pytorch", "torch", "np", "numpy", "flax", "jax"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_a_file_read_tensor_by_tensor(path, framework, backend):
    pytest.importorskip({"p": "torch", "t": "torch", "n": "numpy"}.get(framework[0], "jax"))
    held = 0
    one, other = (module.safe_open(path, framework, backend=backend) for module in PAIR)
    with one, other:
        assert one.keys() == other.keys() and one.offset_keys() == other.offset_keys()
        assert one.metadata() == other.metadata()
        for name in other.keys():
            expected = outcome(operator.methodcaller("get_tensor", name), other)
            if isinstance(expected, Exception):
                continue  # they hold less: numpy's and JAX's F8
            held += 1
            assert plain(one.get_tensor(name)) == expected, name
            mine, their = one.get_slice(name), other.get_slice(name)
            assert (mine.get_shape(), mine.get_dtype()) == (their.get_shape(), their.get_dtype())
            for index in (..., slice(None)) if their.get_shape() else (...,):
                wanted = outcome(operator.itemgetter(index), their)
                assert isinstance(wanted, Exception) or plain(mine[index]) == wanted, (name, index)
    assert held > 40


def random_index(generator, rank):
    def part():
        bounds = [None if generator.random() < 0.3 else int(generator.integers(-8, 9)) for _ in range(2)]
        step = [None, 1, 2, 3, -1, 0][generator.integers(0, 6)]
        return [slice(*bounds, step), int(generator.integers(-8, 8)), ..., slice(None)][generator.integers(0, 4)]

    parts = tuple(part() for _ in range(generator.integers(0, rank + 2)))
    return parts[0] if len(parts) == 1 and generator.random() < 0.5 else parts


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_random_slices(path, framework):
    """What they answer is answered alike. What they refuse is a SafetensorError, or right by the framework's rules."""
    pytest.importorskip({"pt": "torch", "np": "numpy"}[framework])
    generator = numpy.random.default_rng(11)
    answered = refused = 0
    with theirs.safe_open(path, framework) as other, ours.safe_open(path, framework) as one:
        name = next(name for name in other.keys() if ".F32." in name and len(other.get_slice(name).get_shape()) == 3)
        whole, mine, their = other.get_tensor(name), one.get_slice(name), other.get_slice(name)
        for _ in range(600):
            index = random_index(generator, 3)
            expected, found = outcome(operator.itemgetter(index), their), outcome(operator.itemgetter(index), mine)
            if not isinstance(expected, Exception):
                answered += 1
                assert found == expected, index
            elif isinstance(found, Exception):
                refused += 1
                assert type(found) is ours.SafetensorError, (index, found)
            else:
                assert found == plain(whole[index]), index
    assert answered > 100 and refused > 20


FILE_CALLS = [
    lambda module, path: module.safe_open(path, "np").get_tensor("nobody"),
    lambda module, path: module.safe_open(path, "np").get_slice("nobody"),
    lambda module, path: module.safe_open(path, "np").get_tensor(3),
    lambda module, path: module.safe_open(str(path), "xx"),
    lambda module, path: module.safe_open(path, "cupy"),
    lambda module, path: module.safe_open(path, "np", backend="x"),
    lambda module, path: module.safe_open(path, "np", "nowhere"),
    lambda module, path: module.safe_open(path, "np", "cuda:0"),
    lambda module, path: module.safe_open(path, "np", None).keys(),
    lambda module, path: module.safe_open(path, framework="np", device="cpu").get_tensors(),
    lambda module, path: module.safe_open(path.with_name("none"), "np"),
    lambda module, path: module.safe_open(path.parent, "np"),
    lambda module, path: module.safe_open(bytes(path), "np"),
    lambda module, path: pickle.dumps(module.safe_open(path, "np")),
    lambda module, path: copy.copy(module.safe_open(path, "np")),
    lambda module, path: pickle.dumps(module.safe_open(path, "np").get_slice("a")),
    lambda module, path: sub(module, "numpy").load_file(path),
    lambda module, path: sub(module, "numpy").load_file(path, backend="pread"),
    lambda module, path: sub(module, "numpy").load_file(path, backend="x"),
    lambda module, path: sub(module, "numpy").load_file(path.with_name("none")),
    lambda module, path: sub(module, "numpy").load(path.read_bytes()),
    lambda module, path: sorted(module.deserialize(path.read_bytes())),
    lambda module, path: module.deserialize(bytearray(b"x")),
    lambda module, path: module.deserialize(path.read_bytes()[:-1]),
]


@pytest.mark.parametrize("call", FILE_CALLS, ids=range(len(FILE_CALLS)))
def test_calls_and_their_errors(small, call):
    check(lambda module: call(module, small))


def test_a_closed_file(small):
    for module in PAIR:
        file = module.safe_open(small, "np")
        part = file.get_slice("a")
        with pytest.raises(TypeError):
            file.__exit__()
        assert file.__enter__() is file and file.__exit__(None, None, None) is None
        file.__exit__(None, None, None)
        get = functools.partial(file.get_tensor, "a")
        for call in (file.keys, file.offset_keys, file.metadata, file.get_tensors, get):
            with pytest.raises(theirs.SafetensorError, match="^File is closed$"):
                call()
        assert part[0].tolist() == [0, 1, 2, 3, 4, 5]
        assert {file: 1}[file] == 1 and file != module.safe_open(small, "np")
        with pytest.raises(AttributeError):
            file.other = 1


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_a_file_that_was_opened_before_a_fork(tmp_path, backend):
    """As the workers of a DataLoader have it: also tensors that all threads would read."""
    ours.numpy.save_file({"large": numpy.arange(3 << 20), "small": ARRAY}, tmp_path / "x.safetensors")
    run_program(tmp_path, f"""
import os
from headrace.compat import safetensors
file = safetensors.safe_open("x.safetensors", "np", backend="{backend}")
before = file.get_tensor("large")[-1], file.get_tensor("small").sum()
child = os.fork()
if child == 0:
    after = file.get_tensor("large")[-1], file.get_tensor("small").sum()
    os._exit(0 if after == before and file.get_slice("small")[1].sum() == 12 else 1)
assert os.waitpid(child, 0)[1] == 0
""")


def test_bad_files(tmp_path):
    """Every kind of broken header: the same exception in the same words, with ours behind it."""
    cell = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    headers = {
        b'{"a":': b"", b"\xff\xff": b"", b"[]": b"", b'{"a":%s}' % cell: b"ab", b'{"a": %s}' % cell: b"abcdef",
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}': b"abcdef",
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}': b"abcdefgh",
        b'{"a":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4]}}': b"abcd",
        b'{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}': b"a",
        b'{"a":{"dtype":"XX","shape":[1],"data_offsets":[0,1]}}': b"a",
    }  # fmt: skip
    files = [b"", b"abc", (1 << 40).to_bytes(8, "little") + b"{}", (99).to_bytes(8, "little") + b"{}"]
    files += [len(header).to_bytes(8, "little") + header + data for header, data in headers.items()]
    path = tmp_path / "bad.safetensors"
    for data in files:
        path.write_bytes(data)
        for call in (lambda module: module.safe_open(path, "np"), operator.methodcaller("deserialize", data)):
            error = check(call)
            assert isinstance(error, theirs.SafetensorError), data
        mine = outcome(lambda module: module.safe_open(path, "np"), ours)
        assert isinstance(mine.__context__, headrace.HeadraceError) or not data


# -------------------------------------------------------------------------------------------------------- writing


def arrays_of(generator) -> dict[str, numpy.ndarray]:
    kinds = ["?", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8", "c8", ">f4", ">i2"]
    made = {}
    for number in range(generator.integers(0, 7)):
        shape = [int(extent) for extent in generator.integers(0, 5, generator.integers(0, 4))]
        array = generator.integers(0, 100, shape).astype(kinds[generator.integers(0, len(kinds))])
        made[f"{'cab'[number % 3]}{number}é"] = numpy.asarray(array)
    return made


@pytest.mark.parametrize("seed", range(12))
def test_written_files_are_the_same_bytes(tmp_path, seed):
    generator = numpy.random.default_rng(seed)
    arrays = arrays_of(generator)
    metadata = [None, {"format": "np"}, {"b": "2", "é": "\n"}][seed % 3] if arrays else None
    written = []
    for module in PAIR:
        folder = sub(module, "numpy")
        file = tmp_path / module.__name__
        assert folder.save_file(arrays, file, metadata) is None
        written += [file.read_bytes(), folder.save(arrays, metadata=metadata)]
    if metadata is None or len(metadata) < 2:  # they write metadata in random order
        assert len(set(written)) == 1
    for one, other in itertools.product(PAIR, repeat=2):
        from_file = sub(one, "numpy").load_file(tmp_path / other.__name__)
        assert plain(from_file) == plain(sub(one, "numpy").load(written[0]))
    with theirs.safe_open(tmp_path / ours.__name__, "np") as file:
        assert file.metadata() == metadata


def spec(module, array, **changed):
    facts = {"dtype": array.dtype.name, "shape": array.shape, "data_ptr": array.ctypes.data, "data_len": array.nbytes}
    return module.TensorSpec(**(facts | changed))


ARRAY = numpy.arange(6, dtype="f4").reshape(2, 3)
WRITE_CALLS = [
    lambda module: module.serialize({"a": spec(module, ARRAY)}),
    lambda module: module.serialize({"a": spec(module, ARRAY), "b": spec(module, ARRAY, shape=[6])}, {"x": "y"}),
    lambda module: module.serialize({"a": spec(module, ARRAY, shape=[7])}),
    lambda module: module.serialize({"a": spec(module, ARRAY, dtype="F32")}),
    lambda module: module.serialize({"a": spec(module, ARRAY, dtype="float4_e2m1fn_x2", shape=[24])}),
    lambda module: module.serialize({"a": {"dtype": "float32", "shape": [1], "data": b"abcd"}}),
    lambda module: module.serialize({}),
    lambda module: module.serialize([]),
    lambda module: module.serialize({}, {"a": 1}),
    lambda module: module.serialize({}, {1: "a"}),
    lambda module: module.serialize_file({"a": spec(module, ARRAY)}, "/none/such/file"),
    lambda module: repr(spec(module, ARRAY, data_ptr=64)),
    lambda module: spec(module, ARRAY, dtype="float4_e2m1fn_x2").shape,
    lambda module: sub(module, "numpy").save({"a": numpy.zeros(2, "c16")}),
    lambda module: sub(module, "numpy").save({"a": ARRAY}, {"a": 1}),
    lambda module: sub(module, "numpy").save_file({"a": ARRAY}, "/none/such/file"),
]


@pytest.mark.parametrize("call", WRITE_CALLS, ids=range(len(WRITE_CALLS)))
def test_calls_that_write_and_their_errors(call):
    check(call)


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """Theirs is not tried where it would fail too, and might destroy what is there."""
    path = tmp_path / "x.safetensors"
    ours.numpy.save_file({"a": ARRAY}, path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(ours.SafetensorError, match="^Error while serializing: I/O error: ") as caught:
            ours.numpy.save_file({"a": numpy.zeros(1 << 20)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_flax(small, tmp_path):
    jax = pytest.importorskip("jax")
    check(lambda module: sub(module, "flax").load_file(small))
    check(lambda module: sub(module, "flax").load(small.read_bytes()))
    arrays = {"a": jax.numpy.ones((2, 3), "bfloat16"), "s": jax.numpy.array(1, "float8_e5m2")}
    arrays["z"] = jax.numpy.ones((0, 2))
    check(lambda module: sub(module, "flax").save(dict(arrays), {"x": "y"}))
    for module in PAIR:
        sub(module, "flax").save_file(dict(arrays), tmp_path / module.__name__)
    assert (tmp_path / ours.__name__).read_bytes() == (tmp_path / theirs.__name__).read_bytes()
    assert plain(ours.flax.load_file(tmp_path / theirs.__name__)) == plain(arrays)


# -------------------------------------------------------------------------------------------------- stepping aside


def test_what_ours_refuses_theirs_does_and_the_log_says_so(tmp_path, caplog):
    """JAX without 64 bits: ours would not cut numbers, theirs does."""
    pytest.importorskip("jax")
    path = tmp_path / "x.safetensors"
    ours.numpy.save_file({"a": numpy.arange(3), "b": numpy.ones(2)}, path)
    with caplog.at_level(logging.DEBUG, "headrace"):
        for _ in range(2):
            assert plain(ours.flax.load_file(path)) == plain(theirs.flax.load_file(path))
    said = [record for record in caplog.records if "steps aside" in record.message]
    assert [record.levelname for record in said if "flax" in record.message] == ["WARNING", "DEBUG"]
    assert "headrace steps aside, safetensors.flax.load_file of the package safetensors goes on: " in said[0].message


@pytest.fixture
def other_opener(monkeypatch):
    """Records what the package's safe_open is asked for."""
    asked = []

    class Opener:
        def __init__(self, *arguments, **keywords):
            asked.append((arguments, keywords))

    monkeypatch.setitem(_aside.originals, ("safetensors", "safe_open"), Opener)
    return Opener, asked


def test_rocm_is_named(small, monkeypatch, caplog, other_opener):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    opener, asked = other_opener
    assert isinstance(ours.safe_open(small, "pt", "cuda:0"), opener)
    assert asked == [((small, "pt", "cuda:0"), {})]
    assert "is built for ROCm, whose GPUs headrace does not drive" in caplog.text
    assert isinstance(ours.safe_open(small, "pt", "cpu"), ours.safe_open) and len(asked) == 1


@pytest.mark.parametrize("framework, device", [("tf", "cpu"), ("paddle", "cpu"), ("pt", "mps"), ("pt", "npu:1")])
def test_other_frameworks_and_devices(small, other_opener, framework, device):
    if framework == "pt":
        pytest.importorskip("torch")
    opener, asked = other_opener
    assert isinstance(ours.safe_open(small, framework, device=device), opener)
    assert isinstance(ours.safe_open(small, framework, device, backend="pread"), opener)
    assert asked == [((small, framework, device), {}), ((small, framework, device), {"backend": "pread"})]


def test_a_method_of_later_versions_is_the_packages(small, monkeypatch, caplog):
    """What it changes in its object is seen by what follows."""

    class Later:
        def __init__(self, *arguments, **keywords):
            self.file, self.ahead, self.closed = theirs.safe_open(*arguments, **keywords), [], 0

        def prefetch(self, plan):
            self.ahead = plan

        def keys(self):
            return self.ahead

        def __exit__(self, *arguments):
            self.closed += 1

    monkeypatch.setitem(_aside.originals, ("safetensors", "safe_open"), Later)
    file = ours.safe_open(small, "np")
    assert file.keys() == ["a", "s", "z"] and not caplog.records
    with pytest.raises(AttributeError):
        file.no_such_method()
    file.prefetch(["a"])
    assert file.keys() == ["a"] and "headrace has no prefetch()" in caplog.text
    inner = file.prefetch.__self__
    file.__exit__(None, None, None)
    assert inner.closed == 1
    with pytest.raises(theirs.SafetensorError):
        file.keys()


# ------------------------------------------------------------------------------------------------- whole programs


def run_program(tmp_path, text: str) -> str:
    (tmp_path / "program.py").write_text(text)
    result = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_enable_reaches_names_bound_before_and_after(tmp_path):
    opener = "from safetensors import safe_open\n"
    (tmp_path / "host.py").write_text(opener + "from safetensors.numpy import load_file as read\n")
    (tmp_path / "late.py").write_text(opener + "from safetensors.numpy import save_file\n")
    run_program(tmp_path, """
import sys
import safetensors, host
from headrace.compat import safetensors as ours
originals = safetensors.safe_open, host.read
assert "safetensors.flax" not in sys.modules and "torch" not in sys.modules
reached = ours.enable()
assert sorted(reached) == ["host.read", "host.safe_open"], reached
assert ours.enable() == []
assert safetensors.safe_open is host.safe_open is ours.safe_open
assert host.read is safetensors.numpy.load_file is safetensors.numpy.load_file is ours.numpy.load_file
assert safetensors.numpy.safe_open is ours.safe_open  # as vLLM imports it, from a module of a framework
import late
assert late.safe_open is ours.safe_open and late.save_file is ours.numpy.save_file
late.save_file({"a": __import__("numpy").ones(3)}, "x")
assert host.read("x")["a"].sum() == 3 and host.safe_open("x", "np").keys() == ["a"]
assert safetensors.numpy._TYPES is ours.numpy._TYPES and ours._safe_open_handle
ours.disable()
assert (safetensors.safe_open, host.read) == originals and late.safe_open is host.safe_open is originals[0]
assert late.save_file is safetensors.numpy.save_file is not ours.numpy.save_file
ours.enable()
assert late.safe_open is ours.safe_open
""")


def test_modules_of_frameworks_that_are_imported_later(tmp_path):
    pytest.importorskip("torch")
    run_program(tmp_path, """
import sys
import headrace.compat.safetensors
headrace.compat.safetensors.enable()
assert "safetensors.torch" not in sys.modules and "torch" not in sys.modules
import safetensors.torch, torch
from headrace.compat import safetensors as ours
from headrace.compat import _aside
assert safetensors.torch.load_file is ours.torch.load_file and safetensors.torch.safe_open is ours.safe_open
assert _aside.original("safetensors.torch", "load_file").__module__ == "safetensors.torch"
safetensors.torch.save_file({"a": torch.ones(3)}, "x")
assert safetensors.torch.load_file("x")["a"].sum() == 3
try:
    safetensors.torch.load_file("none")
except FileNotFoundError as error:
    assert str(error) == "No such file or directory: none", error
assert ours.torch._find_shared_tensors is safetensors.torch._find_shared_tensors
""")


def test_without_the_package(tmp_path):
    run_program(tmp_path, """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "safetensors":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import numpy
import headrace.compat
headrace.compat.enable_all()
from headrace.compat import safetensors
array = numpy.arange(6, dtype="f4")
safetensors.numpy.save_file({"a": array}, "x")
assert (safetensors.numpy.load_file("x")["a"] == array).all()
spec = safetensors.TensorSpec(dtype="float32", shape=[6], data_ptr=array.ctypes.data, data_len=24)
assert repr(spec) == f"TensorSpec(dtype='F32', shape=[6], data_ptr={array.ctypes.data}, data_len=24)"
assert safetensors.serialize({"a": spec}) == open("x", "rb").read()
assert safetensors.TensorSpec(dtype="float4_e2m1fn_x2", shape=(2, 3), data_ptr=0, data_len=6).shape == [2, 6]
def message(call, kind=safetensors.SafetensorError):
    try:
        call()
    except kind as error:
        assert type(error) is kind
        return str(error)
open("y", "wb").write(open("x", "rb").read()[:-1])
start = "Error while deserializing header: incomplete metadata, file not fully covered"
assert message(lambda: safetensors.safe_open("y", "np")).startswith(start)
assert message(lambda: safetensors.safe_open("x", "np").get_tensor("b")) == "File does not contain tensor b"
assert message(lambda: safetensors.safe_open("none", "np"), FileNotFoundError) == "No such file or directory: none"
wrong = dict(dtype="x", shape=[], data_ptr=0, data_len=0)
assert message(lambda: safetensors.TensorSpec(**wrong)).startswith('Unknown dtype "x"')
assert message(lambda: safetensors.enable(), ModuleNotFoundError)
assert message(lambda: safetensors.numpy.none, AttributeError)
""")
