"""examples/load_gguf.c on files that are written here: versions, alignments, metadata of all types, blocks; and on
broken ones, which must be refused in words. The program is built with the sanitizers where the compiler has them."""

import math
import random
import struct
import subprocess

import pytest
import reference

# ggml's number, elements and bytes of a block, and what the library is told.
TYPES = {
    "F32": (0, 1, 4, "F32"), "F16": (1, 1, 2, "F16"), "BF16": (30, 1, 2, "BF16"), "I8": (24, 1, 1, "I8"),
    "Q4_0": (2, 32, 18, "U8"), "Q8_0": (8, 32, 34, "U8"), "Q4_K": (12, 256, 144, "U8"), "Q6_K": (14, 256, 210, "U8"),
}
# Extents as row-major frameworks have them, the slowest first; GGUF has them the other way round.
TENSORS = {
    "token_embd.weight": ("F16", [7, 33]),
    "blk.0.attn_q.weight": ("Q4_0", [5, 64]),
    "blk.0.attn_k.weight": ("Q8_0", [3, 2, 96]),
    "blk.0.ffn.weight": ("Q4_K", [2, 512]),
    "blk.0.norm.weight": ("F32", [13]),
    "blk.1.große.weight": ("BF16", [1, 2, 3, 5]),
    "blk.1.ffn.weight": ("Q6_K", [256]),
    "scalar": ("I8", []),
    "nothing": ("F32", [0, 4]),
}
UINT32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def metadata(alignment: int | None) -> list[bytes]:
    """A pair of each type, and arrays of numbers, texts and arrays."""
    pairs = [
        pair("general.architecture", STRING, text("llama")),
        *[pair(f"number.{kind}", kind, b"\1" * size) for kind, size in enumerate((1, 1, 2, 2, 4, 4, 4, 1))],
        *[pair(f"number.{kind}", kind, b"\1" * 8) for kind in (10, 11, 12)],
        pair("tokens", ARRAY, array(STRING, [text(word) for word in ("a", "", "ß" * 40)])),
        pair("scores", ARRAY, array(6, [struct.pack("<f", 0.5)] * 9)),
        pair("nested", ARRAY, array(ARRAY, [array(0, [b"x"] * 3), array(STRING, [text("y")])])),
    ]
    if alignment is not None:
        pairs.insert(2, pair("general.alignment", UINT32, struct.pack("<I", alignment)))
    return pairs


def bytes_of(kind: str, shape: list[int]) -> int:
    _, elements, size, _ = TYPES[kind]
    return math.prod(shape) // elements * size


def write(path, version: int = 3, alignment: int | None = None, pairs: list[bytes] | None = None):
    """The file, and what the program must say of it."""
    at, lines, data, multiple = random.Random(version), [], b"", alignment or 32
    pairs = metadata(alignment) if pairs is None else pairs
    table = b""
    offsets = {}
    for name, (kind, shape) in TENSORS.items():
        data += bytes(-len(data) % multiple)
        offsets[name] = len(data)
        table += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), TYPES[kind][0], len(data))
        data += at.randbytes(bytes_of(kind, shape))
    head = b"GGUF" + struct.pack("<IQQ", version, len(TENSORS), len(pairs)) + b"".join(pairs) + table
    head += bytes(-len(head) % multiple)
    path.write_bytes(head + data)
    for name, (kind, shape) in TENSORS.items():
        _, elements, size, dtype = TYPES[kind]
        shown = [*shape[:-1], shape[-1] // elements * size] if elements > 1 else shape
        assert reference.size_of(dtype, shown) == bytes_of(kind, shape)
        lines.append(f"{name} {dtype} [{','.join(map(str, shown))}] {bytes_of(kind, shape)} bytes "
                     f"at {len(head) + offsets[name]}: equal")
    return path, sorted(lines)


@pytest.fixture(scope="module")
def program(tmp_path_factory, root, build):
    path = tmp_path_factory.mktemp("gguf") / "load_gguf"
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{root}/include", f"{root}/examples/load_gguf.c",
               f"-L{build}", "-lheadrace", f"-Wl,-rpath,{build}", "-o", str(path)]
    sanitizers = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run([*command, *sanitizers], capture_output=True, check=False).returncode != 0:
        subprocess.run(command, check=True)
    return path


def run(program, path) -> subprocess.CompletedProcess:
    return subprocess.run([program, path], capture_output=True, text=True, timeout=60, check=False)


def refused(program, path, words: str = "") -> None:
    """One line that says why, and the exit status of an error; a sanitizer would say more, or end the program."""
    result = run(program, path)
    lines = result.stderr.splitlines()
    assert result.returncode == 1 and len(lines) == 1 and lines[0].startswith(f"{path}: "), result.stderr
    assert words in result.stderr, result.stderr


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_every_tensor_is_what_a_plain_read_gives(program, tmp_path, version, alignment):
    path, lines = write(tmp_path / "model.gguf", version, alignment)
    result = run(program, path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == lines


def test_truncated_files(program, tmp_path):
    path, _ = write(tmp_path / "model.gguf")
    whole = path.read_bytes()
    table_end = whole.index(b"nothing") + 40
    for size in [0, 3, 4, 8, 23, *range(24, table_end, 29), table_end, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        refused(program, path)
    assert "reach past the end of the file" in run(program, path).stderr


def test_wrong_heads(program, tmp_path):
    path, _ = write(tmp_path / "model.gguf")
    whole = path.read_bytes()
    huge = struct.pack("<Q", 1 << 63)
    for at, part, words in [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "version"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, huge, "before its tensors are listed"),
        (8, struct.pack("<Q", 200), "file ends"),
        (16, huge, ""),
        (24, huge, "ends too early"),  # the first key
        (24, b"\xff" * 8, "ends too early"),
    ]:
        path.write_bytes(whole[:at] + part + whole[at + len(part):])
        refused(program, path, words)


@pytest.mark.parametrize(("bad", "words"), [
    (pair("k", 13, b""), "type that the format does not have"),
    (pair("k", ARRAY, struct.pack("<IQ", 13, 1)), "type that the format does not have"),
    (pair("k", ARRAY, struct.pack("<IQ", 10, 1 << 61)), "longer than the file"),
    (pair("k", ARRAY, struct.pack("<IQ", STRING, (1 << 64) - 1)), "ends too early"),
    (pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000), "too deep"),
    (pair("k", STRING, struct.pack("<Q", (1 << 64) - 1)), "ends too early"),
    (pair("general.alignment", UINT32, struct.pack("<I", 0)), "alignment"),
    (pair("general.alignment", UINT32, struct.pack("<I", 12)), "alignment"),
])
def test_wrong_metadata(program, tmp_path, bad, words):
    path, _ = write(tmp_path / "model.gguf", pairs=[bad])
    refused(program, path, words)


@pytest.mark.parametrize(("shape", "kind", "offset", "words"), [
    ([1 << 40, 1 << 40], 0, 0, "overflows"),
    ([1 << 40], 0, 0, "past the end"),
    ([1 << 63, 256], 12, 0, "overflows"),
    ([(1 << 64) - 32, 1], 8, 0, "too large"),
    ([(1 << 64) - 32, 1], 2, 0, "64 bits"),
    ([33], 2, 0, "whole blocks"),
    ([], 8, 0, "whole blocks"),
    ([1, 1, 1, 1, 1], 0, 0, "4 dimensions"),
    ([1], 4, 0, "does not know"),  # Q4_2, which was taken out of the format
    ([1], 0, 7, "not aligned"),
    ([1], 0, (1 << 64) - 32, "too large"),
    ([1], 0, 1 << 62, "past the end"),
])
def test_wrong_tensors(program, tmp_path, shape, kind, offset, words):
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w")
    head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    path = tmp_path / "model.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(64))
    refused(program, path, words)


def test_random_damage_is_never_a_crash(program, tmp_path):
    path, _ = write(tmp_path / "model.gguf")
    whole = path.read_bytes()
    table_end = whole.index(b"nothing") + 40
    dice = random.Random(11)
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(table_end)
            damaged[at : at + 8] = dice.choice([b"\xff", b"\0", dice.randbytes(8), b"\xff" * 8, bytes(7) + b"\x80"])
        path.write_bytes(damaged)
        result = run(program, path)
        assert result.returncode in (0, 1) and len(result.stderr.splitlines()) == result.returncode, result.stderr
