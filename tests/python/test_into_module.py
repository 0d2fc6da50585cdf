"""headrace.torch.load_into_module() against load_state_dict(): modules on meta and living ones."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
from safetensors.torch import save_file

import headrace
import headrace.torch


class Block(torch.nn.Module):
    def __init__(self, width: int = 8, **options):
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width, **options)
        self.norm = torch.nn.BatchNorm1d(2 * width, **options)
        self.register_buffer("scratch", torch.zeros(3, **options), persistent=False)


class Model(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8, **options)
        self.blocks = torch.nn.ModuleList(Block(**options) for _ in range(3))
        self.head = torch.nn.Linear(8, 20, bias=False, **options)
        self.head.weight = self.embed.weight
        self.frozen = torch.nn.Parameter(torch.zeros(4, **options), requires_grad=False)


def meta_model(**options) -> Model:
    return Model(device="meta", **options)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    model = Model()
    for tensor in model.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape) * 5)
    return model.state_dict()


@pytest.fixture
def path(tmp_path, state):
    tensors = {name: tensor for name, tensor in state.items() if name != "head.weight"}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def assert_has(model, state):
    assert list(model.state_dict()) == list(state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name].to(tensor.dtype)), name


def test_on_meta(path, state):
    model = meta_model()
    model.embed.weight.note = "kept"
    report = headrace.torch.load_into_module(model, path)
    assert_has(model, state)
    assert model.head.weight is model.embed.weight and model.embed.weight.note == "kept"
    assert not model.frozen.requires_grad and model.embed.weight.requires_grad
    assert isinstance(model.blocks[0].up.weight, torch.nn.Parameter)
    assert report.filled == report.missing == report.unexpected == []
    assert report.on_meta == [f"blocks.{at}.scratch" for at in range(3)]
    assert sorted(report.replaced) == sorted(set(state) - {"head.weight"})
    model.embed.weight.sum().backward()
    assert model.embed.weight.grad is not None


def test_living_ones_are_filled_where_they_are(path, state):
    model = Model()
    pointers = [tensor.data_ptr() for tensor in model.state_dict().values()]
    versions = [tensor._version for tensor in model.parameters()]
    report = headrace.torch.load_into_module(model, path)
    assert_has(model, state)
    assert pointers == [tensor.data_ptr() for tensor in model.state_dict().values()]
    assert report.replaced == report.on_meta == [] and len(report.filled) == len(state) - 1
    assert all(tensor._version > before for tensor, before in zip(model.parameters(), versions))


def test_a_graph_of_before_notices(path):
    model = Model()
    loss = (model.blocks[0].up.weight ** 2).sum()
    headrace.torch.load_into_module(model, path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_strides_and_other_dtypes_of_living_ones(path, state):
    model = Model()
    model.blocks[0].up.weight.data = torch.zeros(8, 16).t()
    model.blocks[1].up.double()
    headrace.torch.load_into_module(model, path)
    assert not model.blocks[0].up.weight.is_contiguous() and model.blocks[1].up.weight.dtype == torch.float64
    assert_has(model, state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, "float16", "BF16"])
def test_floats_are_cast(path, state, dtype):
    model = meta_model()
    headrace.torch.load_into_module(model, path, dtype=dtype)
    assert model.embed.weight.dtype == (torch.float16 if dtype == "float16" else torch.bfloat16)
    assert model.blocks[0].norm.num_batches_tracked.dtype == torch.int64
    assert_has(model, state)


def test_the_dtype_of_the_module_or_as_stored(path, state):
    model = meta_model(dtype=torch.float64)
    headrace.torch.load_into_module(model, path)
    assert model.embed.weight.dtype == torch.float64
    assert_has(model, state)
    model = meta_model(dtype=torch.float64)
    headrace.torch.load_into_module(model, path, dtype="auto")
    assert model.embed.weight.dtype == torch.float32


def test_integers_where_floats_were_expected(tmp_path):
    save_file({"weight": torch.ones(2, 2, dtype=torch.int64)}, tmp_path / "x.safetensors")
    module = torch.nn.Linear(2, 2, bias=False, device="meta")
    headrace.torch.load_into_module(module, tmp_path / "x.safetensors", dtype="auto")
    assert module.weight.dtype == torch.int64 and not module.weight.requires_grad


def test_parameters_without_a_shape(tmp_path):
    save_file({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, tmp_path / "x.safetensors")
    module = torch.nn.LazyLinear(3)
    with pytest.raises(headrace.errors.Unsupported, match="'weight' in the module has no shape yet"):
        headrace.torch.load_into_module(module, tmp_path / "x.safetensors")


def test_any_name_of_a_tied_one(path, state, tmp_path):
    tensors = {name: tensor for name, tensor in state.items() if name != "embed.weight"}
    save_file(tensors, tmp_path / "other.safetensors")
    model = meta_model()
    report = headrace.torch.load_into_module(model, tmp_path / "other.safetensors")
    assert_has(model, state)
    assert "head.weight" in report.replaced and model.head.weight is model.embed.weight


def test_missing_and_unexpected(state, tmp_path):
    tensors = {name: tensor for name, tensor in state.items() if name not in ("head.weight", "blocks.1.up.bias")}
    tensors["blocks.7.up.bias"] = torch.ones(3)
    save_file(tensors, tmp_path / "model.safetensors")
    model = meta_model()
    with pytest.raises(headrace.errors.TensorNotFound, match="lacks 'blocks.1.up.bias'; the module has no 'blocks.7"):
        headrace.torch.load_into_module(model, tmp_path)
    assert all(tensor.is_meta for tensor in model.state_dict().values())  # nothing was touched
    report = headrace.torch.load_into_module(model, tmp_path, strict=False)
    assert report.missing == ["blocks.1.up.bias"] and report.unexpected == ["blocks.7.up.bias"]
    assert "blocks.1.up.bias" in report.on_meta


def test_another_shape(path):
    model = meta_model()
    model.blocks[2].up = torch.nn.Linear(8, 15, device="meta")
    with pytest.raises(headrace.errors.InvalidArgument, match=r"'blocks.2.up.weight'.*\(16, 8\).*\(15, 8\)"):
        headrace.torch.load_into_module(model, path)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_device_map(path, state):
    model = meta_model()
    headrace.torch.load_into_module(model, path, device_map={"": "cpu", "blocks.1": torch.device("cpu")})
    assert_has(model, state)
    with pytest.raises(headrace.errors.InvalidArgument, match="names no device for 'frozen'"):
        headrace.torch.load_into_module(meta_model(), path, device_map={"blocks": "cpu"})


def test_half_on_meta(path, state):
    model = Model()
    model.blocks[1].to("meta")
    report = headrace.torch.load_into_module(model, path)
    assert_has(model, state)
    assert all(name.startswith("blocks.1.") for name in report.replaced) and len(report.replaced) == 7


# ----------------------------------------------------------------------------------------------- ties and their values


def stored_twice(state, tmp_path):
    """The tied tensor under both names, with different values."""
    tensors = {**state, "embed.weight": state["embed.weight"].clone(), "head.weight": state["embed.weight"] + 1}
    save_file(tensors, tmp_path / "twice.safetensors")
    return tensors, tmp_path / "twice.safetensors"


@pytest.mark.parametrize("make", [Model, meta_model])
def test_of_ties_that_are_stored_twice_the_last_one_wins(state, tmp_path, make):
    tensors, path = stored_twice(state, tmp_path)
    model, theirs = make(), Model()
    theirs.load_state_dict(tensors)
    report = headrace.torch.load_into_module(model, path)
    assert_has(model, theirs.state_dict())
    assert model.head.weight is model.embed.weight
    names = report.filled or report.replaced
    assert sorted(names) == sorted(state) and report.missing == report.unexpected == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_of_their_own_that_share_memory(state, tmp_path, dtype):
    """Tied by their memory, whole or in part, and not by being one: filled in turn, as load_state_dict() does it."""
    tensors, path = stored_twice(state, tmp_path)
    models = [Model(dtype=dtype), Model(dtype=dtype)]
    for model in models:
        model.head.weight = torch.nn.Parameter(model.embed.weight.data)
        model.frozen = torch.nn.Parameter(model.embed.weight.data[3, 2:6], requires_grad=False)
    models[1].load_state_dict(tensors)
    report = headrace.torch.load_into_module(models[0], path)
    assert_has(models[0], models[1].state_dict())
    assert sorted(report.filled) == sorted(state)


def test_the_shape_of_a_tie_that_is_overruled_counts_too(state, tmp_path):
    save_file({**state, "embed.weight": torch.zeros(3), "head.weight": state["head.weight"].clone()},
              tmp_path / "x.safetensors")
    with pytest.raises(headrace.errors.InvalidArgument, match="'embed.weight'.* has shape"):
        headrace.torch.load_into_module(Model(), tmp_path / "x.safetensors")


# ---------------------------------------------------------------------------------------------- what is checked before


@pytest.mark.parametrize("make", [Model, meta_model])
@pytest.mark.parametrize("options", [
    {"dtype": "float3"}, {"dtype": ["float32"]}, {"device_map": {"": "nowhere"}}, {"device_map": {0: "cpu"}},
    {"device_map": "nowhere"}, {"device_map": ["cpu"]}, {"window_bytes": -1}, {"window_bytes": 1.5},
    {"window_bytes": "1GB"}, {"strict": "no"}, {"loader": "x"},
])
def test_options_are_checked_whatever_the_module_needs(path, make, options):
    model = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises((headrace.errors.InvalidArgument, headrace.errors.DeviceUnavailable)):
        headrace.torch.load_into_module(model, path, **options)
    for name, tensor in model.state_dict().items():
        assert tensor.is_meta if make is meta_model else torch.equal(tensor, before[name])


def test_what_is_no_module(path):
    with pytest.raises(headrace.errors.InvalidArgument, match="torch.nn.Module, not a dict"):
        headrace.torch.load_into_module({}, path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nbytes", [0, 64])
def test_a_parameter_without_its_memory(path, dtype, nbytes):
    """As FSDP leaves them. One that a load fills and one that PyTorch casts; nothing else is changed before."""
    model = Model(dtype=dtype)
    model.frozen.data.fill_(7)
    model.head.weight.untyped_storage().resize_(nbytes)
    with pytest.raises(headrace.errors.InvalidArgument, match=f"'embed.weight' .*has {nbytes}") as caught:
        headrace.torch.load_into_module(model, path)
    assert caught.value.tensor == "embed.weight" and (model.frozen == 7).all()


def test_conjugated_and_negated_buffers(tmp_path):
    values = {"c": torch.randn(4, dtype=torch.complex64), "n": torch.randn(4)}
    save_file(values, tmp_path / "x.safetensors")
    model = torch.nn.Module()
    model.register_buffer("c", torch.zeros(4, dtype=torch.complex64).conj())
    model.register_buffer("n", torch.zeros(4, dtype=torch.complex64).conj().imag)
    headrace.torch.load_into_module(model, tmp_path / "x.safetensors")
    assert model.c.is_conj() and model.n.is_neg()
    assert_has(model, values)
