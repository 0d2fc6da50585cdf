"""headrace.Shuffle: whole files on ranks, tensors from rank to rank, bit for bit. And the examples of the page."""

import contextlib
import io
import os
import re
from pathlib import Path

import conftest
import numpy
import pytest
import reference

torch = pytest.importorskip("torch")
import headrace  # noqa: E402
import ranks  # noqa: E402
from test_group_bitwise import block, cut, numpy_of, raw  # noqa: E402

DTYPES = ["BOOL", "U8", "I16", "F16", "BF16", "F8_E4M3", "F32", "C64", "F64", "I64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    random = numpy.random.default_rng(3)
    folder = tmp_path_factory.mktemp("shuffle")
    for number in range(3):
        tensors = {f"{dtype}.{number}": reference.random_tensor(random, dtype, [7, 5 - number, 4])
                   for dtype in DTYPES[number::3]}
        if "BOOL.0" in tensors:
            tensors["BOOL.0"] = ("BOOL", [7, 5, 4], bytes(number % 2 for number in range(140)))
        tensors |= {f"wide.{number}": reference.random_tensor(random, "F32", [4, 5]),
                    f"scalar.{number}": reference.random_tensor(random, "F32", []),
                    f"empty.{number}": ("F32", [0, 4], b"")}
        reference.write_by_hand(folder / f"{number}.safetensors", tensors)
    return folder


def expected_of(folder: Path) -> dict[str, reference.Tensor]:
    return {name: tensor for path in sorted(folder.glob("*.safetensors"))
            for name, tensor in reference.read(path).items()}


def ask_for_all(rank, folder, world, files, **options):
    group = True if world > 1 else None
    expected = expected_of(folder)
    kept = []
    with headrace.Shuffle(files or folder, group=group, keep=True, **options) as shuffle:
        assert set(shuffle.keys()) == set(expected) and len(shuffle) == len(expected)
        for name, tensor in sorted(expected.items()):
            whole = shuffle.get_tensor(name)
            assert tuple(whole.shape) == tuple(tensor[1])
            kept.append((whole, tensor[2]))
            for dim in range(len(tensor[1])):
                kept.append((shuffle.get_sharded(name, dim), cut(tensor, dim, rank, world)))
                kept.append((shuffle.get_sharded(name, dim - len(tensor[1])), cut(tensor, dim, rank, world)))
            for target in range(world):
                pushed = shuffle.push_tensor(name, target)
                assert (pushed is None) == (target != rank)
                if pushed is not None:
                    kept.append((pushed, tensor[2]))
        owners = {name: shuffle.owner(name) for name in shuffle.keys()}
        read = shuffle._job.stats().bytes_read
    assert all(raw(tensor) == data for tensor, data in kept)  # they outlive it
    return owners, read


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_way(folder, world):
    if world == 1:
        ask_for_all(0, folder, 1, None)
        return
    results = ranks.values(ranks.run(world, ask_for_all, folder, world, None))
    for owners, _ in results:
        assert owners == {name: int(name[-1]) % world for name in owners}
    assert sum(read for _, read in results) == sum(len(data) for _, _, data in expected_of(folder).values())


def test_files_as_told(folder):
    files = {1: [folder / "0.safetensors", folder / "2.safetensors"], 0: [folder / "1.safetensors"]}
    for owners, _ in ranks.values(ranks.run(2, ask_for_all, folder, 2, files)):
        assert owners == {name: int(name[-1] != "1") for name in owners}


def several(rank, folder):
    with headrace.Shuffle(folder, group=True) as shuffle:
        columns = shuffle.get_multi_cols(["wide.1", "wide.0"], 1)
        many = shuffle.as_dict({"U8.1": 0, "scalar.1": None})
    return tuple(columns.shape), raw(columns), {name: raw(tensor) for name, tensor in many.items()}


def test_several_at_once(folder):
    expected = expected_of(folder)
    for rank, (shape, columns, many) in enumerate(ranks.values(ranks.run(2, several, folder))):
        wanted = [numpy_of(expected[name])[:, block(5, rank, 2)] for name in ("wide.1", "wide.0")]
        assert shape == (4, 6 - 2 * rank) and columns == numpy.concatenate(wanted, 1).tobytes()
        assert many == {"U8.1": cut(expected["U8.1"], 0, rank, 2), "scalar.1": expected["scalar.1"][2]}


def test_once_each_unless_kept(folder):
    with headrace.Shuffle(folder) as shuffle:
        shuffle.get_tensor("U8.1")
        with pytest.raises(headrace.errors.InvalidArgument, match="handed out before"):
            shuffle.get_tensor("U8.1")


def test_names_alone(folder):
    with headrace.Shuffle(folder, names=["U8.1", "wide.0"]) as shuffle:
        assert shuffle.keys() == ["wide.0", "U8.1"] and len(shuffle) == 2
        assert shuffle._job.stats().bytes_needed == 80 + 7 * 4 * 4
        assert raw(shuffle.get_tensor("U8.1")) == expected_of(folder)["U8.1"][2]
        with pytest.raises(headrace.errors.TensorNotFound, match=r"wide\.1"):
            shuffle.get_tensor("wide.1")


def test_names_that_are_not_there(folder):
    with pytest.raises(headrace.errors.TensorNotFound, match="'typo'"):
        headrace.Shuffle(folder, names=["U8.1", "typo"])


def test_wait_and_drop(folder):
    with headrace.Shuffle(folder, keep=True) as shuffle:
        shuffle.wait()
        for _ in range(2):
            assert raw(shuffle.get_tensor("U8.1")) == expected_of(folder)["U8.1"][2]
        shuffle.drop(["U8.1", "wide.0"])
        with pytest.raises(headrace.errors.InvalidArgument, match="handed out before"):
            shuffle.get_tensor("U8.1")
        assert raw(shuffle.get_tensor("wide.0")) == expected_of(folder)["wide.0"][2]


def wait_in_vain(rank, folder):
    with headrace.Shuffle(folder, group=True) as shuffle:
        if rank == 1:
            shuffle._job._ready = broken
        shuffle.wait()
        shuffle.get_tensor("wide.1")


def broken():
    yield 0
    raise headrace.errors.make("IoError", "the disk is gone")


def test_waiting_that_fails(folder):
    outcomes = ranks.run(2, wait_in_vain, folder)
    assert [outcome.kind for outcome in outcomes] == ["GroupError", "IoError"], outcomes
    assert "IoError: the disk is gone" in outcomes[0].text


def differ(rank, folder, what):
    files = folder
    if what == "files" and rank == 1:
        files = [folder / "0.safetensors", folder / "1.safetensors"]
    if what == "missing" and rank == 1:
        files = folder / "nowhere"
    begun = None
    try:
        with headrace.Shuffle(files, group=True) as shuffle:
            begun = shuffle
            name = "U8.1" if rank or what != "names" else "scalar.1"
            if what == "unknown" and rank == 1:
                name = "nothing"
            if what == "truncated" and rank == 1:
                os.truncate(folder / "1.safetensors", 500)
                shuffle._job.close()
            shuffle.get_tensor(name)
        kind, text = "", ""
    except headrace.HeadraceError as error:
        kind, text = error.kind, str(error)
    again = what == "truncated"
    if not again:
        with headrace.Shuffle(folder, group=True) as shuffle:
            again = shuffle.get_tensor("U8.1") is not None
    return begun is not None, kind, text, again


@pytest.mark.parametrize(("what", "own"), [
    ("files", "GroupError"), ("missing", "FileNotFound"), ("names", "GroupError"), ("unknown", "TensorNotFound"),
    ("truncated", "Cancelled")])
def test_ranks_that_differ(folder, tmp_path, what, own):
    for path in folder.glob("*.safetensors"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    results = ranks.values(ranks.run(2, differ, tmp_path, what))
    assert results[0][1] == "GroupError" and "rank" in results[0][2], results
    assert results[1][1] in (own, "IoError"), results
    assert all(again for *_, again in results)


def run_page(rank, folder):
    """The page's examples, as torchrun would run them."""
    torch.distributed.destroy_process_group()
    os.chdir(folder)
    page = (conftest.ROOT / "docs" / "distributed.md").read_text()
    names, printed = {}, io.StringIO()
    original = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend: original(
        backend, init_method=f"file://{folder}/page-store", rank=rank, world_size=2)
    with contextlib.redirect_stdout(printed):
        for text in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            exec(compile(text, "docs/distributed.md", "exec"), names)
    return printed.getvalue(), tuple(names["everywhere"].shape), tuple(names["block"].shape), names["one"] is not None


def test_examples_of_the_page(tmp_path):
    random = numpy.random.default_rng(1)
    shapes = {"lm_head.weight": [16, 8], "layers.0.q.weight": [8, 8], "layers.1.q.weight": [8, 8], "layers.1.bias": [8]}
    tensors = {name: reference.random_tensor(random, "F32", shape) for name, shape in shapes.items()}
    for name in ("model", "shards"):
        (tmp_path / name).mkdir()
    reference.write_by_hand(tmp_path / "model" / "model.safetensors", tensors)
    for number, name in enumerate(tensors):
        reference.write_by_hand(tmp_path / "shards" / f"{number}.safetensors", {name: tensors[name]})
    results = ranks.values(ranks.run(2, run_page, tmp_path))
    for rank, (printed, everywhere, part, has_one) in enumerate(results):
        assert printed.startswith(f"{rank} (16, 4) ") and everywhere == (8, 8) and part == (16, 4)
        assert has_one == (rank == 0)
