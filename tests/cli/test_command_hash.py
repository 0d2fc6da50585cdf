"""headrace hash: against hashes that another implementation (the xxhash package for Python) made of the same bytes."""

import random

import pytest

from command import SMALL, pattern, run, run_json, write, write_sharded

# Of pattern(size).
XXH3_128 = {
    0: "99aa06d3014798d86001c324468d497f",
    1: "51025a4491835505e12ef9d2eb86ceeb",
    3: "f727126d6288a4bd5c83885a0fb5d516",
    16: "6c53b945f90d679849bf196d35649b79",
    17: "f889d91b7faf208294ad051aea796d7e",
    128: "c0c43e613be3959cb00cd79b1b1941ea",
    129: "7b68019dbbd30d111e096bc250a6f87d",
    240: "7ecb970739d31a307ee14dd966cf587c",
    241: "6602d9b7c91a6bee54dd4acb4eb345fb",
    1024: "8231ed15e1eb1219ac76f3b21d6971c4",
    5000: "07947ea190e8a43f376e16247690767c",
    1 << 20: "973db480187b581512f3c520b4230dbf",
    (1 << 24) + 3: "f52b0f82362f95c0315899ea3228f8bb",
}
TENSORS = {f"t{size}": ("U8", [size], pattern(size)) for size in XXH3_128}
LINES = "".join(f"{XXH3_128[size]}  t{size}\n" for size in sorted(XXH3_128, key=lambda size: f"t{size}"))
CALLS = [
    [], ["--threads", "1"], ["--threads=3", "--window=1MiB", "--chunk=64KiB"], ["--window=1"], ["--window=0"],
    ["--route", "pread"], ["--route", "mmap"],
]


@pytest.mark.parametrize("options", CALLS)
def test_hashes_of_one_file(tmp_path, options):
    for padding in (0, 3):
        path = write(tmp_path / "x.safetensors", TENSORS, padding=padding)
        result = run("hash", *options, path)
        assert (result.returncode, result.stdout, result.stderr) == (0, LINES, "")


@pytest.mark.parametrize("options", CALLS)
def test_hashes_of_shards_in_any_order(tmp_path, options):
    names = list(TENSORS)
    random.Random(5).shuffle(names)
    shards = {f"{i}.safetensors": {name: TENSORS[name] for name in names[i::3]} for i in range(3)}
    index = write_sharded(tmp_path / "m", shards)
    assert run("hash", *options, index).stdout == LINES
    assert run("hash", *options, index.parent).stdout == LINES


def test_json(tmp_path):
    path = write(tmp_path / "x.safetensors", {
        "b": ("U8", [16], pattern(16)), "a": ("BF16", [2, 4], pattern(16)), "a.0": ("F32", [0, 7], b"")})
    report = run_json("hash", "--device", "cpu", "--json", path)
    assert report == {"algorithm": "xxh3-128", "device": "cpu", "tensors": [
        {"name": "a", "hash": XXH3_128[16], "dtype": "BF16", "shape": [2, 4], "bytes": 16},
        {"name": "a.0", "hash": XXH3_128[0], "dtype": "F32", "shape": [0, 7], "bytes": 0},
        {"name": "b", "hash": XXH3_128[16], "dtype": "U8", "shape": [16], "bytes": 16},
    ]}


def test_names_sort_by_bytes(tmp_path):
    names = ["a", "B", "a.b", "a-b", "é", "z", "a\x01", "\U0001f600", "\uffff", "aa"]
    path = write(tmp_path / "x.safetensors", {name: ("U8", [0], b"") for name in names})
    listed = [tensor["name"] for tensor in run_json("hash", "--json", path)["tensors"]]
    assert listed == sorted(names, key=str.encode)


def test_names_are_escaped_in_text(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a\nb": ("U8", [1], pattern(1))})
    assert run("hash", path).stdout == f"{XXH3_128[1]}  a\\x0ab\n"
    assert run_json("hash", "--json", path)["tensors"][0]["name"] == "a\nb"


def test_match_and_slice(tmp_path):
    path = write(tmp_path / "x.safetensors", {"w": ("I16", [3, 4], pattern(24)), "v": ("U8", [1024], pattern(1024))})
    assert run("hash", "--match", "v", path).stdout == f"{XXH3_128[1024]}  v\n"
    (tensor,) = run_json("hash", "--json", "--match", "w", "--slice", "w=[::2, 1::2]", path)["tensors"]
    assert (tensor["hash"], tensor["shape"], tensor["bytes"]) == ("e0afd8dbcd8b24c498e7ac683e1d99d0", [2, 2], 8)
    (tensor,) = run_json("hash", "--json", "--match", "v", "--slice", "*=[0:129]", path)["tensors"]
    assert tensor["hash"] == XXH3_128[129]


def test_many_tensors(tmp_path):
    tensors = {f"layer.{i}": ("U8", [sorted(XXH3_128)[i % 8]], None) for i in range(2000)}
    tensors = {name: (dtype, shape, pattern(shape[0])) for name, (dtype, shape, _) in tensors.items()}
    path = write(tmp_path / "x.safetensors", tensors)
    expected = sorted(f"{name}\0{XXH3_128[shape[0]]}" for name, (_, shape, _) in tensors.items())
    lines = [line.split("  ") for line in run("hash", "--window", "4KiB", path).stdout.splitlines()]
    assert [f"{name}\0{digest}" for digest, name in lines] == expected


def test_no_tensors(tmp_path):
    path = write(tmp_path / "x.safetensors", {})
    assert (run("hash", path).returncode, run("hash", path).stdout) == (0, "")


def test_an_invalid_file(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL, trailing=b"x")
    error = run_json("hash", "--json", path, code=1)["error"]
    assert error["kind"] == "MetadataIncompleteBuffer"
    assert run("hash", "--allow-trailing", path).returncode == 0
