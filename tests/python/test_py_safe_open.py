"""headrace.safe_open and load_file, load against those of the safetensors package: the same program runs with both."""

import itertools
import json
import os

import numpy
import pytest
import reference

import headrace

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
pytest.importorskip("safetensors.torch")
pytest.importorskip("safetensors.numpy")
pytest.importorskip("headrace.torch")
pytest.importorskip("headrace.numpy")

TORCH_DTYPES = [dtype for dtype in reference.DTYPE_BITS if not dtype.startswith("F6")]
OPENERS = {
    "mapped": headrace.safe_open,
    "eager": lambda *args, **kw: headrace.safe_open(*args, eager=True, **kw),
    "pread": lambda *args, **kw: headrace.safe_open(*args, backend="pread", **kw),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    generator = numpy.random.default_rng(2)
    tensors = {}
    for number, (dtype, shape) in enumerate(itertools.product(TORCH_DTYPES, [[2, 3, 4], [], [0, 3], [6]])):
        if dtype == "F4" and shape in ([], [0, 3]):
            continue
        kind, dims, data = reference.random_tensor(generator, dtype, shape)
        if dtype == "BOOL":
            data = bytes(byte & 1 for byte in data)
        tensors[f"{'zyxw'[number % 4]}.{dtype}.{len(shape)}{'z' if 0 in shape else ''}"] = (kind, dims, data)
    folder = tmp_path_factory.mktemp("safe_open")
    return reference.write_by_hand(folder / "all.safetensors", tensors, 1, {"format": "pt", "a": "b"})


def same(ours, theirs) -> bool:
    if isinstance(theirs, torch.Tensor):
        raw = [tensor.clone(memory_format=torch.contiguous_format).flatten() for tensor in (ours, theirs)]
        ours_bytes, theirs_bytes = (part.view(torch.uint8).numpy().tobytes() if part.numel() else b"" for part in raw)
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours_bytes == theirs_bytes
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and bytes(ours.tobytes()) == theirs.tobytes()


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("framework", ["pt", "pytorch", "torch"])
def test_torch_tensors(path, opener, framework):
    with OPENERS[opener](path, framework=framework) as ours, safetensors.safe_open(path, framework) as theirs:
        assert ours.keys() == theirs.keys()
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata()
        for name in theirs.keys():
            assert same(ours.get_tensor(name), theirs.get_tensor(name)), name
            one, other = ours.get_slice(name), theirs.get_slice(name)
            assert one.get_shape() == other.get_shape() and one.get_dtype() == other.get_dtype()
        every = ours.get_tensors()
        assert list(every) == list(theirs.get_tensors())
        assert all(same(every[name], tensor) for name, tensor in theirs.get_tensors().items())


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("framework", ["np", "numpy"])
def test_numpy_tensors(path, opener, framework):
    held = 0
    with OPENERS[opener](path, framework) as ours, safetensors.safe_open(path, framework) as theirs:
        for name in theirs.keys():
            try:
                expected = theirs.get_tensor(name)
            except AttributeError:  # it has no fp8 in numpy; ours has by ml_dtypes
                continue
            held += 1
            assert same(ours.get_tensor(name), expected), name
        assert held > 40
        tensor = ours.get_tensor(theirs.keys()[0])
        assert tensor.flags.writeable and tensor.flags.aligned


@pytest.mark.parametrize("framework", ["jax", "flax"])
def test_jax_tensors(path, framework):
    pytest.importorskip("jax")
    with headrace.safe_open(path, framework) as ours, safetensors.safe_open(path, framework) as theirs:
        for dtype in ("F32", "BF16", "I32", "U8"):
            name = next(name for name in theirs.keys() if f".{dtype}.3" in name)
            assert same(numpy.asarray(ours.get_tensor(name)), numpy.asarray(theirs.get_tensor(name)))
            one, other = ours.get_slice(name)[:, 1:], theirs.get_slice(name)[:, 1:]
            assert type(one) is type(other) and same(numpy.asarray(one), numpy.asarray(other))


BOUNDS = [None, -7, -2, -1, 0, 1, 2, 3, 9]
SLICES = [slice(a, b, c) for a in BOUNDS for b in BOUNDS for c in (None, 1, 2, 5)]
ODD = [None, 1.5, [0, 1], numpy.array([0, 1]), "x", slice(None, None, -1), slice(0, 2, 0)]
ODD += [(..., ...), (0, 0, 0, 0), 7, -7]


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_slices(path, opener, framework):
    """What the reference answers is answered alike; what it refuses is refused, or is right by numpy's rules."""
    few = [slice(None), slice(1, 2), slice(0, 3, 2), 0, -1, Ellipsis]
    indices = [*SLICES, *few, (), *itertools.product(few, repeat=2), *itertools.product(few[:5], repeat=3), *ODD]
    answered = 0
    with OPENERS[opener](path, framework) as ours, safetensors.safe_open(path, framework) as theirs:
        for dtype, index in itertools.product(["F32", "BF16", "U8"], indices):
            name = next(name for name in theirs.keys() if f".{dtype}.3" in name)
            whole = theirs.get_tensor(name)
            if framework == "pt" and opener != "mapped" and isinstance(index, (list, numpy.ndarray, type(None), tuple)):
                if not isinstance(index, tuple) or index.count(Ellipsis) > 1:
                    continue  # the engine reads by numpy's rules, not by torch's
            try:
                expected = theirs.get_slice(name)[index]
            except Exception as error:
                with_numpy = None
                try:
                    with_numpy = ours.get_slice(name)[index]
                except Exception as mine:
                    allowed = (headrace.SafetensorError, type(error))
                    assert isinstance(mine, allowed), (index, mine, error)
                else:
                    assert framework == "np" or opener != "mapped"
                    assert same(with_numpy, whole[index]), index
                continue
            answered += 1
            assert same(ours.get_slice(name)[index], expected), (name, index)
    assert answered > 500


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_slices_of_scalars_and_empty_tensors(path, opener, framework):
    with OPENERS[opener](path, framework) as file:
        names = file.keys()
        scalar = next(name for name in names if name.endswith("F32.0"))
        empty = next(name for name in names if name.endswith("F32.2z"))
        assert file.get_slice(scalar)[...].shape == () and file.get_slice(scalar)[()].shape == ()
        assert tuple(file.get_slice(empty)[0:1].shape) == (0, 3)
        assert tuple(file.get_slice(empty)[:, 1].shape) == (0,)
        for name, index in [(scalar, 0), (scalar, slice(None)), (empty, 0)]:
            with pytest.raises((headrace.SafetensorError, IndexError)):
                file.get_slice(name)[index]


def outcome(case, opener):
    try:
        return case(opener)
    except Exception as error:
        return error


def test_errors_are_of_the_same_kind(path, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(path.read_bytes()[:-1])
    cases = [
        lambda opener: opener(tmp_path / "none", "pt"),
        lambda opener: opener(str(tmp_path / "none"), "np"),
        lambda opener: opener(path, "xx"),
        lambda opener: opener(path, "pt", "nowhere"),
        lambda opener: opener(path, "pt", backend="x"),
        lambda opener: opener(path, None),
        lambda opener: opener(path),
        lambda opener: opener(tmp_path / "empty", "pt"),
        lambda opener: opener(tmp_path / "short", "pt"),
        lambda opener: opener(path, "pt").get_tensor("nobody"),
        lambda opener: opener(path, "pt").get_slice("nobody"),
        lambda opener: opener(path, "np").get_tensor(3),
    ]
    for case in cases:
        theirs, ours = outcome(case, safetensors.safe_open), outcome(case, headrace.safe_open)
        assert isinstance(theirs, Exception)
        kind = headrace.SafetensorError if isinstance(theirs, safetensors.SafetensorError) else type(theirs)
        assert isinstance(ours, kind), (theirs, ours)


@pytest.mark.parametrize("opener", OPENERS)
def test_an_index_is_refused(path, tmp_path, opener):
    (tmp_path / "all.safetensors").symlink_to(path)
    with headrace.open(path) as checkpoint:
        names = list(checkpoint)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "all.safetensors")}))
    assert len(headrace.open(index)) == len(names)
    with pytest.raises(headrace.errors.NotSafetensors, match="is an index; safe_open takes one file"):
        OPENERS[opener](index, "np")


def test_a_closed_file_says_so(path):
    file = headrace.safe_open(path, "pt")
    tensor, part = file.get_tensor(file.keys()[0]), file.get_slice(file.keys()[0])
    file.__exit__(None, None, None)
    file.__exit__(None, None, None)
    for call in [file.keys, file.metadata, lambda: file.get_tensor("x"), lambda: file.get_slice("x"), file.get_tensors]:
        with pytest.raises(headrace.SafetensorError, match="File is closed"):
            call()
    assert tensor.shape == part[...].shape  # what was handed out stays


def test_a_file_cut_short_after_opening_says_where(tmp_path):
    path = tmp_path / "cut.safetensors"
    values = {"a": numpy.zeros(1000, "u1"), "b": numpy.ones(5000, "u1")}
    headrace.save_file(values, path)
    with headrace.safe_open(path, "numpy") as file:
        begin = path.stat().st_size - 5000
        for size in [begin + 100, begin - 100]:
            os.truncate(path, size)
            with pytest.raises(headrace.errors.ShortRead, match=f"tensor 'b' in .*: the file ends at byte {size}, "):
                file.get_tensor("b")


def test_hashable_and_equal_to_itself_only(path):
    one, other = headrace.safe_open(path, "pt"), headrace.safe_open(path, "pt")
    assert {one: 1}[one] == 1 and one == one and one != other


def test_mapped_tensors_are_lazy_private_and_writable(tmp_path):
    size = 1 << 28
    path = reference.write_by_hand(tmp_path / "x.safetensors", {})
    header = b'{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    before = resident_bytes()
    with headrace.safe_open(path, "pt") as file:
        tensor = file.get_tensor("x")
        assert resident_bytes() - before < size // 8  # nothing was read
        again = file.get_tensor("x")
    tensor[5] = 7
    assert again[5] == 7 and again.data_ptr() == tensor.data_ptr()
    del again
    with path.open("rb") as file:
        file.seek(8 + len(header) + 5)
        assert file.read(1) == b"\0"


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize("eager", [False, True])
def test_load_file(path, eager):
    theirs = safetensors.torch.load_file(path)
    ours = headrace.torch.load_file(path, eager=eager)
    assert list(ours) == list(theirs) and all(same(ours[name], theirs[name]) for name in theirs)


def test_load_of_bytes(tmp_path):
    generator = numpy.random.default_rng(3)
    dtypes = ["F32", "BF16", "F16", "I64", "U16", "C64", "F8_E4M3"]
    tensors = {dtype: reference.random_tensor(generator, dtype, [3, 5]) for dtype in dtypes}
    tensors |= {"empty": ("F32", [0, 2], b""), "scalar": ("I8", [], b"x")}
    data = reference.write_by_hand(tmp_path / "x.safetensors", tensors, 5).read_bytes()
    theirs, ours = safetensors.torch.load(data), headrace.torch.load(data)
    assert set(ours) == set(theirs) and all(same(ours[name], theirs[name]) for name in theirs)
    ours["F32"] += 1
    assert ours["F32"].untyped_storage().nbytes() == 60
    ours = headrace.numpy.load(data)
    assert all(ours[name].tobytes() == tensors[name][2] and ours[name].flags.writeable for name in tensors)
    for bad in [b"", b"abc", data[:-1], data + b"x"]:
        with pytest.raises(headrace.SafetensorError):
            headrace.torch.load(bad)
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.load(bad)


def test_numpy_load_file(tmp_path):
    arrays = {"a": numpy.arange(12, dtype=numpy.float16).reshape(3, 4), "b": numpy.array(3)}
    arrays["c"] = numpy.zeros((0, 2), "u4")
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays, path)
    theirs, ours = safetensors.numpy.load_file(path), headrace.numpy.load_file(path)
    assert set(ours) == set(theirs) and all(same(ours[name], theirs[name]) for name in theirs)
    data = path.read_bytes()
    theirs, ours = safetensors.numpy.load(data), headrace.numpy.load(data)
    assert set(ours) == set(theirs) and all(same(ours[name], theirs[name]) for name in theirs)


def test_jax_load_file(tmp_path):
    pytest.importorskip("jax")
    import safetensors.flax

    import headrace.jax

    arrays = {"a": numpy.arange(12, dtype=numpy.float16).reshape(3, 4), "b": numpy.array(3, "i4")}
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays, path)
    theirs, ours = safetensors.flax.load_file(path), headrace.jax.load_file(path)
    assert all(type(ours[name]) is type(theirs[name]) and same(ours[name], theirs[name]) for name in theirs)
    ours = headrace.jax.load(path.read_bytes())
    assert all(same(ours[name], theirs[name]) for name in theirs)
