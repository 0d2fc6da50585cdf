"""Transformers with headrace on a real GPU: the same models as without it, no more memory. Skipped without one."""

import gc
import importlib.util
import logging

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None or not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

import test_transformers as host  # noqa: E402
import transformers  # noqa: E402
from accelerate.utils.modeling import get_state_dict_offloaded_model  # noqa: E402
from test_transformers import folders  # noqa: E402, F401

import headrace.torch  # noqa: E402

DEVICE = f"cuda:{torch.cuda.current_device()}"
MiB = 1 << 20
LARGE = {"vocab_size": 4096, "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8,
         "num_key_value_heads": 4, "intermediate_size": 4096}


def assert_equal_models(first, second):
    host.assert_equal_state(first.state_dict(), second.state_dict())
    assert_equal_results(first, second)


def assert_equal_results(first, second):
    tokens = torch.arange(24, device=DEVICE).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(first(tokens).logits, second(tokens).logits)
    made = [model.generate(tokens, max_new_tokens=32, do_sample=False, pad_token_id=0) for model in (first, second)]
    assert torch.equal(*made)


def peak(load) -> tuple[object, int]:
    """The model, and the most memory that there was above the least."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = load()
    torch.cuda.synchronize()
    return model, torch.cuda.max_memory_allocated() - before


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """{kind: folder}: models of some 100 MB."""
    result = {}
    experts = {"moe_intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 2, "head_dim": 128}
    for kind, config in {"llama": transformers.LlamaConfig(**LARGE),
                         "qwen3_moe": transformers.Qwen3MoeConfig(**LARGE, **experts)}.items():
        with torch.device(DEVICE):
            model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        result[kind] = tmp_path_factory.mktemp(kind)
        model.save_pretrained(result[kind], max_shard_size="60MB")
        del model
    return result


@pytest.mark.parametrize("kind", host.KINDS)
def test_models_are_equal(folders, kind, caplog):  # noqa: F811
    caplog.set_level(logging.INFO, "headrace")
    assert_equal_models(host.stock(folders[kind], device_map=DEVICE), host.ours(folders[kind], device_map=DEVICE))
    assert not host.warnings_of(caplog)
    assert ", 0 are read ahead, 0 when asked for, 0 are mapped" in host.summary(caplog)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_another_dtype(folders, kind, dtype):  # noqa: F811
    options = {"device_map": DEVICE, "dtype": dtype}
    assert_equal_models(host.stock(folders[kind], **options), host.ours(folders[kind], **options))


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_no_more_memory(large, kind):
    expected, most = peak(lambda: host.stock(large[kind], device_map=DEVICE))
    model, ours = peak(lambda: host.ours(large[kind], device_map=DEVICE))
    assert_equal_models(expected, model)
    assert ours <= most
    size = sum(path.stat().st_size for path in large[kind].glob("*.safetensors"))
    assert ours <= size + 8 * MiB


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_cast_on_the_way_needs_nothing_more(large, dtype):
    options = {"device_map": DEVICE, "dtype": dtype}
    expected, most = peak(lambda: host.stock(large["qwen3_moe"], **options))
    model, ours = peak(lambda: host.ours(large["qwen3_moe"], **options))
    assert_equal_models(expected, model)
    assert ours <= most


@pytest.mark.parametrize("window", [16 * MiB, 64 * MiB])
def test_a_cast_of_pytorch_needs_a_window_more(large, window):
    options = {"device_map": DEVICE, "dtype": "float64"}
    expected, most = peak(lambda: host.stock(large["llama"], **options))
    model, ours = peak(lambda: host.ours(large["llama"], window_bytes=window, **options))
    assert_equal_models(expected, model)
    assert ours <= most + window


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_one_at_a_time(folders, kind, monkeypatch):  # noqa: F811
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    assert_equal_models(host.stock(folders[kind], device_map=DEVICE), host.ours(folders[kind], device_map=DEVICE))


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
def test_int8_on_the_fly(large):
    from torchao.quantization import Int8WeightOnlyConfig

    window = 16 * MiB
    options = {"device_map": DEVICE, "quantization_config": transformers.TorchAoConfig(Int8WeightOnlyConfig())}
    expected, most = peak(lambda: host.stock(large["llama"], **options))
    model, ours = peak(lambda: host.ours(large["llama"], window_bytes=window, **options))
    tokens = torch.arange(24, device=DEVICE).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(expected(tokens).logits, model(tokens).logits)
    assert ours <= most + window


def assert_equal_offloaded(first, second):
    """Parameters in host memory are on meta until the module runs."""
    states = [model.state_dict() for model in (first, second)]
    devices = [{name: tensor.device for name, tensor in state.items()} for state in states]
    assert devices[0] == devices[1] and torch.device("meta") in devices[0].values()
    states = [get_state_dict_offloaded_model(model) for model in (first, second)]
    assert set(states[0]) == set(devices[0])
    host.assert_equal_state(*states)


def test_a_part_in_host_memory(folders):  # noqa: F811
    device_map = {"model.embed_tokens": DEVICE, "lm_head": DEVICE, "model.layers.0": DEVICE, "model.layers.1": "cpu",
                  "model.layers.2": DEVICE, "model.norm": DEVICE, "model.rotary_emb": DEVICE}
    for kind in ("llama", "mixtral"):
        first, second = (load(folders[kind], device_map=device_map) for load in (host.stock, host.ours))
        assert_equal_offloaded(first, second)
        assert_equal_results(first, second)


@pytest.mark.parametrize("kind", host.KINDS)
def test_saved_again(folders, kind, tmp_path):  # noqa: F811
    """As Transformers alone writes it. It may spread tensors of a new model over the files in another order than those
    of a loaded one."""
    for name, load in (("expected", host.stock), ("ours", host.ours)):
        load(folders[kind], device_map=DEVICE).save_pretrained(tmp_path / name, max_shard_size="100KB")
    paths = sorted((tmp_path / "expected").glob("*.safetensors"))
    assert len(paths) > 1
    for path in paths:
        assert path.read_bytes() == (tmp_path / "ours" / path.name).read_bytes(), path.name


def test_load_into_module(folders):  # noqa: F811
    expected = host.stock(folders["llama"], device_map=DEVICE)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(expected.config, dtype=torch.bfloat16)
    model.tie_weights()
    headrace.torch.load_into_module(model, folders["llama"], device_map=DEVICE)
    host.assert_equal_state(expected.state_dict(), model.state_dict())
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.zero_()
    report = headrace.torch.load_into_module(model, folders["llama"])
    assert report.replaced == []
    host.assert_equal_state(expected.state_dict(), model.state_dict())
