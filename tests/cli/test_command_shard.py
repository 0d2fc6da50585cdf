"""--shard of load, hash and plan: which block of which tensors, what is refused, and how cold columns are read."""

import os

import pytest
from command import pattern, run, run_json, write

TENSORS = {"w": ("U8", [7, 5], None), "v": ("F32", [4, 3, 2], None), "bias": ("U8", [7], None), "one": ("U8", [], None)}


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "x.safetensors", TENSORS)


def shapes(path, *options):
    return {tensor["name"]: tensor["shape"] for tensor in run_json("hash", "--json", *options, path)["tensors"]}


def test_which_tensors_are_cut(path):
    whole = {name: list(shape) for name, (_, shape, _) in TENSORS.items()}
    assert shapes(path) == whole
    assert shapes(path, "--shard", "0:1/4") == {"w": [2, 5], "v": [1, 3, 2], "bias": [2], "one": []}
    assert shapes(path, "--shard", "1:1/2") == whole | {"w": [7, 2], "v": [4, 1, 2]}
    assert shapes(path, "--shard", "-1:0/2") == whole | {"w": [7, 3], "v": [4, 3, 1], "bias": [4]}
    assert shapes(path, "--shard", "[wv]=1:0/3", "--shard", "bias=0:7/8") == whole | {
        "w": [7, 2], "v": [4, 1, 2], "bias": [0]}
    assert shapes(path, "--shard", "0:0/1", "--shard", "w=0:0/7") == whole | {"w": [1, 5]}  # the last counts
    assert shapes(path, "--match", "w", "--slice", "w=[1:7:2]", "--shard", "0:1/2") == {"w": [1, 5]}


@pytest.mark.parametrize("world", range(1, 9))
def test_the_ranks_blocks_are_the_tensor(tmp_path, world):
    """Each rank's hash is that of its rows by themselves."""
    data = pattern(7 * 5)
    path = write(tmp_path / "x.safetensors", {"w": ("U8", [7, 5], data)})
    block, total = -(-7 // world), 0
    for rank in range(world):
        rows = data[min(7, rank * block) * 5 : min(7, (rank + 1) * block) * 5]
        alone = write(tmp_path / "alone.safetensors", {"w": ("U8", [len(rows) // 5, 5], rows)})
        assert run("hash", "--shard", f"0:{rank}/{world}", path).stdout == run("hash", alone).stdout
        total += run_json("load", "--json", "--shard", f"w=1:{rank}/{world}", path)["bytes"]
    assert total == 35


@pytest.mark.parametrize("shard, code, kind", [
    ("0:2/2", 2, "InvalidArgument"), ("0:0/0", 2, "InvalidArgument"), ("0", 2, "InvalidArgument"),
    ("0:1", 2, "InvalidArgument"), ("x:0/2", 2, "InvalidArgument"), ("0:0/2,", 2, "InvalidArgument"),
    ("w=", 2, "InvalidArgument"), ("0:-1/2", 2, "InvalidArgument"), ("0:0/4294967296", 2, "InvalidArgument"),
    ("bias=1:0/2", 2, "InvalidArgument"), ("w=-3:0/2", 2, "InvalidArgument"), ("absent=0:0/2", 1, "TensorNotFound"),
    ("=0:0/2", 1, "TensorNotFound"),
])
def test_wrong_shards(path, shard, code, kind):
    error = run_json("load", "--json", "--shard", shard, path, code=code)["error"]
    assert error["kind"] == kind and "--shard" in error["message"]


def test_a_shard_must_meet_the_selection(path):
    assert run("load", "--match", "v", "--shard", "w=0:0/2", path).returncode == 1


@pytest.mark.parametrize("world", range(2, 9))
def test_columns_read_what_they_need_and_cold_their_rows(tmp_path, world):
    path = write(tmp_path / "x.safetensors", {"w": ("BF16", [1024, 4096], None)})
    whole = 1024 * 8192
    options = ["--json", "--device", "cpu", "--shard", f"1:{world - 1}/{world}", path]
    hot = run_json("load", *options)
    assert hot["bytes"] == 1024 * 2 * len(range((world - 1) * -(-4096 // world), 4096))
    assert hot["bytes_read"] == hot["bytes"]
    totals = run_json("plan", *options)["totals"]
    assert totals["read_bytes"] == hot["bytes"] <= whole / (world - 1) and totals["cold_read_bytes"] <= whole
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    cold = run_json("load", *options)
    if cold["bytes_direct"]:  # where there is O_DIRECT
        assert cold["bytes_direct"] == cold["bytes_read"] <= whole + 16 * 4096 and cold["reads"] <= 32


def test_the_report_and_the_plan_say_what_is_read(path):
    assert "read        35\n" in run("load", "--device", "cpu", "--match", "w", path).stdout
    assert "; reads 3.5 MiB, past the page cache" in run("plan", "--shard", "1:0/2", write(
        path.parent / "y.safetensors", {"w": ("BF16", [896, 4096], None)})).stdout
