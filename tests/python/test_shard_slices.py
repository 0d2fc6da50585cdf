"""Shards, picks and fused sections against numpy on what the reference reader gives: every dtype, every dimension,
worlds of 1 to 8, extents that do not divide; together the ranks' blocks are the tensor. And several ranges of a tensor,
and several tensors, into memory of the caller's.
"""

import fake_gpu
import numpy
import pytest
import reference
from fake_gpu import on_fake_gpu, read_back

import headrace

try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

SHAPE = [7, 5, 6, 4]
WORLDS = range(1, 9)
BYTE_DTYPES = [dtype for dtype, bits in reference.DTYPE_BITS.items() if bits % 8 == 0]
SECTIONS = [(4, 2, 1), (7,), (3, 0, 4), (1,) * 7]


def elements(tensor: reference.Tensor) -> numpy.ndarray:
    dtype, shape, data = tensor
    return numpy.frombuffer(data, f"V{reference.DTYPE_BITS[dtype] // 8}").reshape(shape)


def block(extent: int, rank: int, world: int) -> list[int]:
    """The rule, element by element: which of `extent` belong to `rank`."""
    size = (extent + world - 1) // world
    return [at for at in range(extent) if at // size == rank]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    random = numpy.random.default_rng(23)
    tensors = {dtype: reference.random_tensor(random, dtype, SHAPE) for dtype in BYTE_DTYPES}
    tensors |= {dtype: reference.random_tensor(random, dtype, [7, 5, 8]) for dtype in ("F4", "F6_E2M3", "F6_E3M2")}
    for name, shape in (("bias", [7]), ("scalar", [])):
        tensors[name] = reference.random_tensor(random, "F32", shape)
    tensors["wide"] = reference.random_tensor(random, "BF16", [300, 1024])
    return reference.write_by_hand(tmp_path_factory.mktemp("shards") / "x.safetensors", tensors, padding=5)


@pytest.fixture(scope="module")
def wholes(path):
    return reference.read(path)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -4])
def test_the_ranks_blocks_are_the_tensor(path, wholes, dim, world):
    with headrace.open(path) as checkpoint:
        ranks = [checkpoint.load(BYTE_DTYPES, shard=dim, rank=rank, world=world) for rank in range(world)]
    for dtype in BYTE_DTYPES:
        whole = elements(wholes[dtype])
        width = f"V{whole.dtype.itemsize}"
        parts = [numpy.frombuffer(bytes(part[dtype]), width).reshape(part[dtype].shape) for part in ranks]
        assert numpy.concatenate(parts, dim).tobytes() == whole.tobytes(), dtype
        assert [part.shape[dim] for part in parts] == [len(block(SHAPE[dim], rank, world)) for rank in range(world)]


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
@pytest.mark.parametrize("world", WORLDS)
def test_elements_smaller_than_a_byte(path, wholes, dtype, world):
    for dim in (0, 1):
        rows = numpy.frombuffer(wholes[dtype][2], numpy.uint8).reshape(7, 5, -1)
        parts = [headrace.load(path, dtype, shard={dtype: dim}, rank=rank, world=world)[dtype] for rank in range(world)]
        joined = [numpy.frombuffer(bytes(part), numpy.uint8).reshape(*part.shape[:2], rows.shape[2])
                  for part in parts]
        assert numpy.concatenate(joined, dim).tobytes() == rows.tobytes()


@pytest.mark.parametrize("framework", ["np", pytest.param("pt", marks=needs_torch)])
@pytest.mark.parametrize("sizes", SECTIONS, ids=str)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_sections_are_cut_each(path, wholes, framework, sizes, world):
    names = ["F32", "U8", "F64"]
    begins = numpy.cumsum([0, *sizes])
    for rank in range(world):
        wanted = [begin + at for begin, size in zip(begins, sizes) for at in block(size, rank, world)]
        loaded = headrace.load(path, names, framework=framework, shard={"*": (0, sizes)}, rank=rank, world=world)
        sliced = headrace.load(path, names, framework=framework,
                               slices={"*": headrace.shard(0, rank, world, sizes=sizes)})
        for name in names:
            for tensor in (loaded[name], sliced[name]):
                assert numpy.asarray(tensor).tobytes() == elements(wholes[name])[wanted].tobytes(), (rank, name)


PICKS = [[3], [0, 1, 2], [6, 0, 3], [5, 4, 4], [-1, 0], [], [1, 2, 5, 6]]


@pytest.mark.parametrize("wanted", PICKS, ids=str)
@pytest.mark.parametrize("dim", [0, 2, -1])
def test_picks_in_any_order(path, wholes, wanted, dim):
    wanted = [at if at < SHAPE[dim] else at - 3 for at in wanted]
    loaded = headrace.load(path, "I32", framework="np", slices={"I32": headrace.pick(dim, wanted)})["I32"]
    expected = numpy.take(elements(wholes["I32"]), wanted, axis=dim) if wanted else loaded
    assert loaded.shape == expected.shape and loaded.tobytes() == expected.tobytes()
    assert loaded.shape[dim] == len(wanted)


def test_picks_of_ranges_and_packed_elements(path, wholes):
    wanted = headrace.pick(0, ranges=[(5, 7), (0, 2), (-3, -1)])
    with headrace.open(path) as checkpoint:
        loaded = checkpoint.load(["I16"], framework="np", slices={"I16": wanted})["I16"]
        assert loaded.tobytes() == elements(wholes["I16"])[[5, 6, 0, 1, 4, 5]].tobytes()
        rows = numpy.frombuffer(wholes["F4"][2], numpy.uint8).reshape(7, -1)
        target = bytearray(3 * rows.shape[1])
        checkpoint.load(slices={"F4": headrace.pick(0, [6, 0, 3])}, into={"F4": target})
        assert target == rows[[6, 0, 3]].tobytes()
        with pytest.raises(headrace.errors.Unsupported, match=r"'F4'.*whole bytes"):
            checkpoint.load(slices={"F4": headrace.pick(1, [0, 2])}, into={"F4": bytearray(7 * 2 * 4)})


def test_random_cuts_of_cuts(path, wholes):
    """A slice or a pick, then a shard of what it leaves, against the same by numpy."""
    random = numpy.random.default_rng(5)
    whole = elements(wholes["U16"])
    with headrace.open(path) as checkpoint:
        for _ in range(200):
            dim, world = int(random.integers(0, 4)), int(random.integers(1, 9))
            rank = int(random.integers(0, world))
            start, step = int(random.integers(0, 4)), int(random.integers(1, 4))
            if random.integers(0, 2):
                index = (slice(start, None, step), Ellipsis, slice(None, None, step))
                left = whole[index]
            else:
                wanted = random.integers(0, SHAPE[1], int(random.integers(0, 6))).tolist()
                index, left = headrace.pick(1, wanted), numpy.take(whole, wanted, axis=1) if wanted else whole[:, :0]
            expected = numpy.take(left, block(left.shape[dim], rank, world), axis=dim) if left.shape[dim] else left
            loaded = checkpoint.load("U16", framework="np", slices={"U16": index}, shard=dim, rank=rank, world=world)
            assert loaded["U16"].shape == expected.shape, (index, dim, rank, world)
            assert loaded["U16"].tobytes() == expected.tobytes(), (index, dim, rank, world)


def test_which_tensors_a_shard_cuts(path):
    loaded = headrace.load(path, ["F32", "bias", "scalar", "U8"], shard={"U8": 0, "*": 1}, rank=0, world=2)
    assert [loaded[name].shape for name in ("F32", "bias", "scalar", "U8")] == [(7, 3, 6, 4), (7,), (), (4, 5, 6, 4)]
    dropped = headrace.load(path, "F32", framework="np", slices={"F32": 2}, shard={"F32": -1}, rank=1, world=2)["F32"]
    assert dropped.shape == (5, 6, 2)


WRONG = [
    ({"shard": {"bias": 1}, "rank": 0, "world": 2}, "'bias': there is no dimension 1"),
    ({"shard": {"F32": 0}, "slices": {"F32": 2}, "rank": 0, "world": 2}, "'F32': .*drops it"),
    ({"shard": {"F32": (0, (4, 4))}, "rank": 0, "world": 2}, "'F32': .*add up to dimension 0, of 7"),
    ({"shard": 0, "rank": 2, "world": 2}, "rank 2"),
    ({"shard": 0, "rank": 0}, "go together"),
    ({"rank": 0, "world": 2}, "go together"),
    ({"shard": {"F32": "0"}, "rank": 0, "world": 2}, "'F32': .*integers"),
    ({"slices": {"F32": headrace.pick(0, [7])}}, "'F32': dimension 0: index 7 is out of bounds"),
    ({"slices": {"F32": headrace.pick(0, ranges=[(6, 8)])}}, "'F32': dimension 0: range 6 to 8"),
    ({"into": {"F32": []}}, "'F32': .*empty"),
    ({"into": {"F32": [numpy.zeros(3)]}}, "'F32': .*pairs"),
    ({"into": {"F32": [(0, bytearray(5 * 6 * 4 * 4))]}, "slices": {"F32": 0}}, "'F32': .*leave it out"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=[text for _, text in WRONG])
def test_wrong_shards_are_refused(path, options, text):
    with pytest.raises(headrace.errors.InvalidArgument, match=text) as caught:
        headrace.load(path, framework="np", **options)
    assert caught.value.tensor == (text.split("'")[1] if "'" in text else None)


def test_parts_want_a_framework_that_makes_tensors(path):
    with pytest.raises(headrace.errors.Unsupported, match=r"'F32': .*several parts.*into=") as caught:
        headrace.load(path, "F32", slices={"F32": headrace.pick(0, [0, 2])})
    assert caught.value.tensor == "F32"
    for wrong in ({"dim": 0}, {"dim": 0, "indices": [1], "ranges": []}, {"dim": 0, "indices": [1.5]},
                  {"dim": 0, "ranges": [3]}):
        with pytest.raises(headrace.errors.InvalidArgument, match="pick"):
            headrace.pick(**wrong)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("window_bytes", [0, 1])
def test_parted_tensors_by_all_ways_of_waiting(path, wholes, lazy, window_bytes):
    odd = [1, 3, 6]
    options = {"names": ["BOOL", "U8", "I8", "I16", "U16", "F16"], "framework": "np", "lazy": lazy,
               "window_bytes": window_bytes, "slices": {"*": headrace.pick(0, odd), "I8": numpy.s_[2:]}}
    expected = {name: elements(wholes[name])[2:] if name == "I8" else elements(wholes[name])[odd]
                for name in options["names"]}
    expected = {name: part.tobytes() for name, part in expected.items()}
    with headrace.open(path) as checkpoint:
        for order in ("ready", "file", "name"):
            found = {name: tensor.tobytes() for name, tensor in checkpoint.stream(order=order, **options)}
            assert found == expected, order
        with checkpoint.start(**options) as job:
            assert len(job) == len(expected) and set(job.names()) == set(expected)
            assert job.get("U16").tobytes() == expected["U16"]
            with pytest.raises(headrace.errors.InvalidArgument, match="'U16' was handed out before"):
                job.get("U16")
            assert job.future("U8").result().tobytes() == expected["U8"]
            rest = {name: tensor.tobytes() for name, tensor in job.wait().items()}
            assert rest == {name: data for name, data in expected.items() if name not in ("U8", "U16")}
        assert checkpoint.last_stats.item_count == len(expected)
        with checkpoint.start(**options) as job:
            job.get("U16")
            assert {name for name, _ in job} == set(expected) - {"U16"}


@pytest.mark.parametrize("route", ["pread", "uring", "mmap"])
def test_only_the_bytes_of_a_pick_are_read(tmp_path, route):
    rows = reference.random_tensor(numpy.random.default_rng(3), "U8", [64, 1 << 16])
    path = reference.write_by_hand(tmp_path / "x.safetensors", {"experts": rows})
    with headrace.open(path) as checkpoint:
        try:
            loader = headrace.Loader(route=route)
        except headrace.errors.Unsupported:
            pytest.skip(f"{route} is not usable here")
        wanted = [3, 4, 40, 17]
        loaded = checkpoint.load(framework="np", loader=loader, slices={"*": headrace.pick(0, wanted)})["experts"]
        assert loaded.tobytes() == elements(rows)[wanted].tobytes()
        stats = checkpoint.last_stats
        assert stats.bytes_needed == 4 << 16 and (route == "mmap" or stats.bytes_read <= stats.bytes_needed + 4 * 8192)


# ------------------------------------------------------------------------------------- memory of the caller's, merged


def experts(folder, count: int = 3) -> tuple:
    """A checkpoint of a mixture of experts: gate, up and down of each, and a fused query, key and value."""
    random = numpy.random.default_rng(9)
    tensors = {}
    for expert in range(count):
        tensors |= {f"experts.{expert}.{name}": reference.random_tensor(random, "I32", shape)
                    for name, shape in (("gate", [6, 8]), ("up", [6, 8]), ("down", [8, 6]))}
    tensors["qkv"] = reference.random_tensor(random, "I32", [8 + 4 + 4, 8])
    path = reference.write_by_hand(folder / "moe.safetensors", tensors, padding=1)
    return path, {name: numpy.frombuffer(data, "i4").reshape(shape) for name, (_, shape, data) in tensors.items()}


def merge(empty, path, arrays) -> None:
    """Experts stacked [E, 2I, H] with gate and up one behind the other, down transposed, query, key and value apart."""
    gate_up, down = empty((3, 12, 8)), empty((3, 6, 8))
    query, key_value = empty((8, 8)), empty((8, 8))
    into = {"qkv": [(numpy.s_[:8], query), (headrace.pick(0, ranges=[(12, 16), (8, 12)]), key_value)]}
    for expert in range(3):
        into[f"experts.{expert}.gate"], into[f"experts.{expert}.up"] = gate_up[expert, :6], gate_up[expert, 6:]
        into[f"experts.{expert}.down"] = down[expert].T
    loaded = headrace.load(path, into=into)
    assert loaded["qkv"] is into["qkv"] and loaded["experts.0.up"] is into["experts.0.up"]
    for expert in range(3):
        gate, up = arrays[f"experts.{expert}.gate"], arrays[f"experts.{expert}.up"]
        assert numpy.array_equal(gate_up[expert], numpy.concatenate([gate, up]))
        assert numpy.array_equal(down[expert], arrays[f"experts.{expert}.down"].T)
    assert numpy.array_equal(query, arrays["qkv"][:8])
    assert numpy.array_equal(key_value, arrays["qkv"][[12, 13, 14, 15, 8, 9, 10, 11]])


def test_experts_merge_into_arrays(tmp_path):
    merge(lambda shape: numpy.full(shape, -1, "i4"), *experts(tmp_path))


@needs_torch
def test_experts_merge_into_tensors(tmp_path):
    merge(lambda shape: torch.full(shape, -1, dtype=torch.int32), *experts(tmp_path))


def test_a_merge_of_one_rank(tmp_path):
    """The rank's block of each expert's gate and up, into its part of the stack."""
    path, arrays = experts(tmp_path)
    for rank in range(2):
        stacked = numpy.zeros((3, 6, 8), "i4")
        into = {f"experts.{e}.{name}": stacked[e, half : half + 3]
                for e in range(3) for name, half in (("gate", 0), ("up", 3))}
        headrace.load(path, list(into), into=into, shard=0, rank=rank, world=2)
        for expert in range(3):
            blocks = [arrays[f"experts.{expert}.{name}"][3 * rank : 3 * rank + 3] for name in ("gate", "up")]
            assert numpy.array_equal(stacked[expert], numpy.concatenate(blocks))


# ----------------------------------------------------------------------------------------------------- the fake GPU


class Device:
    """Memory of the fake GPU that looks like an array of integers."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        self.shape, self.dtype = shape, "int32"
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<i4", "data": (address, False), "version": 3,
                                         "strides": strides, "stream": 1}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@on_fake_gpu()
def test_experts_merge_on_a_gpu(path):
    path, arrays = experts(path.parent)
    stack, apart = fake_gpu.allocate(3 * 12 * 8 * 4, 0), fake_gpu.allocate(16 * 8 * 4, 0)
    into = {"qkv": [(numpy.s_[:8], Device(apart, (8, 8))),
                    (headrace.pick(0, ranges=[(12, 16), (8, 12)]), Device(apart + 256, (8, 8)))]}
    for expert in range(3):
        into[f"experts.{expert}.gate"] = Device(stack + expert * 384, (6, 8))
        into[f"experts.{expert}.up"] = Device(stack + expert * 384 + 192, (6, 8))
    headrace.load(path, into=into)
    expected = [arrays[f"experts.{expert}.{name}"] for expert in range(3) for name in ("gate", "up")]
    assert read_back(stack, 3 * 12 * 8 * 4, 0) == b"".join(part.tobytes() for part in expected)
    rows = [*range(8), 12, 13, 14, 15, 8, 9, 10, 11]
    assert read_back(apart, 16 * 8 * 4, 0) == arrays["qkv"][rows].tobytes()


@on_fake_gpu()
def test_only_a_ranks_bytes_cross_the_link(path):
    whole = elements(reference.read(path)["wide"])
    with headrace.open(path) as checkpoint:
        for world in WORLDS:
            parts = []
            for rank in range(world):
                tensor = checkpoint.load("wide", device=0, shard=1, rank=rank, world=world)["wide"]
                stats = checkpoint.last_stats
                assert stats.bytes_sent == stats.bytes_needed == tensor.nbytes, (rank, world)
                assert stats.bytes_read <= whole.nbytes + 4096
                data = numpy.frombuffer(read_back(tensor.data_ptr(), tensor.nbytes, 0), "V2")
                parts.append(data.reshape(tensor.shape))
            assert numpy.concatenate(parts, 1).tobytes() == whole.tobytes(), world
