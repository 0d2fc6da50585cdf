"""Checkpoints to a GPU, bit for bit against the safetensors package: `gpu_bitwise.py [--models DIR] [--scratch DIR]
[--device cuda:0] [--json FILE]`.

The ways back from the GPU: `headrace hash --device`, which covers every dtype, alignment, route and way of cutting;
PyTorch, which also covers slices; CuPy and JAX where they are installed. HEADRACE_BIN is the command; the package
headrace must be importable, and what tests/python needs. DIR holds real checkpoints. Fails where one tensor differs.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
import reference  # noqa: E402
import test_bitwise  # noqa: E402

TORCH_DTYPES = ["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64",
                "F64", "I64", "U64"]
ARRAY_DTYPES = {"cupy": set(TORCH_DTYPES) - {"BF16", "F8_E5M2", "F8_E4M3"}, "jax": set(TORCH_DTYPES)}
WAYS = {name: way for name, way in test_bitwise.WAYS.items() if "mmap" not in way}
LARGE_BYTES = (4 << 30) + (64 << 20) + 6  # offsets beyond 32 bits
# For tensors of [rows, columns]: rows, wide and narrow columns, steps, single elements, nothing.
SLICES = [numpy.s_[100:901], numpy.s_[:, 512:1536], numpy.s_[:, 3:20], numpy.s_[5:900:7, ::3], numpy.s_[::2, 1000],
          numpy.s_[17], numpy.s_[3:3]]

rows: list[dict] = []


def judge(what: str, compare: Callable[..., tuple[bool, int]], *arguments: object) -> None:
    """Keeps what a comparison says: whether all was the same, and of how many tensors. An exception is a difference."""
    begin, row = time.monotonic(), {"what": what}
    try:
        row["same"], row["tensors"] = compare(*arguments)
    except Exception as error:
        row |= {"same": False, "error": repr(error)}
    rows.append(row | {"seconds": round(time.monotonic() - begin, 2)})
    print(f"{'the same ' if row['same'] else 'DIFFERENT'} {what}: {row.get('error') or row['tensors']}", flush=True)


def hashes(device: str, *arguments: object) -> dict[str, str]:
    command = [os.environ["HEADRACE_BIN"], "hash", *map(str, arguments), "--device", device, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{command}: {result.stdout}{result.stderr}")
    return {tensor["name"]: tensor["hash"] for tensor in json.loads(result.stdout)["tensors"]}


def compare_hashes(device: str, files: list[Path], *arguments: object) -> tuple[bool, int]:
    wanted = reference.hashes(*files)
    return hashes(device, *files, *arguments) == wanted, len(wanted)


def same_tensor(loaded: object, wanted: object) -> bool:
    import torch

    def raw(tensor: object) -> object:
        return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)

    alike = loaded.dtype == wanted.dtype and loaded.shape == wanted.shape
    return alike and torch.equal(raw(loaded), raw(wanted))


def compare_torch(device: str, files: list[Path], slices: dict | None = None) -> tuple[bool, int]:
    """`slices` may leave tensors out; those are whole."""
    import headrace
    from safetensors.torch import load_file

    wanted = {name: tensor for path in files for name, tensor in load_file(path).items()}
    wanted |= {name: wanted[name][index] for name, index in (slices or {}).items()}
    with headrace.open([str(path) for path in files]) as checkpoint:
        loaded = checkpoint.load(framework="pt", device=device, slices=slices)
    same = loaded.keys() == wanted.keys() and all(tensor.is_cuda for tensor in loaded.values()) and \
        all(same_tensor(loaded[name], wanted[name]) for name in wanted)
    return same, len(wanted)


def compare_torch_shards(device: str, path: Path, dim: int, world: int) -> tuple[bool, int]:
    """All ranks' blocks put together, and those of sections, against the same cut from whole tensors."""
    import headrace
    import torch
    from safetensors.torch import load_file

    wanted = load_file(path)
    with headrace.open(path) as checkpoint:
        blocks = [checkpoint.load(framework="pt", device=device, shard=dim, rank=rank, world=world)
                  for rank in range(world)]
        sections = {name: (dim, (1000, tensor.shape[dim] - 1000)) for name, tensor in wanted.items()}
        fused = checkpoint.load(framework="pt", device=device, shard=sections, rank=0, world=world)
    same = all(same_tensor(torch.cat([block[name] for block in blocks], dim), wanted[name]) for name in wanted)
    for name, tensor in wanted.items():
        first, rest = (tensor.narrow(dim, 0, -(-1000 // world)),
                       tensor.narrow(dim, 1000, -(-(tensor.shape[dim] - 1000) // world)))
        same = same and same_tensor(fused[name], torch.cat([first, rest], dim))
    return same, len(wanted)


def compare_arrays(framework: str, device: str, path: Path) -> tuple[bool, int]:
    """Frameworks that import what headrace made, by DLPack."""
    import headrace

    wanted = reference.read(path)
    with headrace.open(str(path)) as checkpoint:
        loaded = checkpoint.load(framework=framework, device=device)

    def raw(array: object) -> bytes:
        return (array.get() if framework == "cupy" else numpy.asarray(array)).tobytes()

    same = loaded.keys() == wanted.keys() and \
        all((list(loaded[name].shape), raw(loaded[name])) == tensor[1:] for name, tensor in wanted.items())
    return same, len(wanted)


def generated(folder: Path, device: str) -> None:
    for padding in range(8):
        path = reference.write_by_hand(folder / "dtypes.safetensors", test_bitwise.every_dtype(padding), padding)
        judge(f"every dtype, data at offset {padding} of 8", compare_hashes, device, [path])
    large = {"large": reference.random_tensor(numpy.random.default_rng(2), "BF16", [10211, 4099]),
             "after": reference.random_tensor(numpy.random.default_rng(3), "F64", [3])}
    path = reference.write_by_hand(folder / "ways.safetensors", test_bitwise.every_dtype(1) | large, 3)
    for name, way in WAYS.items():
        judge(f"every dtype and one large tensor, {name}", compare_hashes, device, [path], *way)
    for seed in range(40):
        tensors, padding = test_bitwise.random_checkpoint(seed)
        path = reference.write_by_hand(folder / "random.safetensors", tensors, padding)
        judge(f"random checkpoint {seed}", compare_hashes, device, [path], *list(WAYS.values())[seed % len(WAYS)])
    random = numpy.random.default_rng(7)
    small = {f"t{i}": reference.random_tensor(random, "BF16", [int(random.integers(1, 20_000))]) for i in range(20_000)}
    path = reference.write_by_hand(folder / "small.safetensors", small, 1)
    judge("20,000 small tensors", compare_hashes, device, [path])
    judge("20,000 small tensors, PyTorch", compare_torch, device, [path])


def torch_dtypes_and_slices(folder: Path, device: str) -> None:
    tensors = {name: tensor for name, tensor in test_bitwise.every_dtype(9).items() if tensor[0] in TORCH_DTYPES}
    path = reference.write_by_hand(folder / "torch.safetensors", tensors, 5)
    judge("every dtype of PyTorch", compare_torch, device, [path])
    for framework, dtypes in ARRAY_DTYPES.items():
        chosen = {name: tensor for name, tensor in tensors.items() if tensor[0] in dtypes}
        path = reference.write_by_hand(folder / f"{framework}.safetensors", chosen, 4)
        if importlib.util.find_spec(framework):
            judge(f"every dtype of {framework}", compare_arrays, framework, device, path)
        else:
            print(f"left out: {framework} is not installed")
    random = numpy.random.default_rng(11)
    tensors = {f"{dtype}.{number}": reference.random_tensor(random, dtype, [1021, 2053])
               for dtype in ("U8", "BF16", "F32", "C64") for number in range(len(SLICES))}
    path = reference.write_by_hand(folder / "slices.safetensors", tensors, 2)
    slices = {name: SLICES[int(name.split(".")[1])] for name in tensors}
    judge("slices", compare_torch, device, [path], slices)
    for dim, world in ((0, 2), (0, 3), (1, 2), (1, 3), (1, 8)):
        judge(f"blocks of {world} along dimension {dim}", compare_torch_shards, device, path, dim, world)


def write_huge(path: Path) -> None:
    ranges, block = {"a": [0, 3], "huge": [3, 3 + LARGE_BYTES]}, os.urandom(64 << 20)
    header = json.dumps({name: {"dtype": "U8", "shape": [end - first], "data_offsets": [first, end]}
                         for name, (first, end) in ranges.items()}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + b"abc")
        for at in range(0, LARGE_BYTES, len(block)):
            piece = at.to_bytes(8, "little") + block[8:]
            file.write(piece[: LARGE_BYTES - at])


def compare_huge(device: str, path: Path) -> tuple[bool, int]:
    """Too large for the package's reader in memory: the GPU against host memory."""
    wanted = hashes("cpu", path)
    return len(wanted) == 2 and hashes(device, path) == wanted, 2


def beyond_32_bits(folder: Path, device: str) -> None:
    write_huge(folder / "huge.safetensors")
    judge("a tensor of more than 4 GiB", compare_huge, device, folder / "huge.safetensors")
    (folder / "huge.safetensors").unlink()


def real(models: Path, device: str) -> None:
    for folder in sorted({path.parent for path in models.rglob("*.safetensors")}):
        files = sorted(folder.glob("*.safetensors"))
        judge(f"{folder.name}, as stored", compare_hashes, device, files)
        judge(f"{folder.name}, PyTorch", compare_torch, device, files)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".demo"))
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ |= {"JAX_ENABLE_X64": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        generated(Path(scratch), options.device)
        torch_dtypes_and_slices(Path(scratch), options.device)
        beyond_32_bits(Path(scratch), options.device)
    real(options.models, options.device)
    different = sum(not row["same"] for row in rows)
    if options.json:
        result = {"bitwise": {"comparisons": len(rows), "different": different, "rows": rows}}
        options.json.write_text(json.dumps(result, indent=1))
    print(f"{len(rows)} comparisons, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
