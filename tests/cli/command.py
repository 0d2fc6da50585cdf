"""The command under test, and a writer of checkpoints that is independent of it. Needs the standard library only."""

import atexit
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("HEADRACE_BIN", str(ROOT / "build" / "headrace"))
VERBS = ["check", "ls", "load", "hash", "diff", "convert", "plan", "probe", "doctor"]
CACHE = tempfile.mkdtemp()
"""The cache folder of commands that are given no other: no test reads or writes the user's."""
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
ELEMENT_BITS = {"BOOL": 8, "F4": 4, "U8": 8, "I16": 16, "BF16": 16, "F16": 16, "F32": 32, "I64": 64, "C64": 64}


def run(*arguments, env=None, **options):
    """Runs the command, text in and out, without GPUs and HEADRACE_* of the environment unless `env` has them."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    variables |= {"XDG_CACHE_HOME": CACHE, "CUDA_VISIBLE_DEVICES": ""} | (env or {})
    options = {"capture_output": True, "timeout": 120, **options}
    return subprocess.run([BINARY, *map(os.fspath, arguments)], env=variables, text=True, **options)


def run_json(*arguments, code=0, **options):
    result = run(*arguments, **options)
    assert result.returncode == code, result
    assert result.stdout.endswith("\n")
    return json.loads(result.stdout)


def pattern(size, seed=0):
    """Bytes whose neighbours differ and whose period of 251 divides no power of two."""
    period = bytes((i * 7 + seed * 31 + 1) % 251 for i in range(251))
    return (period * (size // 251 + 1))[:size]


def byte_size(dtype, shape):
    count = 1
    for extent in shape:
        count *= extent
    return count * ELEMENT_BITS[dtype] // 8


def file_bytes(tensors, metadata=None, padding=0, trailing=b"", header=None):
    """tensors: {name: (dtype, shape, data or None for a pattern)}; `padding` blanks shift the data section."""
    if header is None:
        header, offset = {}, 0
        if metadata is not None:
            header["__metadata__"] = metadata
        for name, (dtype, shape, data) in tensors.items():
            size = byte_size(dtype, shape)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
            offset += size
    text = json.dumps(header, separators=(",", ":")).encode() + b" " * padding
    data = bytearray()
    for seed, (dtype, shape, given) in enumerate(tensors.values()):
        data += pattern(byte_size(dtype, shape), seed) if given is None else given
    return struct.pack("<Q", len(text)) + text + bytes(data) + trailing


def write(path, tensors, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file_bytes(tensors, **options))
    return path


def write_raw(path, text, data=b""):
    """A file whose header is any text."""
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_sharded(folder, shards, weight_map=None, total_size=None):
    """shards: {file name: tensors}. The index follows from them unless it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        write(folder / name, tensors)
    if weight_map is None:
        weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    if total_size is None:
        total_size = sum(byte_size(t[0], t[1]) for tensors in shards.values() for t in tensors.values())
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": total_size}, "weight_map": weight_map}))
    return index


SMALL = {"a": ("F32", [2], None), "b.weight": ("I16", [2, 3], None), "c": ("U8", [4], None)}
"""24 bytes in three tensors: 8, 12 and 4."""


def run_on_fake_gpu(program, *arguments, settings, input=None):
    """Runs a program of the build with the fake driver."""
    folder = pathlib.Path(BINARY).resolve().parent
    library_path = f"{folder / 'fake_cuda'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = os.environ | {"LD_LIBRARY_PATH": library_path, "FAKE_CUDA": settings, "CUDA_VISIBLE_DEVICES": "0"}
    return subprocess.run([folder / program, *map(str, arguments)], env=environment, text=True, timeout=120,
                          capture_output=True, input=input)


def data_offset(path):
    return 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
