"""headrace convert against PyTorch and the reference reader and writer: every pair of dtypes, aligned files, shards."""

import json

import cast_rules
import numpy
import pytest
import reference
import safetensors.torch
import torch
from test_cast import PAIRS
from test_save import hub_split


@pytest.fixture(scope="module")
def made():
    return cast_rules.tensors()


@pytest.fixture(scope="module")
def path(tmp_path_factory, made):
    return reference.write_by_hand(tmp_path_factory.mktemp("convert") / "x.safetensors", made, padding=3,
                                   metadata={"format": "pt"})


@pytest.mark.parametrize("target", sorted({target for _, target in PAIRS}))
def test_every_pair(headrace, path, made, tmp_path, target):
    """All tensors that can become this dtype, in one go."""
    sources = [source for source, wanted in PAIRS if wanted == target]
    options = [text for source in sources for text in ("--dtype", f"{source}.*={target}")]
    report = headrace.json("convert", "--check", *options, path, tmp_path / "o.safetensors")
    assert report["check"]["same"] and report["bytes_converted"] > 0
    found = reference.read(tmp_path / "o.safetensors")
    assert found.keys() == made.keys()
    for name, (dtype, shape, data) in made.items():
        wanted = target if dtype in sources else dtype
        assert found[name] == (wanted, shape, cast_rules.converted(dtype, shape, data, wanted)), name


def test_f32_to_bf16_as_torch(headrace, tmp_path):
    """Every exponent, ties, infinities; NaNs, where torch's devices differ, are left out."""
    bits = numpy.random.default_rng(3).integers(0, 1 << 32, 300_000, dtype=numpy.uint32)
    bits[:3000] = bits[:3000] & 0xFFFF0000 | 0x8000
    values = torch.from_numpy(bits.view(numpy.float32))
    values = torch.cat([values[~values.isnan()], torch.tensor([torch.inf, -torch.inf, 0.0, -0.0])])
    tensors = {"model.w": values, "model.b": values[:7].clone(), "ids": torch.arange(5)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    headrace.json("convert", "--dtype", "BF16", tmp_path / "x.safetensors", tmp_path / "o.safetensors")
    wanted = {name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
              for name, tensor in tensors.items()}
    assert (tmp_path / "o.safetensors").read_bytes() == safetensors.torch.save(wanted, {"format": "pt"})


def test_without_options_as_the_reference_writer(headrace, path, tmp_path):
    stored = reference.write_by_hand(tmp_path / "x.safetensors", cast_rules.tensors() | {
        "tie.b": ("U8", [3], b"abc"), "tie.a": ("U8", [3], b"def")})
    headrace.json("convert", stored, tmp_path / "o.safetensors")
    with safetensors.safe_open(stored, "pt") as checkpoint:
        tensors = {name: checkpoint.get_tensor(name) for name in checkpoint.keys()}
    assert (tmp_path / "o.safetensors").read_bytes() == safetensors.torch.save(tensors)


def test_aligned_is_read_by_the_reference(headrace, made, tmp_path):
    tensors = made | {f"page.{i}": ("U8", [4096 * i], bytes([i]) * 4096 * i) for i in range(1, 4)}
    stored = reference.write_by_hand(tmp_path / "x.safetensors", tensors)
    headrace.json("convert", "--align", 4096, stored, tmp_path / "o.safetensors")
    assert reference.read(tmp_path / "o.safetensors") == tensors
    listed = headrace.json("ls", tmp_path / "o.safetensors")["tensors"]
    assert {tensor["offset"] % 4096 for tensor in listed if tensor["name"].startswith("page.")} == {0}


def test_shards_are_those_of_the_hub(headrace, path, made, tmp_path):
    out, limit = tmp_path / "out", 20_000
    out.mkdir()
    report = headrace.json("convert", "--shard-size", limit, path, out)
    files = hub_split({name: len(data) for name, (_, _, data) in made.items()}, limit)
    assert len(report["files"]) == len(files) > 3
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in made.values())
    for number, names in enumerate(files, start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        assert {name for name, in_file in index["weight_map"].items() if in_file == file} == set(names)
        assert reference.read(out / file) == {name: made[name] for name in names}
        with safetensors.safe_open(out / file, "pt") as checkpoint:
            assert checkpoint.metadata() == {"format": "pt"}
    assert headrace.hashes(out) == reference.hashes(path)
