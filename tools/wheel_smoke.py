"""Tries the installed package without any other one: `wheel_smoke.py`. Runs outside of the source tree, so that what is
imported is what was installed.
"""

import json
import struct
import sys
import tempfile
from pathlib import Path

import headrace


def write(path: Path, tensors: dict[str, bytes]) -> None:
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def main() -> int:
    assert not Path.cwd().joinpath("pyproject.toml").exists(), "run this outside of the source tree"
    tensors = {"a": bytes(range(256)) * 3, "b": b"", "c": bytes(i * 7 % 256 for i in range(5_000_001))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        write(path, tensors)
        assert {name: bytes(tensor) for name, tensor in headrace.load(path).items()} == tensors
        part = headrace.load(path, slices={"c": slice(5, 1000, 3)})["c"]
        assert bytes(part) == tensors["c"][5:1000:3]
        assert sorted(name for name, _ in headrace.stream(path, window_bytes=1)) == sorted(tensors)
        path.write_bytes(path.read_bytes()[:-1])
        try:
            headrace.load(path)
        except headrace.HeadraceError as error:
            print(f"a file that was cut off: {type(error).__name__}: {error}")
        else:
            raise AssertionError("a file that was cut off was loaded")
    print(f"headrace {headrace.__version__} works on Python {sys.version.split()[0]}, {headrace.__file__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
