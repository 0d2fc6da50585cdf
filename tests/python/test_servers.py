"""The plugins for vLLM and SGLang, from the entry point to the parameters, in the stand-ins of tests/support/servers:
a small model in two ranks whose parameters narrow and copy, as those of the servers do."""

import gc
import importlib
import logging
import os
import sys
import tomllib
from types import SimpleNamespace

import conftest
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

import headrace  # noqa: E402
from headrace import _lazy, _weights  # noqa: E402

STAND_INS = conftest.ROOT / "tests" / "support" / "servers"
ROWS, COLUMNS, EXPERTS = 64, 32, 4


@pytest.fixture
def servers(monkeypatch):
    """The stand-ins as the packages vllm and sglang, fresh, and the plugins too."""

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "sglang")]:
            del sys.modules[name]
        for name in ("headrace.vllm", "headrace.sglang"):
            sys.modules.pop(name, None)

    forget()
    monkeypatch.syspath_prepend(str(STAND_INS))
    monkeypatch.delenv("SGLANG_HEADRACE", raising=False)
    yield
    forget()


@pytest.fixture
def weights(tmp_path):
    """A checkpoint in two files: {name: tensor}, in the folder `tmp_path`."""
    torch.manual_seed(1)
    tensors = {
        "column.weight": torch.randn(ROWS, COLUMNS).bfloat16(),
        "row.weight": torch.randn(ROWS, COLUMNS).bfloat16(),
        "turned.weight": torch.randn(ROWS, COLUMNS),
        "scale": torch.randn(1),
        **{f"layer.experts.{expert}.w.weight": torch.randn(8, 16) for expert in range(EXPERTS)},
    }
    names = list(tensors)
    for at, part in enumerate((names[:3], names[3:])):
        safetensors_torch.save_file({name: tensors[name] for name in part}, tmp_path / f"{at}.safetensors")
    return tensors


class Model(torch.nn.Module):
    """One rank of two: half of each matrix, by rows, by columns, turned; all experts that it is given."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.kept, self.seen = rank, {}, []
        shapes = {"column": (ROWS // 2, COLUMNS), "row": (ROWS, COLUMNS // 2), "turned": (COLUMNS, ROWS // 2)}
        for name, shape in shapes.items():
            dtype = torch.float32 if name == "turned" else torch.bfloat16
            self.register_parameter(name, torch.nn.Parameter(torch.full(shape, torch.nan, dtype=dtype)))
        self.experts = torch.nn.Parameter(torch.full((EXPERTS, 8, 16), torch.nan))

    def part(self, name, tensor):
        if name == "column.weight":
            return tensor.narrow(0, self.rank * ROWS // 2, ROWS // 2)
        if name == "row.weight":
            return tensor.chunk(2, dim=1)[self.rank]
        return tensor[self.rank * ROWS // 2 : (self.rank + 1) * ROWS // 2].t()

    def load_weights(self, weights):
        for name, tensor in weights:
            self.seen.append(name)
            if ".experts." in name:
                self.experts.data[int(name.split(".")[2])].copy_(tensor)
            elif name == "scale":
                self.kept[name] = tensor
            else:
                getattr(self, name.partition(".")[0]).data.copy_(self.part(name, tensor))


def check(model, weights, experts=range(EXPERTS)):
    for name in ("column", "row", "turned"):
        assert torch.equal(getattr(model, name).data, model.part(f"{name}.weight", weights[f"{name}.weight"]))
    for expert in range(EXPERTS):
        is_here = torch.equal(model.experts.data[expert], weights[f"layer.experts.{expert}.w.weight"])
        assert is_here == (expert in experts)


def vllm_loader(load_format="headrace", **extra):
    importlib.import_module("headrace.vllm").register()
    package = importlib.import_module("vllm.model_executor.model_loader")
    config = importlib.import_module("vllm.config.load").LoadConfig(load_format, model_loader_extra_config=extra)
    return package.get_model_loader(config)


def stock_calls(server="vllm.model_executor"):
    return importlib.import_module(f"{server}.model_loader.weight_utils").calls


def test_entry_points_name_functions():
    project = tomllib.loads((conftest.ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    assert set(points) == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group in points.values():
        module, _, function = group["headrace"].partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_register_never_raises(monkeypatch, caplog):
    for name in ("vllm", "sglang"):
        monkeypatch.setitem(sys.modules, name, None)
        module = importlib.import_module(f"headrace.{name}")
        with caplog.at_level(logging.WARNING):
            module.register()
        assert f"load format '{module.LOAD_FORMAT}' is not there" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("rank", [0, 1])
def test_vllm_reads_only_a_ranks_bytes(servers, weights, tmp_path, rank):
    loader = vllm_loader(lazy_bytes=1, threads=1)
    model = Model(rank)
    loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
    check(model, weights)
    halves = sum(weights[f"{name}.weight"].nbytes // 2 for name in ("column", "row", "turned"))
    experts = EXPERTS * 8 * 16 * 4
    # "scale" is kept and read when the iteration ends
    assert loader.headrace.bytes_wanted == halves + experts + weights["scale"].nbytes
    assert loader.headrace.bytes_wanted <= loader.headrace.bytes_read
    total = sum(tensor.nbytes for tensor in weights.values())
    assert loader.headrace.bytes_read < total
    assert not stock_calls()


def test_vllm_several_ranks_make_large_tensors_lazy(servers, tmp_path, monkeypatch):
    safetensors_torch.save_file({"large": torch.ones(1 << 17), "small": torch.ones(4)}, tmp_path / "a.safetensors")
    for ranks, kind in ((1, torch.Tensor), (2, _lazy.LazyTensor)):
        monkeypatch.setattr(_weights, "_rank_count", lambda count=ranks: count)
        default = importlib.import_module("vllm.model_executor.model_loader.default_loader").DefaultModelLoader
        found = dict(vllm_loader()._get_weights_iterator(default.Source(str(tmp_path), None, prefix="model.")))
        assert type(found["model.large"]) is kind
        assert type(found["model.small"]) is torch.Tensor


def test_vllm_streams_for_one_rank(servers, weights, tmp_path):
    loader = vllm_loader(window_bytes=1 << 20)
    found = dict(loader.get_all_weights(SimpleNamespace(model=str(tmp_path)), None))
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert {type(tensor) for tensor in found.values()} == {torch.Tensor}
    assert not stock_calls()


def test_vllm_tensors_outlive_loader_and_files(servers, weights, tmp_path):
    for extra in ({}, {"lazy_bytes": 1}):
        loader = vllm_loader(**extra)
        found = dict(loader.get_all_weights(SimpleNamespace(model=str(tmp_path)), None))
        part = found["row.weight"].narrow(1, 3, 5)
        del loader
        gc.collect()
        headrace.release()
        if extra:
            for path in tmp_path.glob("*.safetensors"):
                path.unlink()
        assert all(torch.equal(found[name] + 0, tensor) for name, tensor in weights.items())
        assert torch.equal(part.clone(), weights["row.weight"].narrow(1, 3, 5))


def test_vllm_expert_filter(servers, weights, tmp_path):
    for extra in ({}, {"lazy_bytes": 1}):
        loader = vllm_loader(**extra)
        loader.local_expert_ids = {1, 2}
        model = Model(0)
        loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
        check(model, weights, experts={1, 2})
        assert not any("experts.0." in name or "experts.3." in name for name in model.seen)


def test_vllm_wrong_options(servers):
    with pytest.raises(ValueError, match="unknown key 'thread'.*threads, route, .*lazy_bytes, enable_weights_track"):
        vllm_loader(thread=2)
    with pytest.raises(ValueError, match="window_bytes"):
        vllm_loader(window_bytes=-1)
    with pytest.raises(ValueError, match="route 'tape'"):
        vllm_loader(route="tape")
    handed_on = vllm_loader(enable_weights_track=True).load_config.model_loader_extra_config
    assert handed_on == {"enable_weights_track": True}


def test_vllm_steps_aside(servers, weights, tmp_path, caplog):
    loader = vllm_loader()
    loader.load_config.safetensors_load_strategy = "torchao"
    model = Model(0)
    with caplog.at_level(logging.WARNING):
        loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
    check(model, weights)
    assert caplog.text.count("headrace steps aside") == 1 and "torchao" in caplog.text
    assert stock_calls() == ["safetensors"]
    caplog.clear()
    (tmp_path / "none").mkdir()
    assert dict(loader.get_all_weights(SimpleNamespace(model=str(tmp_path / "none")), None)) == {}
    assert stock_calls() == ["safetensors", "pt"] and not caplog.text


def test_vllm_other_formats_are_untouched(servers, weights, tmp_path):
    loader = vllm_loader("auto")
    found = dict(loader.get_all_weights(SimpleNamespace(model=str(tmp_path)), None))
    assert stock_calls() == ["safetensors"] and found.keys() == weights.keys()
    importlib.import_module("headrace.vllm").register()  # again: nothing


def test_vllm_a_file_that_changed_is_an_error(servers, weights, tmp_path):
    iterator = vllm_loader(lazy_bytes=1).get_all_weights(SimpleNamespace(model=str(tmp_path)), None)
    next(iterator)
    for path in tmp_path.glob("*.safetensors"):
        os.utime(path, ns=(1, 1))
    with pytest.raises(headrace.HeadraceError, match="chang"):
        for _, tensor in iterator:
            tensor.clone()


def test_vllm_sharded_state_straight_into_parameters(servers, tmp_path):
    for rank in (0, 1):
        state = {name: torch.randn(p.shape).to(p.dtype) for name, p in Model(rank).state_dict().items()}
        state["row"] = state["row"][:-2].clone()  # a parameter that is padded
        names = list(state)
        for part, names_of_part in enumerate((names[:2], names[2:])):
            path = tmp_path / f"model-rank-{rank}-part-{part}.safetensors"
            safetensors_torch.save_file({name: state[name] for name in names_of_part}, path)
        loader = vllm_loader("headrace_sharded_state")
        model = Model(rank)
        loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
        for name, tensor in state.items():
            memory = model.state_dict()[name]
            assert torch.equal(memory[: len(tensor)], tensor) and memory[len(tensor) :].isnan().all()
        total = sum(tensor.nbytes for tensor in state.values())
        assert loader.headrace.bytes_wanted == loader.headrace.bytes_read == total


def sglang_loader(load_format="headrace", **extra):
    importlib.import_module("sglang.srt.plugins").load_plugins()
    config = importlib.import_module("sglang.srt.configs.load_config").LoadConfig(load_format, extra)
    return importlib.import_module("sglang.srt.model_loader.loader").get_model_loader(config)


def sglang_weights(loader, folder):
    return loader._get_weights_iterator(type(loader).Source(str(folder), None))


def test_sglang_load_format(servers, weights, tmp_path):
    loader = sglang_loader("Headrace", lazy_bytes=1)
    model = Model(1)
    model.load_weights(sglang_weights(loader, tmp_path))
    check(model, weights)
    assert 0 < loader.headrace.bytes_wanted < sum(tensor.nbytes for tensor in weights.values())
    assert not stock_calls("sglang.srt")
    assert "headrace" in importlib.import_module("sglang.srt.server_args").LOAD_FORMAT_CHOICES
    with pytest.raises(ValueError, match="unknown key 'num_thread'"):
        loader_class = importlib.import_module("headrace.sglang").loader_class()
        loader_class(SimpleNamespace(load_format=loader_class, model_loader_extra_config={"num_thread": 1}))


def test_sglang_iterator_by_the_environment(servers, weights, tmp_path, monkeypatch):
    loader = sglang_loader("auto")
    assert dict(sglang_weights(loader, tmp_path)).keys() == weights.keys()
    assert stock_calls("sglang.srt") == ["safetensors"]
    monkeypatch.setenv("SGLANG_HEADRACE", "1")
    found = dict(sglang_weights(loader, tmp_path))
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert stock_calls("sglang.srt") == ["safetensors"]
    with pytest.raises(ValueError, match="no_such_format"):
        importlib.import_module("sglang.srt.configs.load_config").LoadConfig("no_such_format")
