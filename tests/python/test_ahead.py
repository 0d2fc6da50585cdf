"""Lazy tensors that are read ahead: a rank of two with layers, in vLLM's stand-in, gets the same bits with fewer loads,
whatever its layers do otherwise, whatever the window, and whatever happens to the file."""

import contextlib
import gc
import inspect
import logging
import os
import random
import threading
import weakref
from types import SimpleNamespace

import numpy
import pytest
import reference
from test_servers import servers, vllm_loader  # noqa: F401

torch = pytest.importorskip("torch")

import headrace  # noqa: E402
from headrace import _ahead, _dtypes, _lazy, _predict  # noqa: E402
from headrace._checkpoint import Checkpoint  # noqa: E402

LAYERS, EXPERTS, SIZE = 8, 4, 16
ALL = ("column", "row", "turned", "qkv", "wide", *(f"experts.{expert}.w" for expert in range(EXPERTS)))
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3"}
SHAPES = {"qkv": (3 * SIZE, SIZE), "wide": (SIZE, 4 * SIZE)}


def bits(shape, dtype):
    """Any bits, those of signalling NaNs among them."""
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8).view(dtype)


@pytest.fixture
def weights(tmp_path):
    """{name: tensor}, in two files of the folder `tmp_path`, layer behind layer."""
    torch.manual_seed(4)
    dtypes = {"column": torch.bfloat16, "row": torch.float8_e4m3fn, "turned": torch.float32}
    tensors = {
        f"model.layers.{layer}.{name}": bits(SHAPES.get(name, (SIZE, SIZE)), dtypes.get(name, torch.float16))
        for layer in range(LAYERS)
        for name in ALL
    }
    tensors["model.head"] = bits((SIZE, SIZE), torch.float32)
    half = LAYERS // 2 * len(ALL)
    write(tmp_path / "0.safetensors", dict(list(tensors.items())[:half]))
    write(tmp_path / "1.safetensors", dict(list(tensors.items())[half:]))
    return tensors


def write(path, tensors):
    reference.write_by_hand(path, {
        name: (DTYPES[tensor.dtype], list(tensor.shape), tensor.view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    })


def halves(name, tensor, rank):
    """Which views of a tensor a rank copies."""
    half = SIZE // 2
    if "experts" in name:
        return [tensor] if int(name.split(".")[4]) % 2 == rank else []
    if name.endswith("row"):
        return [tensor.chunk(2, dim=1)[rank]]
    if name.endswith("turned"):
        return [tensor[rank * half : (rank + 1) * half].t()]
    if name.endswith("qkv"):
        return [tensor.narrow(0, part * SIZE + rank * half, half) for part in range(3)]
    if name.endswith("wide"):
        return [tensor[:, rank::2]]
    return [tensor.narrow(0, rank * half, half)]


def bytes_of(tensor):
    return tensor.flatten().contiguous().view(torch.uint8)


class Model:
    """Copies what views_of(name, tensor, rank) gives of each tensor, and compares it at the end."""

    def __init__(self, rank, views_of=halves, device="cpu"):
        self.rank, self.views_of, self.device, self.parameters, self.seen = rank, views_of, device, {}, []

    def copying(self):
        """The context of a copy."""
        return contextlib.nullcontext()

    def load_weights(self, weights):
        for name, tensor in weights:
            self.seen.append(name)
            for at, view in enumerate(self.views_of(name, tensor, self.rank)):
                memory = torch.zeros(view.shape, dtype=tensor.dtype, device=self.device)
                with self.copying():
                    memory.copy_(view)
                self.parameters[name, at] = memory

    def check(self, weights, names=None):
        """Returns the bytes of all parameters."""
        expected = {
            (name, at): view
            for name in (weights if names is None else names)
            for at, view in enumerate(self.views_of(name, weights[name], self.rank))
        }
        assert self.parameters.keys() == expected.keys()
        for key, memory in self.parameters.items():
            assert torch.equal(bytes_of(memory).cpu(), bytes_of(expected[key])), key
        return sum(memory.nbytes for memory in self.parameters.values())


def load(tmp_path, weights, model, only_views=True, **options):
    """Returns the reader: of it how much was read, and by how many loads. `only_views`: all is copied as it is read."""
    loader = vllm_loader(**{"lazy_bytes": 1, "threads": 1, **options})
    loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
    last = model.seen[-1]  # still held when the iteration ends, and so read when nothing was copied of it
    kept = 0 if (last, 0) in model.parameters else weights[last].nbytes
    wanted = model.check(weights) + kept
    assert loader.headrace.bytes_wanted == wanted or (loader.headrace.bytes_wanted > wanted and not only_views)
    return loader.headrace


def copies_of(model, layers):
    return sum(any(f"layers.{layer}." in name for layer in layers) for name, _ in model.parameters)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_same_bits_with_a_load_a_layer(servers, weights, tmp_path, rank):  # noqa: F811
    model = Model(rank)
    reader = load(tmp_path, weights, model)
    assert reader.load_count == copies_of(model, [0]) + 1 + LAYERS - 1  # a layer one by one, the head, a load for each
    # what a load reads beyond the need is bounded: here columns come as whole rows
    assert reader.bytes_wanted <= reader.bytes_read < sum(tensor.nbytes for tensor in weights.values())


def test_experts_of_other_ranks_are_not_read(servers, weights, tmp_path):  # noqa: F811
    only = {name: tensor for name, tensor in weights.items() if "experts" in name}
    (tmp_path / "only").mkdir()
    write(tmp_path / "only" / "a.safetensors", only)
    model = Model(1)
    reader = load(tmp_path / "only", only, model)
    assert reader.bytes_read == reader.bytes_wanted == sum(tensor.nbytes for tensor in only.values()) // 2
    assert model.seen == list(only)


def otherwise_in_layer_3(name, tensor, rank):
    return halves(name, tensor, 1 - rank if ".layers.3." in name else rank)


def read_in_layer_3(name, tensor, rank):
    return [tensor.float() + 1 - 1] if ".layers.3.column" in name else halves(name, tensor, rank)


def later_layers_only(name, tensor, rank):
    return halves(name, tensor, rank) if any(f".layers.{layer}." in name for layer in range(4, LAYERS)) else []


def earlier_layers_only(name, tensor, rank):
    return [] if later_layers_only(name, tensor, rank) else halves(name, tensor, rank)


def alternating(name, tensor, rank):
    return halves(name, tensor, int(name.split(".")[2]) % 2 if ".layers." in name else rank)


@pytest.mark.parametrize(
    "views_of, wrong_layers",
    [(otherwise_in_layer_3, 2), (later_layers_only, 0), (earlier_layers_only, 1), (alternating, 2)],
)
def test_layers_that_do_otherwise(servers, weights, tmp_path, views_of, wrong_layers):  # noqa: F811
    usual = load(tmp_path, weights, Model(0))
    reader = load(tmp_path, weights, Model(0, views_of))
    per_layer = usual.bytes_wanted / LAYERS
    spare = (usual.bytes_read - usual.bytes_wanted) * 2  # columns read as whole rows, one by one or ahead
    assert reader.bytes_read - reader.bytes_wanted <= wrong_layers * per_layer + spare


def test_other_operations_take_what_is_right(servers, weights, tmp_path):  # noqa: F811
    def views(name, tensor, rank):
        if "experts" in name or name == "model.head":
            return []
        return [tensor.reshape(-1)[3:7]] if ".layers.3." in name else halves(name, tensor, rank)

    load(tmp_path, weights, Model(0, views), only_views=False)


def test_all_dtypes_bit_by_bit(servers, tmp_path):  # noqa: F811
    generator = numpy.random.default_rng(6)
    names = [name for name in reference.DTYPE_BITS if _dtypes.torch_dtype(torch, name) is not None and name != "F4"]
    tensors = {
        f"layers.{layer}.{name}": reference.random_tensor(generator, name, [4, 6])
        for layer in range(3)
        for name in names
    }
    reference.write_by_hand(tmp_path / "a.safetensors", tensors)
    loader = vllm_loader(lazy_bytes=1, threads=1)
    for name, tensor in loader.get_all_weights(SimpleNamespace(model=str(tmp_path)), None):
        memory = torch.empty(4, 3, dtype=tensor.dtype)
        memory.copy_(tensor[:, 1::2])
        _, _, data = tensors[name]
        expected = numpy.frombuffer(data, f"V{tensor.element_size()}").reshape(4, 6)[:, 1::2].tobytes()
        assert memory.view(torch.uint8).numpy().tobytes() == expected, name
    assert loader.headrace.load_count == len(names) + 2


def views_at_random(seed):
    """As those of another model: layers mostly agree."""

    def views(name, tensor, rank):
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        odd = random.Random(f"{seed} {name}").random() < 0.2
        generator = random.Random(f"{seed} {layer if odd else ''} {rest}")
        found = []
        for _ in range(generator.choice([0, 1, 1, 2])):
            dim, start = generator.randrange(2), generator.randrange(SIZE)
            view = tensor.narrow(dim, start, generator.randint(1, tensor.shape[dim] - start))
            found.append(view.t() if generator.random() < 0.3 else view.clone() if generator.random() < 0.1 else view)
        return found

    return views


@pytest.mark.parametrize("seed", range(12))
def test_models_at_random(servers, weights, tmp_path, seed):  # noqa: F811
    window_bytes = random.Random(seed).choice([1, 700, 3000, 20000, 1 << 30])
    load(tmp_path, weights, Model(0, views_at_random(seed)), only_views=False, window_bytes=window_bytes)


# ------------------------------------------------------------------------------------------------------------ bounds


@pytest.fixture
def held(monkeypatch):
    """How many bytes of memory for reading ahead there are, and were at most: [now, most]."""
    counts, make = [0, 0], _ahead._memory_for

    def give_back(nbytes):
        counts[0] -= nbytes

    def counting(view, dtype):
        memory = make(view, dtype)
        counts[0] += memory.nbytes
        counts[1] = max(counts)
        weakref.finalize(memory, give_back, memory.nbytes)
        return memory

    monkeypatch.setattr(_ahead, "_memory_for", counting)
    return counts


@pytest.mark.parametrize("window_bytes", [1, 100, 600, 5000, 1 << 20])
@pytest.mark.parametrize("views_of", [halves, alternating, earlier_layers_only])
def test_memory_stays_within_the_window(servers, weights, tmp_path, held, window_bytes, views_of):  # noqa: F811
    reader = load(tmp_path, weights, Model(0, views_of), window_bytes=window_bytes)
    assert held[1] <= window_bytes and held[0] == 0
    if window_bytes <= 100:  # no tensor fits: each is read when it is copied
        assert reader.load_count == len(reader_copies(weights, views_of))
    else:
        assert held[1] > 0


def reader_copies(weights, views_of):
    return [view for name, tensor in weights.items() for view in views_of(name, tensor, 0)]


def test_an_early_end_stops_reading(servers, weights, tmp_path, held):  # noqa: F811
    iterator = vllm_loader(lazy_bytes=1).get_all_weights(SimpleNamespace(model=str(tmp_path)), None)
    model = Model(0)

    def until_layer_3():
        for name, tensor in iterator:
            yield name, tensor
            if ".layers.3.qkv" in name:
                return

    model.load_weights(until_layer_3())
    assert held[0] > 0
    iterator.close()
    assert held[0] == 0
    model.check(weights, model.seen)
    assert not any(thread.name.startswith("headrace") for thread in threading.enumerate())


def test_lazy_tensors_outlive_the_iteration(servers, weights, tmp_path):  # noqa: F811
    iterator = vllm_loader(lazy_bytes=1).get_all_weights(SimpleNamespace(model=str(tmp_path)), None)
    kept = {}
    for name, tensor in iterator:
        halves(name, tensor, 0) and torch.empty(SIZE // 2, SIZE, dtype=tensor.dtype).copy_(tensor[: SIZE // 2, :SIZE])
        kept[name] = tensor
        if ".layers.3." in name:
            break
    iterator.close()
    gc.collect()
    for name, tensor in kept.items():
        assert torch.equal(bytes_of(tensor), bytes_of(weights[name]))


# ------------------------------------------------------------------------------------------------------------ errors


def test_a_file_cut_off_is_an_error_of_the_copy(servers, weights, tmp_path):  # noqa: F811
    iterator = vllm_loader(lazy_bytes=1).get_all_weights(SimpleNamespace(model=str(tmp_path)), None)
    model, last = Model(0), f"model.layers.{LAYERS // 2 - 2}.row"

    def cutting():
        for name, tensor in iterator:
            if name == last:
                os.truncate(tmp_path / "0.safetensors", 1 << 10)
                os.truncate(tmp_path / "1.safetensors", 1 << 10)
            yield name, tensor

    with pytest.raises(headrace.HeadraceError) as raised:
        model.load_weights(cutting())
    model.check(weights, model.seen[:-1])
    assert raised.value.tensor == model.seen[-1] and raised.value.file.endswith(".safetensors")
    assert raised.value.offset >= 1 << 10 and "shorter" in str(raised.value)
    iterator.close()


class Failing:
    """Checkpoint.start, of which reading ahead fails: at once, or when somebody waits."""

    def __init__(self, monkeypatch, error, at_once):
        self._start, self._error, self._at_once, self.count = Checkpoint.start, error, at_once, 0
        monkeypatch.setattr(Checkpoint, "start", lambda *args, **options: self.start(*args, **options))

    def start(self, checkpoint, names, **options):
        job = self._start(checkpoint, names, **options)
        if isinstance(options.get("into"), dict) and options.get("order") == "file":
            self.count += 1
            if self._at_once:
                raise self._error
            job.get = self.fail
        return job

    def fail(self, name):
        raise self._error


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", ["IoError", "OutOfMemory", None])
def test_a_failure_ahead_is_none_of_the_copy(servers, weights, tmp_path, monkeypatch, caplog, kind, at_once):  # noqa: F811
    if kind is None and not at_once:
        pytest.skip("PyTorch makes the memory at the start")
    error = RuntimeError("no memory") if kind is None else headrace.errors.make(kind, "it broke")
    failing = Failing(monkeypatch, error, at_once)
    with caplog.at_level(logging.INFO, "headrace"):
        load(tmp_path, weights, Model(1))
    assert failing.count == 1 and caplog.text.count("nothing more is read ahead") == 1


def test_one_rank_reads_ahead_as_before(servers, weights, tmp_path):  # noqa: F811
    loader = vllm_loader()
    found = dict(loader.get_all_weights(SimpleNamespace(model=str(tmp_path)), None))
    assert loader.headrace.load_count == 0 and not any(isinstance(t, _lazy.LazyTensor) for t in found.values())


def test_the_predictor_knows_no_framework():
    source = inspect.getsource(_predict)
    assert "import torch" not in source and "from ." not in source
