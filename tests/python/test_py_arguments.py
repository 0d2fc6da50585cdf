"""Arguments of the wrong kind: each is an error of this package that says what it is for, and none is taken for
something else. Names that look like patterns."""

import os
import pathlib

import numpy
import pytest
import reference

import headrace
from headrace import errors

DATA = numpy.arange(16, dtype=numpy.float32)
ODD_NAMES = ["*", "a*", "?", "[a]", "a[0-9]", "**", "a.b"]


@pytest.fixture
def path(tmp_path):
    shapes = {"w": [4, 4], "v": [16]}
    return reference.write_by_hand(tmp_path / "x.safetensors",
                                   {name: ("F32", shape, DATA.tobytes()) for name, shape in shapes.items()})


def loads(**options):
    return lambda path: headrace.load(path, **options)


WRONG = {
    "source None": lambda path: headrace.load(None),
    "source 3": lambda path: headrace.load(3),
    "source of checkpoints": lambda path: headrace.load(headrace.open(path)),
    "source of dicts": lambda path: headrace.open({str(path): 1}),
    "source of numbers": lambda path: headrace.open([3]),
    "source of no encoding": lambda path: headrace.open("a\ud800"),
    "begin None": lambda path: headrace.begin(None),
    "storage None": lambda path: headrace.storage(None),
    "revision 3": lambda path: headrace.open("org/name", revision=3),
    "safe_open of no encoding": lambda path: headrace.safe_open("a\ud800", "np"),
    "names None": lambda path: headrace.load(path, [None]),
    "names 3": lambda path: headrace.load(path, 3),
    "names bytes": lambda path: headrace.load(path, b"w"),
    "into list": loads(into=[numpy.zeros((4, 4), numpy.float32)]),
    "into with a number": loads(into={3: numpy.zeros((4, 4), numpy.float32)}),
    "slices list": loads(slices=[slice(0, 1)]),
    "slices with a number": loads(slices={0: slice(0, 1)}),
    "dtype list": loads(dtype=["float32"]),
    "dtype 1": loads(dtype=1),
    "dtype of object": loads(dtype=object),
    "dtypes with a number": loads(dtype={0: "float32"}),
    "framework list": loads(framework=["np"]),
    "order list": loads(order=["file"]),
    "loader x": loads(loader="x"),
    "lazy no": loads(lazy="no"),
    "warm_up yes": loads(warm_up="yes"),
    "strict 2": lambda path: headrace.open(path, strict=2),
    "trailing text": lambda path: headrace.open(path, allow_trailing="no"),
    "shard True": loads(shard=True, rank=0, world=2),
    "shard text": loads(shard="0", rank=0, world=2),
    "shard list": loads(shard=[0], rank=0, world=2),
    "shard of three": loads(shard={"w": (0, (4,), 1)}, rank=0, world=2),
    "sizes 4": loads(shard={"w": (0, 4.0)}, rank=0, world=2),
    "shard with a number": loads(shard={0: 0}, rank=0, world=2),
    "world 0": loads(shard=0, rank=0, world=0),
    "rank 1.0": loads(shard=0, rank=1.0, world=2),
    "rank True": loads(shard=0, rank=True, world=2),
    "pick of True": lambda path: headrace.pick(True, [0]),
    "window 1e6": loads(window_bytes=1e6),
    "window text": loads(window_bytes="1000000"),
    "window True": loads(window_bytes=True),
    "deadline True": loads(deadline=True),
    "deadline text": loads(deadline="3"),
    "open threads": lambda path: headrace.open(path, threads="2"),
    "threads text": lambda path: headrace.Loader(threads="2"),
    "threads 1.5": lambda path: headrace.Loader(threads=1.5),
    "threads True": lambda path: headrace.Loader(threads=True),
    "keep_cache yes": lambda path: headrace.Loader(keep_cache="yes"),
    "keep_cache 2": lambda path: headrace.Loader(keep_cache=2),
    "numa None": lambda path: headrace.Loader(numa=None),
    "route 1": lambda path: headrace.Loader(route=1),
    "metadata list": lambda path: headrace.save_file({"a": DATA}, path.with_name("y"), []),
    "align text": lambda path: headrace.save_file({"a": DATA}, path.with_name("y"), align="8"),
    "sync no": lambda path: headrace.save_file({"a": DATA}, path.with_name("y"), sync="no"),
    "save to None": lambda path: headrace.save_file({"a": DATA}, None),
    "a name of no encoding": lambda path: headrace.save({"\ud800": DATA}),
    "table None": lambda path: headrace.from_table(path, None),
    "table of names": lambda path: headrace.from_table(path, ["abcde"[:4]]),
    "table dtype": lambda path: headrace.from_table(path, [("a", ["F32"], (1,), 0, 0)]),
    "table shape": lambda path: headrace.from_table(path, [("a", "F32", 1, 0, 0)]),
    "table extent": lambda path: headrace.from_table(path, [("a", "F32", (1.0,), 0, 0)]),
    "table offset": lambda path: headrace.from_table(path, [("a", "F32", (1,), 0, True)]),
    "probe seconds 0": lambda path: headrace.probe(path, seconds=0),
    "probe seconds text": lambda path: headrace.probe(path, seconds="1"),
    "probe number": lambda path: headrace.probe(3, seconds=0.01),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(path, case):
    before = os.listdir(path.parent)
    with pytest.raises(errors.InvalidArgument) as caught:
        WRONG[case](path)
    assert len(str(caught.value)) > 20 and os.listdir(path.parent) == before


@pytest.mark.parametrize("name", [3, None, b"w"])
def test_what_is_no_name_is_not_there(path, name):
    with headrace.open(path) as checkpoint, checkpoint.start() as job:
        for call in (checkpoint.__getitem__, job.get):
            with pytest.raises(KeyError):
                call(name)


@pytest.mark.parametrize("arguments", [(None, "np"), (3, "np"), ("x", None), ("x", 3)])
def test_safe_open_raises_what_the_original_raises(arguments):
    with pytest.raises(TypeError, match="argument '(filename|framework)' must be"):
        headrace.safe_open(*arguments)


def test_integers_of_any_type_and_both_flags(path):
    number = numpy.int64(1)
    loader = headrace.Loader(threads=numpy.uint8(2), keep_cache=1, numa=False)
    loaded = headrace.load(path, shard=number, rank=number, world=numpy.int32(2), window_bytes=number, loader=loader)
    assert loaded["w"].shape == (4, 2) and loaded["v"].shape == (16,)


def test_the_environment_is_text(path, monkeypatch):
    monkeypatch.setenv("HEADRACE_THREADS", "2")
    monkeypatch.setenv("HEADRACE_KEEP_CACHE", "1")
    headrace.load(path, loader=headrace.Loader())
    monkeypatch.setenv("HEADRACE_THREADS", "2.5")
    with pytest.raises(errors.InvalidArgument, match="HEADRACE_THREADS: '2.5'"):
        headrace.Loader()


def test_paths_as_bytes(path):
    folder = os.fsencode(path.parent)
    assert headrace.open(os.fsencode(path)).label == str(path)
    for source in (folder, os.fsencode(path), [os.fsencode(path)], pathlib.Path(path)):
        headrace.begin(source)
        assert set(headrace.load(source)) == {"w", "v"}
    headrace.save_file({"a": DATA}, folder + b"/y.safetensors")
    with headrace.safe_open(folder + b"/y.safetensors", "np") as file:
        assert file.keys() == ["a"]
    assert list(headrace.from_table(os.fsencode(path), [("a", "U8", (1,), 0, 0)])) == ["a"]


@pytest.mark.parametrize("dtype", ["F16", "float16", numpy.float16, numpy.dtype("f2"), numpy.dtype("<f2")])
def test_spellings_of_a_dtype(path, dtype):
    assert headrace.load(path, dtype=dtype)["w"].dtype == "F16"
    assert headrace.from_table(path, [("a", dtype, (2,), 0, 8)])["a"].dtype == "F16"


def test_classes_of_scalars():
    for name in ("bool", "int8", "uint16", "float32", "float64", "complex64", "uint64"):
        assert headrace._dtypes.name_of(numpy.dtype(name).type) == headrace._dtypes.ALIASES[name]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert headrace._dtypes.name_of(ml_dtypes.bfloat16) == "BF16"
    torch = pytest.importorskip("torch")
    assert headrace._dtypes.name_of(torch.bfloat16) == "BF16"


def test_no_device_is_host_memory(path):
    with headrace.safe_open(path, "np", None) as file:
        assert numpy.array_equal(file.get_tensor("v"), DATA)


def test_probe_of_a_folder_and_of_nothing(tmp_path, path):
    small = reference.write_by_hand(tmp_path / "a.safetensors", {"s": ("U8", [1], b"x")})
    assert headrace._probe._file_of(tmp_path) == str(path) != str(small)
    assert headrace._probe._file_of(os.fsencode(small)) == str(small)
    with pytest.raises(errors.FileNotFound, match="nope"):
        headrace.probe(tmp_path / "nope", seconds=0.01)
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotSafetensors, match="empty"):
        headrace.probe(tmp_path / "empty", seconds=0.01)
    with pytest.raises(errors.InvalidArgument, match="over 0 and up to 3600, not 3601"):
        headrace.probe(seconds=3601)
    assert headrace.probe(tmp_path, "cpu", seconds=0.01, threads=1).core_count > 0


# ----------------------------------------------------------------------------------------------- names like patterns


@pytest.fixture
def odd(tmp_path):
    tensors = {name: ("F32", [2, 4], numpy.float32([[i, 1, 2, 3], [4, 5, 6, 7]]).tobytes())
               for i, name in enumerate(ODD_NAMES)}
    tensors["whole"] = "F32", [3], bytes(12)
    return reference.write_by_hand(tmp_path / "odd.safetensors", tensors)


def test_one_for_all_is_for_all_whatever_their_names(odd):
    shards = headrace.load(odd, shard=1, rank=1, world=2)
    assert {name: tensor.shape for name, tensor in shards.items()} == dict.fromkeys(ODD_NAMES, (2, 2)) | {"whole": (3,)}
    halves = headrace.load(odd, dtype="float16")
    assert {tensor.dtype for tensor in halves.values()} == {"F16"}
    assert {tensor.device for tensor in headrace.load(odd, device="cpu").values()} == {"cpu"}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_is_that_tensor_alone(odd, name):
    assert list(headrace.load(odd, name)) == list(headrace.load(odd, [name])) == [name]
    halves = headrace.load(odd, dtype={name: "float16"})
    assert [key for key, tensor in halves.items() if tensor.dtype == "F16"] == [name]
    part = headrace.load(odd, slices={name: slice(0, 1)})
    assert [key for key, tensor in part.items() if tensor.shape == (1, 4)] == [name]
    part = headrace.load(odd, shard={name: 1}, rank=0, world=4)
    assert [key for key, tensor in part.items() if tensor.shape == (2, 1)] == [name]
    memory = numpy.zeros((2, 4), numpy.float32)
    assert list(headrace.load(odd, into={name: memory})) == [name] and memory[0, 0] == ODD_NAMES.index(name)
    with headrace.safe_open(odd, "np", eager=True) as file:
        assert file.get_slice(name)[0, 0] == file.get_tensor(name)[0, 0] == ODD_NAMES.index(name)
    with pytest.raises(errors.InvalidArgument, match="covers "):
        headrace.load(odd, device_map={name: "cpu"})
