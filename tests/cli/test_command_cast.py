"""headrace load, hash and plan with --dtype: what is converted, how it is reported, and what is refused."""

import struct

import pytest
from command import run, run_json, write

WEIGHT = struct.pack("<6f", 0, 1, -2.5, 3.25, 1e30, 5)
HALF = bytes.fromhex("003c00400042")  # 1, 2, 3
IDS = struct.pack("<3q", 7, -1, 1 << 40)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "x.safetensors", {
        "a.weight": ("F32", [2, 3], WEIGHT), "a.half": ("F16", [3], HALF), "a.ids": ("I64", [3], IDS),
        "a.packed": ("F4", [2], b"\x12"),
    })


def bf16(data: bytes) -> bytes:
    """Cut off: the numbers here have no more bits."""
    return b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4))


def found(path, *options):
    tensors = run_json("hash", "--json", "--device", "cpu", *options, path)["tensors"]
    return {tensor["name"]: (tensor["dtype"], tensor["bytes"], tensor["hash"]) for tensor in tensors}


def entry(dtype, data):
    xxhash = pytest.importorskip("xxhash")
    return dtype, len(data), xxhash.xxh3_128_hexdigest(data)


AS_STORED = {"a.weight": entry("F32", WEIGHT), "a.half": entry("F16", HALF), "a.ids": entry("I64", IDS),
             "a.packed": entry("F4", b"\x12")}
ROUNDED = struct.pack("<6f", 0, 1, -2.5, 3.25, struct.unpack("<f", b"\0\0\x4a\x71")[0], 5)
NARROW = {"a.weight": entry("BF16", bf16(ROUNDED)), "a.half": entry("BF16", bf16(struct.pack("<3f", 1, 2, 3)))}


def test_floats_are_converted(path):
    assert found(path) == found(path, "--dtype", "auto") == AS_STORED
    assert found(path, "--dtype", "BF16") == found(path, "--dtype=bf16") == AS_STORED | NARROW


def test_by_name_and_pattern(path):
    wide = entry("F32", struct.pack("<3f", 1, 2, 3))
    assert found(path, "--dtype", "*.half=F32", "--dtype", "BF16") == AS_STORED | NARROW | {"a.half": wide}
    assert found(path, "--dtype", "bf16", "--dtype", "a.half=auto") == AS_STORED | NARROW | {
        "a.half": AS_STORED["a.half"]}
    assert found(path, "--dtype", "a.i*=I32")["a.ids"] == entry("I32", struct.pack("<3i", 7, -1, 0))
    part = found(path, "--dtype", "BF16", "--slice", "a.weight=[:, 1:]", "--match", "a.weight")
    assert part == {"a.weight": entry("BF16", bf16(ROUNDED)[2:6] + bf16(ROUNDED)[8:12])}
    part = found(path, "--dtype", "BF16", "--shard", "a.weight=1:0/2", "--match", "a.weight")
    assert part == {"a.weight": entry("BF16", bf16(ROUNDED)[:4] + bf16(ROUNDED)[6:10])}


def test_report(path):
    report = run_json("load", "--json", "--device", "cpu", "--dtype", "BF16", path)
    assert report["bytes"] == 24 + 6 + 24 + 1 and report["bytes_converted"] == 30
    assert report["conversion"] == "readers"
    assert "converted" in run("load", "--device", "cpu", "--dtype", "BF16", path).stdout
    assert "converted" not in run("load", "--device", "cpu", path).stdout
    plan = run_json("plan", "--json", "--device", "cpu", "--dtype", "BF16", path)
    assert plan["totals"]["converted_bytes"] == 30 and plan["totals"]["target_bytes"] == 12 + 6 + 24 + 1
    assert {chunk["way"] for chunk in plan["chunks"]} == {"packed"}


@pytest.mark.parametrize("dtype, code, part", [
    ("F33", 2, "'F33' is no dtype"), ("a.weight=", 2, "'' is no dtype"), ("nobody=F32", 1, "no selected tensor of 4"),
    ("a.packed=F32", 2, "tensor 'a.packed' is stored as F4 and cannot be converted to F32; load it as it is stored\n"),
    ("F4", 2, "tensor 'a.weight' is stored as F32 and cannot be converted to F4; load it as it is stored, or as "),
    ("a.ids=F6_E2M3", 2, "tensor 'a.ids' is stored as I64 and cannot be converted to F6_E2M3; load it"),
    ("a.half=C64", 2, "or as BOOL, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, I16, U16, BF16, "),
])
def test_refused(path, dtype, code, part):
    result = run("load", "--device", "cpu", "--dtype", dtype, path)
    assert part in result.stderr, result.stderr
    assert result.returncode == code
