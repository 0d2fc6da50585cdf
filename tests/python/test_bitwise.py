"""`headrace hash` against the safetensors package, bit for bit: dtypes, shapes, alignments, routes, threads, sizes."""

import numpy
import pytest
import reference

ODD_SHAPES = [[], [0], [1], [3, 5], [2, 0, 4], [1, 1, 1, 1, 2], [7, 11, 13]]
# Every way in which a load can go must give the same bytes.
WAYS = {
    "defaults": [],
    "pread, one thread": ["--route", "pread", "--threads", "1"],
    "pread, two threads, smallest chunks": ["--route", "pread", "--threads", "2", "--chunk", "64KiB"],
    "uring, one thread": ["--route", "uring", "--threads", "1"],
    "uring, eight threads": ["--route", "uring", "--threads", "8", "--chunk", "64KiB", "--queue-depth", "64"],
    "uring, queue of one": ["--route", "uring", "--queue-depth", "1"],
    "mapped": ["--route", "mmap"],
    "window of one byte": ["--window", "1"],
    "window of 1 MiB, eight threads": ["--window", "1MiB", "--threads", "8"],
}


def every_dtype(seed: int) -> dict[str, reference.Tensor]:
    random = numpy.random.default_rng(seed)
    tensors = {}
    for dtype, bits in reference.DTYPE_BITS.items():
        for shape in ODD_SHAPES:
            # Elements of less than a byte must fill whole bytes, so four of them stand for one.
            whole = shape if bits % 8 == 0 else [*shape, 4]
            tensors[f"{dtype}.{'x'.join(map(str, shape))}"] = reference.random_tensor(random, dtype, whole)
    return tensors


def random_checkpoint(seed: int) -> tuple[dict[str, reference.Tensor], int]:
    """Tensors of any dtype and shape in random order, and the padding of their header; by the seed alone."""
    random = numpy.random.default_rng(seed)
    tensors = {}
    for number in range(random.integers(1, 60)):
        dtype = random.choice(list(reference.DTYPE_BITS))
        shape = [int(extent) for extent in random.choice([0, 1, 2, 3, 5, 17, 64, 129], random.integers(0, 4))]
        if reference.DTYPE_BITS[dtype] % 8 != 0:
            shape.append(4 * int(random.integers(1, 40)))
        if random.random() < 0.1:
            shape.insert(0, int(random.integers(1, 30)))
        name = f"layer.{number}.{'wéight' if number % 5 == 0 else 'weight'}"
        tensors[name] = reference.random_tensor(random, dtype, shape)
    return tensors, int(random.integers(0, 9))


@pytest.mark.parametrize("padding", range(8))
def test_every_dtype_at_every_alignment(headrace, tmp_path, padding):
    path = reference.write_by_hand(tmp_path / "dtypes.safetensors", every_dtype(padding), padding)
    assert headrace.hashes(path) == reference.hashes(path)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_way_gives_the_same_bytes(headrace, tmp_path, way):
    tensors = every_dtype(1) | {
        "large": reference.random_tensor(numpy.random.default_rng(2), "BF16", [1021, 4099]),
        "after": reference.random_tensor(numpy.random.default_rng(3), "F64", [3]),
    }
    path = reference.write_by_hand(tmp_path / "ways.safetensors", tensors, 3)
    assert headrace.hashes(path, *way) == reference.hashes(path)


@pytest.mark.parametrize("seed", range(40))
def test_random_checkpoints(headrace, tmp_path, seed):
    tensors, padding = random_checkpoint(seed)
    path = reference.write_by_hand(tmp_path / "random.safetensors", tensors, padding, {"seed": str(seed)})
    way = list(WAYS.values())[seed % len(WAYS)]
    assert headrace.hashes(path, *way) == reference.hashes(path)
    assert headrace.run("load", path, *way).returncode == 0


def test_list_agrees(headrace, tmp_path):
    tensors = every_dtype(5)
    path = reference.write_by_hand(tmp_path / "listed.safetensors", tensors, 1)
    listed = {tensor["name"]: (tensor["dtype"], tensor["shape"], tensor["bytes"])
              for tensor in headrace.json("ls", path)["tensors"]}
    assert listed == {name: (dtype, shape, len(data)) for name, (dtype, shape, data) in reference.read(path).items()}


@pytest.mark.parametrize("way", ["defaults", "window of one byte", "uring, one thread"])
def test_20000_tensors(headrace, tmp_path, way):
    random = numpy.random.default_rng(7)
    tensors = {f"model.layers.{number // 200}.experts.{number % 200}.weight":
               reference.random_tensor(random, "BF16", [int(random.integers(1, 2000))]) for number in range(20_000)}
    path = reference.write_by_hand(tmp_path / "many.safetensors", tensors, 5)
    assert headrace.hashes(path, *WAYS[way]) == reference.hashes(path)


def test_no_tensors(headrace, tmp_path):
    path = reference.write_by_hand(tmp_path / "empty.safetensors", {})
    assert headrace.hashes(path) == {}


def test_match_chooses(headrace, tmp_path):
    path = reference.write_by_hand(tmp_path / "match.safetensors", every_dtype(6))
    wanted = {name: value for name, value in reference.hashes(path).items() if name.startswith("F8_E")}
    assert wanted and headrace.hashes(path, "--match", "F8_E*") == wanted


def test_a_wrong_byte_is_seen(headrace, tmp_path):
    """The comparison itself can fail: one flipped bit changes exactly one hash."""
    tensors = every_dtype(8)
    path = reference.write_by_hand(tmp_path / "flipped.safetensors", tensors)
    before = reference.hashes(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    after = headrace.hashes(path)
    assert [name for name in before if before[name] != after[name]] == [list(tensors)[-1]]
