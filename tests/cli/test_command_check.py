"""headrace check: verdicts, their form, exit codes."""

import json
import os
import struct

import pytest

from command import SMALL, file_bytes, run, run_json, write, write_raw, write_sharded

KEYS = ["path", "ok", "kind", "tensor", "offset", "message"]


def verdicts(*arguments, code):
    result = run("check", "--json", *arguments)
    assert result.returncode == code, result
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    for line in lines:
        assert list(line) == KEYS
        assert isinstance(line["message"], str) and "\n" not in line["message"]
    return lines


def test_a_valid_file(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    result = run("check", path)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{path}: ok (3 tensors, 24 bytes, 1 file)\n", "")


def test_a_valid_file_as_json(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [1], None)})
    result = run("check", "--json", path)
    expected = {
        "path": str(path), "ok": True, "kind": None, "tensor": None, "offset": None,
        "message": "1 tensor, 1 byte, 1 file",
    }
    assert (result.returncode, result.stdout) == (0, json.dumps(expected, separators=(",", ":")) + "\n")


def test_an_empty_header(tmp_path):
    path = write(tmp_path / "x.safetensors", {})
    assert run("check", path).stdout == f"{path}: ok (0 tensors, 0 bytes, 1 file)\n"


INVALID = {
    "HeaderTooSmall": b"\x01\x00\x00",
    "HeaderTooLarge": struct.pack("<Q", 100_000_001) + b"{}",
    "InvalidHeaderLength": struct.pack("<Q", 50) + b"{}",
    "InvalidHeader": struct.pack("<Q", 4) + b'{"\xff"',
    "InvalidHeaderDeserialization": struct.pack("<Q", 2) + b"{x",
    "InvalidOffset": file_bytes({"t": ("U8", [4], None)}, header={
        "t": {"dtype": "U8", "shape": [4], "data_offsets": [1, 5]}}, trailing=b"x"),
    "ValidationOverflow": file_bytes({}, header={
        "t": {"dtype": "U8", "shape": [2**63, 2], "data_offsets": [0, 0]}}),
    "MisalignedSlice": file_bytes({"t": ("U8", [1], None)}, header={
        "t": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}),
    "TensorInvalidInfo": file_bytes({"t": ("U8", [4], None)}, header={
        "t": {"dtype": "U8", "shape": [3], "data_offsets": [0, 4]}}),
    "MetadataIncompleteBuffer": file_bytes(SMALL, trailing=b"x"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_each_kind_of_invalid_file(tmp_path, kind):
    path = tmp_path / "x.safetensors"
    path.write_bytes(INVALID[kind])
    for mode in ([], ["--compat"]):
        (line,) = verdicts(*mode, path, code=1)
        assert (line["path"], line["ok"], line["kind"]) == (str(path), False, kind)
        assert line["message"]
    result = run("check", path)
    assert result.returncode == 1
    assert result.stdout.startswith(f"{path}: {kind}: ")
    assert result.stdout.count("\n") == 1


def test_the_tensor_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(INVALID["TensorInvalidInfo"])
    (line,) = verdicts(path, code=1)
    assert line["tensor"] == "t"
    assert "tensor 't'" in run("check", path).stdout


def test_offsets_are_numbers(tmp_path):
    path = write_raw(tmp_path / "x.safetensors", b'{"t":?}')
    (line,) = verdicts(path, code=1)
    assert line["offset"] == 8 + 5
    assert "offset 13" in run("check", path).stdout


def test_strict_refuses_what_compat_takes(tmp_path):
    entry = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    path = write_raw(tmp_path / "x.safetensors", b'{"t":' + entry + b',"t":' + entry + b"}", b"\x00")
    (strict,) = verdicts(path, code=1)
    assert (strict["kind"], strict["tensor"]) == ("DuplicateTensor", "t")
    (compat,) = verdicts("--compat", path, code=0)
    assert compat["ok"] is True


def test_trailing_bytes_can_be_allowed(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL, trailing=b"abc")
    (line,) = verdicts(path, code=1)
    assert line["kind"] == "MetadataIncompleteBuffer"
    (line,) = verdicts("--allow-trailing", path, code=0)
    assert line["message"] == "3 tensors, 24 bytes, 1 file"


def test_one_line_a_path_in_order(tmp_path):
    good = write(tmp_path / "good.safetensors", SMALL)
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"")
    paths = [good, bad, tmp_path / "missing.safetensors", good]
    lines = verdicts(*paths, code=1)
    assert [line["path"] for line in lines] == [str(path) for path in paths]
    assert [line["ok"] for line in lines] == [True, False, False, True]
    assert len(run("check", *paths).stdout.splitlines()) == 4


def test_thousands_of_paths(tmp_path):
    paths = [write(tmp_path / f"{i}.safetensors", {"t": ("U8", [i % 7], None)}) for i in range(3000)]
    lines = verdicts(*paths, code=0)
    assert [line["path"] for line in lines] == [str(path) for path in paths]
    assert all(line["ok"] for line in lines)


def test_a_missing_path_is_a_no(tmp_path):
    (line,) = verdicts(tmp_path / "missing.safetensors", code=1)
    assert (line["ok"], line["kind"]) == (False, "IoError")
    (line,) = verdicts(write(tmp_path / "file", SMALL) / "below", code=1)
    assert line["kind"] == "IoError"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_path_is_a_fault(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    path.chmod(0)
    (line,) = verdicts(path, code=3)
    assert line["kind"] == "IoError"


def test_too_many_links_are_a_fault_unless_something_is_invalid(tmp_path):
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    (line,) = verdicts(loop, code=3)
    assert line["kind"] == "IoError"
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"")
    verdicts(loop, bad, code=1)


def test_other_formats_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    (line,) = verdicts(path, code=1)
    assert line["ok"] is False
    assert "zip" in line["message"].lower()


def test_folder_and_index(tmp_path):
    index = write_sharded(tmp_path / "m", {"1.safetensors": {"a": SMALL["a"]}, "2.safetensors": {"c": SMALL["c"]}})
    for path in (index, index.parent):
        (line,) = verdicts(path, code=0)
        assert line["message"] == "2 tensors, 12 bytes, 2 files"


def test_the_shard_is_named(tmp_path):
    index = write_sharded(tmp_path / "m", {"1.safetensors": {"a": SMALL["a"]}, "2.safetensors": {"c": SMALL["c"]}})
    (tmp_path / "m" / "2.safetensors").write_bytes(b"\x00")
    for path in (index, index.parent):
        (line,) = verdicts(path, code=1)
        assert line["kind"] == "HeaderTooSmall"
        assert "2.safetensors" in line["message"]
    (tmp_path / "m" / "2.safetensors").unlink()
    (line,) = verdicts(index, code=1)
    assert line["kind"] == "ShardMissing"
    assert "2.safetensors" in line["message"]


def test_a_wrong_total_size_is_a_warning(tmp_path):
    index = write_sharded(tmp_path / "m", {"1.safetensors": {"a": SMALL["a"]}}, total_size=5)
    result = run("check", index)
    assert (result.returncode, result.stdout) == (0, f"{index}: ok (1 tensor, 8 bytes, 1 file)\n")
    assert "warning: " in result.stderr and "5" in result.stderr


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    path = write(tmp_path / "x\x1b[31m\n.safetensors", SMALL)
    result = run("check", path)
    assert result.stdout == f"{tmp_path}/x\\x1b[31m\\x0a.safetensors: ok (3 tensors, 24 bytes, 1 file)\n"
    assert run_json("check", "--json", path)["path"] == str(path)
