"""headrace diff: what differs, and where first."""

import pytest

from command import SMALL, pattern, run, run_json, write, write_raw, write_sharded


def pair(tmp_path, a, b):
    return write(tmp_path / "a.safetensors", a), write(tmp_path / "b.safetensors", b)


def flipped(data, *positions):
    data = bytearray(data)
    for position in positions:
        data[position] ^= 0x10
    return bytes(data)


def test_the_same(tmp_path):
    one = write(tmp_path / "a.safetensors", SMALL)
    data = {name: (dtype, shape, None) for name, (dtype, shape, _) in SMALL.items()}
    two = write(tmp_path / "b.safetensors", data, padding=3, metadata={"other": "metadata"})
    result = run("diff", one, two)
    assert (result.returncode, result.stdout, result.stderr) == (0, "3 tensors the same, 0 different\n", "")
    assert run_json("diff", "--json", one, two) == {
        "device": "cpu", "same": True, "same_count": 3, "different_count": 0, "differences": []}


def test_the_same_in_shards_of_another_order(tmp_path):
    tensors = {f"t{i}": ("U8", [100_000 + i], pattern(100_000 + i, i)) for i in range(20)}
    one = write(tmp_path / "a.safetensors", tensors)
    names = sorted(tensors, reverse=True)
    index = write_sharded(tmp_path / "m", {
        "1.safetensors": {name: tensors[name] for name in names[::2]},
        "2.safetensors": {name: tensors[name] for name in names[1::2]}})
    for window in ("1", "300kB", "64MiB", "0"):
        result = run("diff", "--window", window, one, index)
        assert (result.returncode, result.stdout) == (0, "20 tensors the same, 0 different\n")


def test_each_difference(tmp_path):
    data = pattern(24)
    a = {"same": ("U8", [3], None), "only a": ("U8", [1], None), "dtype": ("I16", [2], None),
         "shape": ("U8", [6], None), "bytes": ("I16", [3, 4], data)}
    b = {"bytes": ("I16", [3, 4], flipped(data, 13, 20)), "dtype": ("BF16", [2], None), "shape": ("U8", [2, 3], None),
         "only b": ("F32", [], b"\0\0\0\0"), "same": ("U8", [3], pattern(3))}
    one, two = pair(tmp_path, a, b)
    result = run("diff", one, two)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout == (
        "bytes: bytes differ, first at element 6 [1,2]; 2 of 24 bytes\n"
        "dtype: dtypes differ: I16 [2] in A, BF16 [2] in B\n"
        "only a: only in A\n"
        "only b: only in B\n"
        "shape: shapes differ: U8 [6] in A, U8 [2,3] in B\n"
        "1 tensor the same, 5 different\n"
    )
    report = run_json("diff", "--json", one, two, code=1)
    assert (report["same"], report["same_count"], report["different_count"]) == (False, 1, 5)
    side = lambda dtype, shape, size: {"dtype": dtype, "shape": shape, "bytes": size}
    assert report["differences"] == [
        {"name": "bytes", "difference": "bytes", "a": side("I16", [3, 4], 24), "b": side("I16", [3, 4], 24),
         "element": 6, "index": [1, 2], "different_bytes": 2},
        {"name": "dtype", "difference": "dtype", "a": side("I16", [2], 4), "b": side("BF16", [2], 4)},
        {"name": "only a", "difference": "only_in_a", "a": side("U8", [1], 1), "b": None},
        {"name": "only b", "difference": "only_in_b", "a": None, "b": side("F32", [], 4)},
        {"name": "shape", "difference": "shape", "a": side("U8", [6], 6), "b": side("U8", [2, 3], 6)},
    ]


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 4097, 8191, 2_999_998])
def test_the_first_element_wherever_it_is(tmp_path, position):
    data = pattern(3_000_000)
    one, two = pair(tmp_path, {"t": ("F32", [750, 1000], data)},
                    {"t": ("F32", [750, 1000], flipped(data, position, 2_999_999))})
    (difference,) = run_json("diff", "--json", one, two, code=1)["differences"]
    element = position // 4
    assert (difference["element"], difference["index"]) == (element, [element // 1000, element % 1000])
    assert difference["different_bytes"] == 2


def test_a_scalar(tmp_path):
    one, two = pair(tmp_path, {"t": ("F32", [], b"\0\0\0\0")}, {"t": ("F32", [], b"\0\0\0\1")})
    assert run("diff", one, two).stdout.startswith("t: bytes differ, first at element 0 []; 1 of 4 bytes\n")


def test_elements_smaller_than_a_byte(tmp_path):
    for low, element in ((b"\x01", 2), (b"\x10", 3)):
        one, two = pair(tmp_path, {"t": ("F4", [2, 2], b"\0\0")}, {"t": ("F4", [2, 2], b"\0" + low)})
        (difference,) = run_json("diff", "--json", one, two, code=1)["differences"]
        assert (difference["element"], difference["index"]) == (element, [1, element - 2])


def test_tensors_without_bytes(tmp_path):
    one, two = pair(tmp_path, {"t": ("F32", [0, 3], b"")}, {"t": ("F32", [0, 3], b"")})
    assert run("diff", one, two).returncode == 0
    one, two = pair(tmp_path, {}, {})
    assert run("diff", one, two).stdout == "0 tensors the same, 0 different\n"


def test_names_are_escaped_in_text(tmp_path):
    one, two = pair(tmp_path, {"a\n": ("U8", [1], None)}, {})
    assert run("diff", one, two).stdout.startswith("a\\x0a: only in A\n")
    assert run_json("diff", "--json", one, two, code=1)["differences"][0]["name"] == "a\n"


def test_errors_name_the_file(tmp_path):
    good = write(tmp_path / "a.safetensors", SMALL)
    bad = write_raw(tmp_path / "b.safetensors", b"x")
    assert run_json("diff", "--json", good, bad, code=1)["error"]["file"] == str(bad)
    assert run("diff", good, bad).stderr.startswith(f"headrace diff: {bad}: ")
    assert run("diff", good, tmp_path / "missing").returncode == 1
