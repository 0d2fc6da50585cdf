"""Checkpoints of many files against the safetensors package: an index, links as in a hub's cache, many shards."""

import json
import shutil
from pathlib import Path

import numpy
import pytest
import reference
from safetensors.numpy import save_file


def write_shards(folder: Path, count: int, tensors_each: int) -> list[Path]:
    """Shards written by the safetensors package, with an index."""
    random = numpy.random.default_rng(count)
    folder.mkdir(parents=True)
    weight_map = {}
    for shard in range(count):
        tensors = {f"layers.{shard}.{number}": random.integers(0, 255, (5, 3 + number), numpy.uint8).view()
                   for number in range(tensors_each)}
        name = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sorted(folder.glob("*.safetensors"))


def test_folder_and_index_and_list(headrace, tmp_path):
    files = write_shards(tmp_path / "model", 4, 5)
    expected = reference.hashes(*files)
    assert headrace.hashes(tmp_path / "model") == expected
    assert headrace.hashes(tmp_path / "model" / "model.safetensors.index.json") == expected
    assert headrace.hashes(*files) == expected


def test_index_decides_which_files_belong(headrace, tmp_path):
    files = write_shards(tmp_path / "model", 2, 3)
    reference.write_by_hand(tmp_path / "model" / "stray.safetensors", {"stray": ("U8", [1], b"x")})
    assert headrace.hashes(tmp_path / "model") == reference.hashes(*files)
    (tmp_path / "model" / "model.safetensors.index.json").unlink()
    assert "stray" in headrace.hashes(tmp_path / "model")


def test_links_of_a_hub_cache(headrace, tmp_path):
    files = write_shards(tmp_path / "model", 3, 4)
    expected = reference.hashes(*files)
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((tmp_path / "model").iterdir())):
        shutil.move(file, blobs / f"hash{number}")
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", f"hash{number}"))
    assert headrace.hashes(snapshot) == expected


@pytest.mark.parametrize("route", ["pread", "uring", "mmap"])
def test_1400_shards_under_256_descriptors(headrace, tmp_path, route):
    files = write_shards(tmp_path / "model", 1400, 2)
    assert headrace.hashes(tmp_path / "model", "--route", route, limits="ulimit -n 256") == reference.hashes(*files)


def test_missing_shards_are_named(headrace, tmp_path):
    files = write_shards(tmp_path / "model", 4, 1)
    files[1].unlink()
    files[3].unlink()
    result = headrace.run("check", "--json", tmp_path / "model")
    report = json.loads(result.stdout)
    assert result.returncode == 1 and report["kind"] == "ShardMissing"
    assert files[1].name in report["message"] and files[3].name in report["message"]
