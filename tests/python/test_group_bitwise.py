"""Loads of process groups, bit for bit: the shards of all ranks put together are the reference's tensors."""

import itertools
from pathlib import Path

import numpy
import page_cache
import pytest
import reference

torch = pytest.importorskip("torch")
import headrace  # noqa: E402
import ranks  # noqa: E402
from headrace import _dtypes  # noqa: E402

DTYPES = [name for name in _dtypes.TORCH if _dtypes.torch_dtype(torch, name) is not None]
SHAPE = [5, 3, 7, 6]
DIMS = (None, 0, 1, 2, 3)


def raw(tensor) -> bytes:
    return bytes(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def block(extent: int, rank: int, world: int) -> slice:
    size = -(-extent // world)
    return slice(min(rank * size, extent), min((rank + 1) * size, extent))


def numpy_of(tensor: reference.Tensor) -> numpy.ndarray:
    """A stored tensor with its elements' bytes as a last dimension."""
    dtype, shape, data = tensor
    return numpy.frombuffer(data, numpy.uint8).reshape([*shape, reference.DTYPE_BITS[dtype] // 8])


def cut(tensor: reference.Tensor, dim: int | None, rank: int, world: int) -> bytes:
    array = numpy_of(tensor)
    if dim is not None:
        array = array[(slice(None),) * dim + (block(array.shape[dim], rank, world),)]
    return array.tobytes()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """Every dtype in two files, scalars and empty tensors; small and misaligned, so that nothing is round."""
    random = numpy.random.default_rng(7)
    folder = tmp_path_factory.mktemp("group") / "model"
    folder.mkdir()
    names = [name for name in DTYPES if name != "F4"]
    for number in range(2):
        tensors = {f"{name}.{number}": reference.random_tensor(random, name, SHAPE) for name in names[number::2]}
        tensors |= {f"scalar.{number}": reference.random_tensor(random, "F32", []),
                    f"empty.{number}": ("F32", [3, 0, 2, 2], b""),
                    f"large.{number}": reference.random_tensor(random, "U8", [301, 11, 7, 13])}
        reference.write_by_hand(folder / f"{number}.safetensors", tensors, padding=number)
    return folder


def expected_of(folder: Path) -> dict[str, reference.Tensor]:
    return {name: tensor for path in sorted(folder.glob("*.safetensors"))
            for name, tensor in reference.read(path).items()}


def load_dims(rank, folder, dims, options, **more):
    """{dim: ({name: bytes}, statistics)}; None: whole tensors."""
    result = {}
    for dim in dims:
        checkpoint = headrace.open(folder)
        shard = {} if dim is None else {"shard": dim}
        tensors = checkpoint.load(framework="torch", group=True, **shard, **options, **more)
        stats = checkpoint.last_stats
        result[dim] = {name: raw(tensor) for name, tensor in tensors.items()}, stats
    return result


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_dtype_and_dimension(checkpoint, world):
    check_dims(checkpoint, world, ranks.values(ranks.run(world, load_dims, checkpoint, DIMS, {})))


def check_dims(checkpoint, world, loaded, dims=DIMS):
    expected = expected_of(checkpoint)
    for dim, (rank, result) in itertools.product(dims, enumerate(loaded)):
        tensors, _ = result[dim]
        for name, tensor in expected.items():
            there = dim if dim is not None and dim < len(tensor[1]) else None
            assert tensors[name] == cut(tensor, there, rank, world), (dim, rank, name)
    total = sum(len(data) for _, _, data in expected.values())
    for dim in dims:
        read = sum(result[dim][1].bytes_read for result in loaded)
        assert read == total, f"dimension {dim}: {read} of {total} bytes were read in all"
        assert {result[dim][1].world for result in loaded} == {world}


@pytest.mark.parametrize("options", [
    {"window_bytes": 1}, {"window_bytes": 5000, "group_bytes": 1 << 16}, {"order": "name", "window_bytes": 20000}])
def test_small_windows_and_buffers(checkpoint, options):
    expected = expected_of(checkpoint)
    for rank, result in enumerate(ranks.values(ranks.run(2, load_dims, checkpoint, [None, 1], options))):
        for dim in (None, 1):
            for name, tensor in expected.items():
                there = dim if dim is not None and dim < len(tensor[1]) else None
                assert result[dim][0][name] == cut(tensor, there, rank, 2), (dim, rank, name)


def load_mixed(rank, folder, **options):
    shard = {"large.0": 0, "F32.*": 1, "*64.*": -1}
    with headrace.open(folder) as checkpoint:
        stream = checkpoint.stream(framework="torch", group=True, shard=shard, order="file", **options)
        return {name: raw(tensor) for name, tensor in stream}, checkpoint.last_stats


def test_rows_columns_and_whole_ones_together(checkpoint):
    expected = expected_of(checkpoint)
    loaded = ranks.values(ranks.run(3, load_mixed, checkpoint))
    for rank, (tensors, stats) in enumerate(loaded):
        for name, tensor in expected.items():
            dim = 0 if name == "large.0" else 1 if name.startswith("F32") else 3 if "64." in name else None
            assert tensors[name] == cut(tensor, dim, rank, 3), (rank, name)
        assert stats.bytes_ready == sum(map(len, tensors.values()))
        assert 0 < stats.bytes_spread < stats.bytes_ready
        assert stats.collective_count > 0 and stats.group_bytes > 0 and stats.bytes_received > 0
    assert sum(stats.bytes_read for _, stats in loaded) == sum(len(data) for _, _, data in expected.values())


def load_in_subgroup(rank, folder):
    members = [1, 3]
    group = torch.distributed.new_group(members)
    if rank not in members:
        return None
    return {name: raw(tensor)
            for name, tensor in headrace.load(folder, framework="torch", group=group, shard={"large*": 0}).items()}


def test_subgroup(checkpoint):
    expected = expected_of(checkpoint)
    loaded = ranks.values(ranks.run(4, load_in_subgroup, checkpoint))
    assert loaded[0] is None and loaded[2] is None
    for own, rank in enumerate([1, 3]):
        for name, tensor in expected.items():
            assert loaded[rank][name] == cut(tensor, 0 if name.startswith("large") else None, own, 2)


def load_shapes_of_requests(rank, folder):
    """Into memory of one's own, sections, picks with shards, no framework, numpy, threads of one group, and again."""
    world, result = 2, {}
    group = torch.distributed.group.WORLD
    target = torch.zeros((301, 11, 7, 13), dtype=torch.uint8)
    own = target[block(301, rank, world)]
    headrace.load(folder, group=group, into={"large.0": own}, shard=0)
    result["into"] = raw(own)
    sections = (7, 4)
    result["sections"] = raw(headrace.load(
        folder, "large.0", framework="torch", group=group, shard={"large.0": (1, sections)})["large.0"])
    result["picks"] = raw(headrace.load(
        folder, "large.0", framework="torch", group=group, slices={"large.0": headrace.pick(0, [5, 2])},
        shard={"large.0": 3})["large.0"])
    result["slices"] = raw(headrace.load(
        folder, "large.0", framework="torch", group=group, slices={"large.0": numpy.s_[3:300:2, ..., 1]},
        shard={"large.0": 1})["large.0"])
    result["none"] = bytes(headrace.load(folder, "large.1", group=group, shard=2)["large.1"])
    result["numpy"] = headrace.load(folder, "large.1", framework="numpy", group=group)["large.1"].tobytes()
    result["world 1"] = raw(headrace.load(folder, "large.1", framework="torch", group=solo(rank))["large.1"])
    headrace.release()
    result["again"] = raw(headrace.load(folder, "large.1", framework="torch", group=group)["large.1"])
    return result


def solo(rank):
    groups = [torch.distributed.new_group([member]) for member in range(2)]
    return groups[rank]


def test_shapes_of_requests(checkpoint):
    expected = expected_of(checkpoint)
    large = [numpy_of(expected[f"large.{number}"]) for number in range(2)]
    for rank, result in enumerate(ranks.values(ranks.run(2, load_shapes_of_requests, checkpoint))):
        assert result["into"] == large[0][block(301, rank, 2)].tobytes()
        parts = [large[0][:, :7][:, block(7, rank, 2)], large[0][:, 7:][:, block(4, rank, 2)]]
        assert result["sections"] == numpy.concatenate(parts, 1).tobytes()
        assert result["picks"] == large[0][[5, 2]][..., block(13, rank, 2), :].tobytes()
        assert result["slices"] == large[0][3:300:2, :, :, 1][:, block(11, rank, 2)].tobytes()
        assert result["none"] == large[1][:, :, block(7, rank, 2)].tobytes()
        assert result["numpy"] == result["world 1"] == result["again"] == large[1].tobytes()


@pytest.mark.parametrize("world", range(1, 9))
def test_shards_without_a_group_fit_together(checkpoint, world):
    expected = expected_of(checkpoint)
    for dim in range(4):
        for rank in range(world):
            tensors = headrace.load(checkpoint, framework="torch", shard=dim, rank=rank, world=world)
            for name, tensor in expected.items():
                there = dim if dim < len(tensor[1]) else None
                assert raw(tensors[name]) == cut(tensor, there, rank, world), (dim, rank, name)


def test_group_wants_torch_distributed(checkpoint):
    with pytest.raises(headrace.errors.InvalidArgument, match="init_process_group"):
        headrace.load(checkpoint, group=True)


# ------------------------------------------------------------------------------------------- more ranks than blocks

HEADS = {"all": ("U8", [3_000_000], bytes(range(200)) * 15_000),
         "kv": ("U8", [100_000, 2, 8], bytes(range(160)) * 10_000)}


def load_heads(rank, folder, path, way):
    """Ranks from the third on get no head, and have all they need before the others do."""
    options = {"framework": "torch", "group": True, "shard": {"kv": 1}, "group_bytes": 1 << 20}
    if way == "stream":
        tensors = dict(headrace.stream(path, **options))
    else:
        with headrace.start(path, **options) as job:
            tensors = job.wait() if way == "wait" else {name: job.get(name) for name in ("kv", "all")}
    return {name: raw(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize("way", ["wait", "stream", "get"])
def test_ranks_without_a_block_read_on_for_the_others(tmp_path, way):
    path = reference.write_by_hand(tmp_path / "heads.safetensors", HEADS)
    loaded = ranks.values(ranks.run(4, load_heads, tmp_path, path, way))
    for rank, tensors in enumerate(loaded):
        assert tensors == {"all": HEADS["all"][2], "kv": cut(HEADS["kv"], 1, rank, 4)}


# ------------------------------------------------------------------------------------------------ read ahead


def load_begun(rank, folder, path):
    """Rank 0 reads all of it ahead; then both load whole tensors, half of which each reads for the group."""
    checkpoint = headrace.open(path)
    is_cold = page_cache.empty(path)
    torch.distributed.barrier()
    if rank == 0:
        checkpoint._core.read_ahead(0)
    torch.distributed.barrier()
    tensors = checkpoint.load(framework="torch", group=True)
    torch.distributed.barrier()
    return is_cold, page_cache.resident(path), checkpoint.last_stats, {name: raw(t) for name, t in tensors.items()}


def test_what_was_read_ahead_is_read_by_the_group_and_let_go_of(tmp_path):
    data = {f"t{i}": bytes([i]) * (3 << 20) for i in range(16)}
    path = reference.write_by_hand(tmp_path / "x.safetensors", {name: ("U8", [3 << 20], b) for name, b in data.items()})
    first, second = ranks.values(ranks.run(2, load_begun, tmp_path, path))
    assert first[3] == data and second[3] == data
    if not first[0]:
        pytest.skip("the page cache cannot be emptied here")
    assert "MiB were read ahead" in first[2].route_reason and "read ahead" not in second[2].route_reason
    # Rank 0 let go of its half; rank 1 knows nothing of it, and takes what is cached for somebody's.
    assert page_cache.resident(path) <= 33 << 20
