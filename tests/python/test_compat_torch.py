"""headrace.compat.safetensors.torch against safetensors.torch, and programs that read and write through it: accelerate,
diffusers and huggingface_hub, with models of their own making."""

import importlib
import itertools
import json

import numpy
import pytest
import reference

import headrace._safe_open
import headrace._save
from headrace.compat import safetensors as compat

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("safetensors.torch")
ours = importlib.import_module("headrace.compat.safetensors.torch")
PAIR = (ours, theirs)


def equal(one, other) -> bool:
    if list(one) != list(other):
        return False
    for name, tensor in one.items():
        wanted = other[name]
        if (tensor.dtype, tensor.shape, tensor.device) != (wanted.dtype, wanted.shape, wanted.device):
            return False
        if tensor.numel() and not torch.equal(tensor.flatten().view(torch.uint8), wanted.flatten().view(torch.uint8)):
            return False
    return True


def outcome(call, module):
    try:
        return call(module)
    except Exception as error:
        return error


def test_every_dtype_goes_out_and_in(tmp_path):
    generator = numpy.random.default_rng(5)
    made = {}
    for dtype, shape in itertools.product(reference.DTYPE_BITS, [[2, 4], [], [0, 2]]):
        if dtype.startswith("F6") or (dtype == "F4" and shape != [2, 4]):
            continue
        made[f"{dtype}{len(shape)}{shape[:1]}"] = reference.random_tensor(generator, dtype, shape)
    path = reference.write_by_hand(tmp_path / "x.safetensors", made)
    tensors = theirs.load_file(path)
    assert len(tensors) == len(made) and equal(ours.load_file(path), tensors)
    assert equal(ours.load_file(path, "cpu", backend="pread"), tensors)
    for metadata in (None, {"format": "pt"}):
        written = []
        for module in PAIR:
            module.save_file(tensors, tmp_path / "y", metadata=metadata)
            written += [(tmp_path / "y").read_bytes(), module.save(tensors, metadata)]
        assert len(set(written)) == 1
    assert equal(ours.load(written[0]), theirs.load_file(tmp_path / "y"))


BASE = torch.arange(12.0).reshape(3, 4)
WRONG = [
    [BASE], {"a": 1}, {"a": BASE, "b": BASE}, {"a": BASE[:, 1:]}, {"a": BASE.t()}, {"a": BASE.to_sparse()},
    {"a": BASE[:2], "b": BASE[1:]}, {"a": torch.ones(2, dtype=torch.complex128)},
]  # fmt: skip


@pytest.mark.parametrize("tensors", WRONG, ids=range(len(WRONG)))
def test_what_is_not_saved(tmp_path, tensors):
    expected = outcome(lambda module: module.save_file(tensors, tmp_path / "x"), theirs)
    found = outcome(lambda module: module.save_file(tensors, tmp_path / "x"), ours)
    assert isinstance(expected, Exception) and type(found) is type(expected)
    squeezed = [" ".join(str(error).split())[:60] for error in (found, expected)]
    assert squeezed[0] == squeezed[1]
    assert not list(tmp_path.iterdir())


class Tied(torch.nn.Module):
    """Two names of one weight, a view that is not all of its storage, and one that is not contiguous."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.turned = torch.nn.Parameter(torch.randn(3, 5).t())
        whole = torch.randn(6)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[:3])


def test_save_model_and_load_model(tmp_path):
    for module in PAIR:
        module.save_model(Tied(), tmp_path / module.__name__, {"first.weight": "mine"})
    files = [(tmp_path / module.__name__) for module in PAIR]
    assert sorted(theirs.load_file(files[0])) == sorted(theirs.load_file(files[1]))
    with theirs.safe_open(files[0], "pt") as one, theirs.safe_open(files[1], "pt") as other:
        assert one.metadata() == other.metadata() and one.offset_keys() == other.offset_keys()
    for module, file in itertools.product(PAIR, files):
        model = Tied(1)
        assert module.load_model(model, file) == (set(), [])
        assert equal(dict(model.state_dict()), dict(Tied().state_dict())) and model.second.weight is model.first.weight
    for call in (
        lambda module: module.save_model(Tied(), tmp_path / "x", force_contiguous=False),
        lambda module: module.load_model(torch.nn.Linear(4, 4), files[1]),
        lambda module: module.load_model(torch.nn.Linear(4, 4), files[1], strict=False),
        lambda module: module.load_model(Tied(), tmp_path / "none"),
    ):
        expected, found = outcome(call, theirs), outcome(call, ours)
        assert type(found) is type(expected)
        assert str(found) == str(expected) or (found[0], set(found[1])) == (expected[0], set(expected[1]))


# ---------------------------------------------------------------------------------------------------------- hosts


@pytest.fixture
def counts(monkeypatch):
    """Switches the stand-in on, and counts what goes through headrace."""
    counted = {"opened": 0, "written": 0}

    def counting(what, function):
        def call(*arguments, **keywords):
            counted[what] += 1
            return function(*arguments, **keywords)

        return call

    opener = headrace._safe_open.safe_open
    monkeypatch.setattr(opener, "__init__", counting("opened", opener.__init__))
    monkeypatch.setattr(headrace._save, "_write", counting("written", headrace._save._write))
    compat.enable()
    yield counted
    compat.disable()


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def test_accelerate(tmp_path, counts):
    accelerate = pytest.importorskip("accelerate")
    from accelerate.utils import OffloadedWeightsLoader, load_checkpoint_in_model, modeling

    assert modeling.safe_open is compat.safe_open and modeling.safe_load_file is ours.load_file
    source, target = model_of(0), model_of(1)
    accelerate.Accelerator(cpu=True).save_model(source, tmp_path, max_shard_size="1KB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 2 and counts["written"] == 2
    load_checkpoint_in_model(target, tmp_path, device_map={"": "cpu"})
    assert equal(target.state_dict(), source.state_dict()) and counts["opened"] == 4
    places = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    index = {
        name: {"safetensors_file": str(tmp_path / file), "weight_name": name, "dtype": "float32"}
        for name, file in places.items()
    }
    offloaded = OffloadedWeightsLoader(index=index)
    assert all(torch.equal(offloaded[name], tensor) for name, tensor in source.state_dict().items())
    assert counts["opened"] == 8
    with accelerate.init_empty_weights():
        empty = model_of(2)
    loaded = accelerate.load_checkpoint_and_dispatch(empty, tmp_path, device_map={"": "cpu"})
    assert torch.equal(loaded(torch.ones(1, 8)), source(torch.ones(1, 8)))


def test_huggingface_hub(tmp_path, counts):
    hub = pytest.importorskip("huggingface_hub")
    pytest.importorskip("huggingface_hub.serialization")
    source, target = model_of(0), model_of(1)
    source.tied = source[0]
    target.tied = target[0]
    hub.save_torch_model(source, tmp_path, max_shard_size="1KB")
    assert counts["written"] == len(list(tmp_path.glob("*.safetensors"))) == 2
    hub.load_torch_model(target, tmp_path)
    assert equal(target.state_dict(), source.state_dict()) and counts["opened"] >= 2
    state = hub.load_state_dict_from_file(next(tmp_path.glob("*.safetensors")))
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in state.items())


def test_diffusers(tmp_path, counts):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    source = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    source.save_pretrained(tmp_path / "one")
    source.save_pretrained(tmp_path / "many", max_shard_size="30KB")
    assert counts["written"] == 1 + len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    for folder in ("one", "many"):
        counts["opened"] = 0
        target = diffusers.UNet2DModel.from_pretrained(tmp_path / folder)
        assert equal(target.state_dict(), source.state_dict())
        assert counts["opened"] >= len(list((tmp_path / folder).glob("*.safetensors")))
    half = diffusers.UNet2DModel.from_pretrained(tmp_path / "one", torch_dtype=torch.float16, low_cpu_mem_usage=False)
    assert all(tensor.dtype is torch.float16 for tensor in half.state_dict().values())


def test_transformers(tmp_path, counts):
    """By the names that its modules have bound; without what headrace.transformers adds."""
    transformers = pytest.importorskip("transformers")
    importlib.import_module("transformers.modeling_utils")
    compat.enable()
    torch.manual_seed(0)
    source = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, tie_word_embeddings=True,
    ))  # fmt: skip
    source.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = len(list(tmp_path.glob("*.safetensors")))
    assert counts["written"] == shards > 1
    for dtype in (torch.float32, torch.bfloat16):
        target = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert equal(target.state_dict(), source.to(dtype).state_dict())
    assert counts["opened"] >= 2 * shards
