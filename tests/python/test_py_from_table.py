"""from_table(): tensors of files of any format, by offsets that the caller knows."""

import threading

import numpy
import pytest
import reference

import headrace

SIZE = 300_000
ROWS = [
    ("z", "F32", (50_001,), 1, 12_345),
    ("overlaps z", "U8", [50_001], 1, 12_347),
    ("to the end", "F64", [3, 7], 0, SIZE - 168),
    ("at 1", "BF16", [5], 0, 1),
    ("scalar", "F16", [], 1, 0),
    ("empty Ω", "F32", [0, 9], 0, SIZE),
    ("half bytes", "F4", [6], 1, 299_997),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    random = numpy.random.default_rng(8)
    files = [folder / "first.bin", folder / "second.bin"]
    for path in files:
        path.write_bytes(random.bytes(SIZE))
    return files


def plain(paths, row):
    _, dtype, shape, file, offset = row
    return paths[file].read_bytes()[offset:][: reference.size_of(dtype, list(shape))]


def test_the_table(paths):
    with headrace.from_table(paths, ROWS) as checkpoint:
        assert list(checkpoint) == ["at 1", "to the end", "empty Ω", "scalar", "z", "overlaps z", "half bytes"]
        info = checkpoint["z"]
        assert info == ("z", "F32", (50_001,), str(paths[1]), 12_345, 200_004)
        assert checkpoint.files == tuple(map(str, paths)) and checkpoint.metadata == {} and checkpoint.warnings == []
        assert checkpoint.nbytes == sum(len(plain(paths, row)) for row in ROWS)
        assert [tensor.name for tensor in checkpoint.match("*z*")] == ["z", "overlaps z"]
        assert "first.bin and 1 more" in repr(checkpoint)
    assert headrace.from_table(str(paths[0]), []).files == (str(paths[0]),)


@pytest.mark.parametrize("route", ["auto", "pread", "uring", "mmap"])
def test_every_byte_by_every_route(paths, route):
    loader = headrace.Loader(route=route)
    loaded = headrace.from_table(paths, iter(ROWS)).load(loader=loader)
    for row in ROWS:
        assert bytes(memoryview(loaded[row[0]].raw())) == plain(paths, row), row[0]
        assert tuple(row[2]) == loaded[row[0]].shape and row[1] == loaded[row[0]].dtype


def test_slices_into_and_frameworks(paths):
    checkpoint = headrace.from_table(paths, ROWS)
    whole = numpy.frombuffer(plain(paths, ROWS[0]), numpy.float32)
    part = checkpoint.load("z", framework="np", slices={"z": slice(10, None, 3)})["z"]
    numpy.testing.assert_array_equal(part.view(numpy.uint32), whole[10::3].view(numpy.uint32))
    into = numpy.zeros((3, 7))
    checkpoint.load(into={"to the end": into})
    assert into.tobytes() == plain(paths, ROWS[2])


def test_it_outlives_what_it_was_made_of(paths):
    rows = [(f"{number}", "U8", [3], number % 2, number) for number in range(5000)]
    checkpoint = headrace.from_table([str(path) for path in paths], rows)
    expected = {row[0]: plain(paths, row) for row in rows[:50]}
    rows.clear()
    seen = []

    def load():
        seen.append({name: bytes(memoryview(tensor)) for name, tensor in checkpoint.load(list(expected)).items()})

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [expected] * 4


@pytest.mark.parametrize(
    ("row", "kind", "text"),
    [
        (("", "U8", [1], 0, 0), "InvalidArgument", "no name"),
        (("a\0b", "U8", [1], 0, 0), "NameHasNul", "NUL"),
        (("z", "U8", [1], 0, 0), "DuplicateTensor", "twice"),
        (("x", "Q4_0", [1], 0, 0), "InvalidArgument", "'Q4_0'"),
        (("x", "U8", [-1], 0, 0), "InvalidArgument", "an extent is -1"),
        (("x", "U8", [1], 2, 0), "InvalidArgument", "there are 2 files"),
        (("x", "U8", [1], -1, 0), "InvalidArgument", "its file is -1"),
        (("x", "U8", [1], 0, 1 << 64), "InvalidArgument", "its offset"),
        (("x", "U8", [1] * 65, 0, 0), "RankTooLarge", "65"),
        (("x", "U8", [1 << 40, 1 << 40], 0, 0), "ValidationOverflow", "overflows"),
        (("x", "F4", [3], 0, 0), "MisalignedSlice", "whole bytes"),
        (("x", "F32", [1], 0, SIZE - 3), "MetadataIncompleteBuffer", "past the end"),
    ],
)
def test_what_is_refused(paths, row, kind, text):
    with pytest.raises(getattr(headrace.errors, kind), match=text) as caught:
        headrace.from_table(paths, [*ROWS, row])
    assert (caught.value.tensor or "") == row[0].replace("\0", "\\x00")
    if kind not in ("InvalidArgument", "DuplicateTensor"):
        assert (caught.value.file, caught.value.offset) == (str(paths[row[3]]), row[4])


def test_wrong_kinds_and_files(paths, tmp_path):
    for row in [("x", "U8", [1], 0), ("x", "U8", 1, 0, 0), ("x", "U8", [1.5], 0, 0), (7, "U8", [1], 0, 0)]:
        with pytest.raises((TypeError, ValueError)):
            headrace.from_table(paths, [row])
    with pytest.raises(ValueError, match="surrogates"):
        headrace.from_table(paths, [("\ud800", "U8", [1], 0, 0)])
    with pytest.raises(headrace.errors.InvalidArgument, match="empty"):
        headrace.from_table([], [])
    with pytest.raises(headrace.errors.NotARegularFile):
        headrace.from_table(tmp_path, [])
    with pytest.raises(FileNotFoundError):
        headrace.from_table(tmp_path / "missing", [])


def test_a_file_that_changed_fails_its_load(tmp_path):
    path = tmp_path / "changes.bin"
    path.write_bytes(bytes(10))
    checkpoint = headrace.from_table(path, [("a", "U8", [10], 0, 0)])
    path.write_bytes(bytes(11))
    with pytest.raises(headrace.errors.FileChanged):
        checkpoint.load()
