"""Checkpoints to a GPU, bit for bit against the safetensors package: `gpu_bitwise.py [--models DIR] [--scratch DIR]
[--device cuda:0] [--json FILE]`.

Two ways back from the GPU: `headrace hash --device`, which covers every dtype, alignment, route and way of cutting, and
PyTorch, which also covers slices. HEADRACE_BIN is the command; the package headrace must be importable, and what
tests/python needs. DIR holds real checkpoints. Fails where one tensor differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
import reference  # noqa: E402
import test_bitwise  # noqa: E402

TORCH_DTYPES = ["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64",
                "F64", "I64", "U64"]
WAYS = {name: way for name, way in test_bitwise.WAYS.items() if "mmap" not in way}
LARGE_BYTES = (4 << 30) + (64 << 20) + 6  # offsets beyond 32 bits
# For tensors of [rows, columns]: rows, wide and narrow columns, steps, single elements, nothing.
SLICES = [numpy.s_[100:901], numpy.s_[:, 512:1536], numpy.s_[:, 3:20], numpy.s_[5:900:7, ::3], numpy.s_[::2, 1000],
          numpy.s_[17], numpy.s_[3:3]]

rows: list[dict] = []


def judge(what: str, same: bool, tensors: int, begin: float) -> None:
    rows.append({"what": what, "same": same, "tensors": tensors, "seconds": round(time.monotonic() - begin, 2)})
    print(f"{'the same ' if same else 'DIFFERENT'} {what}: {tensors} tensors", flush=True)


def hashes(device: str, *arguments: object) -> dict[str, str]:
    command = [os.environ["HEADRACE_BIN"], "hash", *map(str, arguments), "--device", device, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"{command}: {result.stdout}{result.stderr}", file=sys.stderr)
        return {}
    return {tensor["name"]: tensor["hash"] for tensor in json.loads(result.stdout)["tensors"]}


def compare_hashes(what: str, device: str, files: list[Path], *arguments: object) -> None:
    begin = time.monotonic()
    wanted = reference.hashes(*files)
    judge(what, hashes(device, *files, *arguments) == wanted, len(wanted), begin)


def same_tensor(loaded: object, wanted: object) -> bool:
    import torch

    def raw(tensor: object) -> object:
        return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)

    alike = loaded.dtype == wanted.dtype and loaded.shape == wanted.shape
    return alike and torch.equal(raw(loaded), raw(wanted))


def compare_torch(what: str, device: str, files: list[Path], slices: dict | None = None) -> None:
    """`slices` may leave tensors out; those are whole."""
    import headrace
    from safetensors.torch import load_file

    begin = time.monotonic()
    wanted = {name: tensor for path in files for name, tensor in load_file(path).items()}
    wanted |= {name: wanted[name][index] for name, index in (slices or {}).items()}
    with headrace.open([str(path) for path in files]) as checkpoint:
        loaded = checkpoint.load(framework="pt", device=device, slices=slices)
    same = loaded.keys() == wanted.keys() and all(tensor.is_cuda for tensor in loaded.values()) and \
        all(same_tensor(loaded[name], wanted[name]) for name in wanted)
    judge(what, same, len(wanted), begin)


def generated(folder: Path, device: str) -> None:
    for padding in range(8):
        path = reference.write_by_hand(folder / "dtypes.safetensors", test_bitwise.every_dtype(padding), padding)
        compare_hashes(f"every dtype, data at offset {padding} of 8", device, [path])
    large = {"large": reference.random_tensor(numpy.random.default_rng(2), "BF16", [10211, 4099]),
             "after": reference.random_tensor(numpy.random.default_rng(3), "F64", [3])}
    path = reference.write_by_hand(folder / "ways.safetensors", test_bitwise.every_dtype(1) | large, 3)
    for name, way in WAYS.items():
        compare_hashes(f"every dtype and one large tensor, {name}", device, [path], *way)
    for seed in range(40):
        tensors, padding = test_bitwise.random_checkpoint(seed)
        path = reference.write_by_hand(folder / "random.safetensors", tensors, padding)
        compare_hashes(f"random checkpoint {seed}", device, [path], *list(WAYS.values())[seed % len(WAYS)])
    random = numpy.random.default_rng(7)
    small = {f"t{i}": reference.random_tensor(random, "BF16", [int(random.integers(1, 20_000))]) for i in range(20_000)}
    path = reference.write_by_hand(folder / "small.safetensors", small, 1)
    compare_hashes("20,000 small tensors", device, [path])
    compare_torch("20,000 small tensors, PyTorch", device, [path])


def torch_dtypes_and_slices(folder: Path, device: str) -> None:
    tensors = {name: tensor for name, tensor in test_bitwise.every_dtype(9).items() if tensor[0] in TORCH_DTYPES}
    path = reference.write_by_hand(folder / "torch.safetensors", tensors, 5)
    compare_torch("every dtype of PyTorch", device, [path])
    random = numpy.random.default_rng(11)
    tensors = {f"{dtype}.{number}": reference.random_tensor(random, dtype, [1021, 2053])
               for dtype in ("U8", "BF16", "F32", "C64") for number in range(len(SLICES))}
    path = reference.write_by_hand(folder / "slices.safetensors", tensors, 2)
    slices = {name: SLICES[int(name.split(".")[1])] for name in tensors}
    compare_torch("slices", device, [path], slices)


def beyond_32_bits(folder: Path, device: str) -> None:
    """Too large for the package's reader in memory: the GPU against host memory."""
    path, block, begin = folder / "huge.safetensors", os.urandom(64 << 20), time.monotonic()
    ranges = {"a": [0, 3], "huge": [3, 3 + LARGE_BYTES]}
    header = json.dumps({name: {"dtype": "U8", "shape": [end - first], "data_offsets": [first, end]}
                         for name, (first, end) in ranges.items()}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + b"abc")
        for at in range(0, LARGE_BYTES, len(block)):
            piece = at.to_bytes(8, "little") + block[8:]
            file.write(piece[: LARGE_BYTES - at])
    wanted = hashes("cpu", path)
    judge("a tensor of more than 4 GiB", len(wanted) == 2 and hashes(device, path) == wanted, 2, begin)
    path.unlink()


def real(models: Path, device: str) -> None:
    for folder in sorted({path.parent for path in models.rglob("*.safetensors")}):
        files = sorted(folder.glob("*.safetensors"))
        compare_hashes(f"{folder.name}, as stored", device, files)
        compare_torch(f"{folder.name}, PyTorch", device, files)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--models", type=Path, default=Path(".demo"))
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        generated(Path(scratch), options.device)
        torch_dtypes_and_slices(Path(scratch), options.device)
        beyond_32_bits(Path(scratch), options.device)
    real(options.models, options.device)
    different = sum(not row["same"] for row in rows)
    if options.json:
        result = {"comparisons": len(rows), "different": different, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1))
    print(f"{len(rows)} comparisons, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
