"""Transformers with headrace against Transformers without: small random models made by Transformers itself, bit for
bit, with `eager` also where host memory would be mapped, so that what GPUs use runs without one."""

import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
    pytest.skip("PyTorch or Transformers is not installed", allow_module_level=True)

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import headrace
import headrace.transformers

SMALL = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 12, "num_experts_per_tok": 2}
EAGER = [False, True]


def config_of(kind: str):
    if kind == "llama":
        return transformers.LlamaConfig(**SMALL, tie_word_embeddings=True)
    if kind == "mixtral":
        return transformers.MixtralConfig(**SMALL, num_local_experts=12)
    if kind == "qwen2_moe":
        return transformers.Qwen2MoeConfig(**SMALL, **EXPERTS, shared_expert_intermediate_size=48)
    return transformers.Qwen3MoeConfig(**SMALL, **EXPERTS, head_dim=16)


torch.set_num_threads(1)  # these models are small, and other programs want the other cores

KINDS = ["llama", "mixtral", "qwen2_moe", "qwen3_moe"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Models of each kind in bfloat16, in several files."""
    result = {}
    for kind in KINDS:
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config_of(kind)).to(torch.bfloat16)
        for name, tensor in model.named_parameters():
            torch.nn.init.normal_(tensor, std=0.3)
        result[kind] = tmp_path_factory.mktemp(kind)
        model.save_pretrained(result[kind], max_shard_size="100KB")
        assert len(list(result[kind].glob("*.safetensors"))) > 1
    return result


def stock(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def ours(folder, eager=False, window_bytes=None, **options):
    with headrace.transformers.accelerate(eager=eager, window_bytes=window_bytes):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def assert_equal_state(first, second):
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and tensor.shape == second[name].shape, name
        assert torch.equal(bits(tensor), bits(second[name])), name


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_equal_models(first, second, token_count=0):
    assert_equal_state(first.state_dict(), second.state_dict())
    flags = [[parameter.requires_grad for parameter in model.parameters()] for model in (first, second)]
    assert flags[0] == flags[1]
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(first(tokens).logits, second(tokens).logits)
    if token_count > 0:
        made = [model.generate(tokens, max_new_tokens=token_count, do_sample=False, pad_token_id=0)
                for model in (first, second)]
        assert torch.equal(*made)


def summary(caplog) -> str:
    return next(record.getMessage() for record in caplog.records if "become parameters" in record.getMessage())


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records
            if record.name == "headrace" and record.levelno == logging.WARNING]


# ------------------------------------------------------------------------------------------------- equal models


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("kind", KINDS)
def test_models_are_equal(folders, kind, eager, caplog):
    caplog.set_level(logging.INFO, "headrace")
    expected = stock(folders[kind])
    assert not caplog.records
    model = ours(folders[kind], eager)
    assert_equal_models(expected, model, 32)
    assert not warnings_of(caplog)
    assert model.name_or_path == expected.name_or_path
    if kind != "llama":
        assert "; 108 tensors are merged into 6 parameters" in summary(caplog)
    else:
        assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "auto"])
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_another_dtype(folders, kind, dtype, eager, caplog):
    """The load casts, to float64 Transformers."""
    caplog.set_level(logging.INFO, "headrace")
    expected, model = stock(folders[kind], dtype=dtype), ours(folders[kind], eager, dtype=dtype)
    if dtype == "float64":  # in which experts do not run
        assert_equal_state(expected.state_dict(), model.state_dict())
    else:
        assert_equal_models(expected, model)
    if eager:
        assert (", 0 are read ahead" in summary(caplog)) == (dtype != "float64")


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_a_small_window(folders, kind):
    """Every tensor is cast, and every one is a batch of its own."""
    expected, model = stock(folders[kind], dtype=torch.float64), ours(folders[kind], True, 1, dtype=torch.float64)
    assert_equal_state(expected.state_dict(), model.state_dict())


@pytest.mark.parametrize("eager", EAGER)
def test_device_map(folders, eager):
    for device_map in ("cpu", "auto", {"": "cpu"}):
        model = ours(folders["mixtral"], eager, device_map=device_map)
        assert_equal_models(stock(folders["mixtral"], device_map=device_map), model)


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("kind", KINDS)
def test_one_at_a_time(folders, kind, eager, monkeypatch):
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    assert_equal_models(stock(folders[kind]), ours(folders[kind], eager))


def test_without_mapping(folders, caplog):
    caplog.set_level(logging.INFO, "headrace")
    assert_equal_models(stock(folders["llama"]), ours(folders["llama"], disable_mmap=True))
    assert ", 0 are mapped or not wanted" in summary(caplog)


def test_host_memory_stays_mapped(folders, caplog):
    """Nothing is read before it is touched, as without headrace."""
    caplog.set_level(logging.INFO, "headrace")
    model = ours(folders["llama"])
    address = model.model.layers[0].mlp.up_proj.weight.data_ptr()
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line for line in maps if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)]
    assert ".safetensors" in found[0]
    assert "transformers: 0 tensors become" in summary(caplog)


def test_a_base_model_and_a_head(folders):
    """Names get or lose the prefix of the base model."""
    for kind in ("llama", "mixtral"):
        for model_class in (transformers.AutoModel, transformers.AutoModelForSequenceClassification):
            torch.manual_seed(3)
            expected = model_class.from_pretrained(folders[kind])
            with headrace.transformers.accelerate(eager=True):
                torch.manual_seed(3)
                model = model_class.from_pretrained(folders[kind])
            assert_equal_state(expected.state_dict(), model.state_dict())


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_again(folders, kind, eager, tmp_path):
    """Files, names and bytes are those that Transformers alone writes, also where experts were merged."""
    stock(folders[kind]).save_pretrained(tmp_path / "expected", max_shard_size="100KB")
    ours(folders[kind], eager).save_pretrained(tmp_path / "ours", max_shard_size="100KB")
    files = sorted(path.name for path in (tmp_path / "expected").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "ours").iterdir())
    for name in files:
        assert (tmp_path / "expected" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes(), name
    names = {name for path in folders[kind].glob("*.safetensors") for name in headrace.open(path)}
    assert names == set(headrace.open(tmp_path / "ours"))


# ------------------------------------------------------------------------------------ checkpoints that do not fit


def change(folder: Path, target: Path, edit) -> Path:
    """The checkpoint in one file, with its tensors changed by `edit`."""
    tensors = headrace.load(folder, framework="torch")
    edit(tensors)
    safetensors_torch = importlib.import_module("safetensors.torch")
    safetensors_torch.save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target


def loading_info(load, folder, eager, **options):
    torch.manual_seed(5)
    arguments = (folder, eager) if load is ours else (folder,)
    model, info = load(*arguments, output_loading_info=True, **options)
    return model, {key: sorted(map(str, value)) for key, value in info.items()}


def drop_expert(tensors):
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]


def widen_expert(tensors):
    tensors["model.layers.1.mlp.experts.3.up_proj.weight"] = torch.zeros(40, 64, dtype=torch.bfloat16)


def expert_of_another_dtype(tensors):
    name = "model.layers.2.mlp.experts.5.gate_proj.weight"
    tensors[name] = tensors[name].float()


def drop_and_add(tensors):
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    tensors["model.layers.9.extra.weight"] = torch.ones(3)
    tensors["model.layers.9.mlp.experts.0.up_proj.weight"] = torch.ones(3)


def reshape_norm(tensors):
    tensors["model.norm.weight"] = torch.ones(65, dtype=torch.bfloat16)


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("edit", [drop_expert, widen_expert])
def test_experts_that_do_not_fit(folders, edit, eager, tmp_path):
    """They are left to Transformers, which refuses them."""
    folder = change(folders["qwen3_moe"], tmp_path, edit)
    for load in (lambda: stock(folder), lambda: ours(folder, eager)):
        with pytest.raises(RuntimeError, match="during automatic conversion of the weights"):
            load()


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("edit", [expert_of_another_dtype, drop_and_add, reshape_norm])
def test_loading_info(folders, edit, eager, tmp_path):
    folder = change(folders["qwen3_moe"], tmp_path, edit)
    options = {"ignore_mismatched_sizes": True}
    expected, expected_info = loading_info(stock, folder, eager, **options)
    model, info = loading_info(ours, folder, eager, **options)
    assert info == expected_info
    assert_equal_state(expected.state_dict(), model.state_dict())


# ------------------------------------------------------------------------------------------------- quantization


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
def test_int8_on_the_fly(folders, eager, caplog):
    caplog.set_level(logging.INFO, "headrace")
    from torchao.quantization import Int8WeightOnlyConfig

    config = transformers.TorchAoConfig(Int8WeightOnlyConfig())
    options = {"quantization_config": config, "device_map": "cpu"}
    expected = stock(folders["llama"], **options)
    model = ours(folders["llama"], eager, **options)
    assert type(expected.model.layers[0].mlp.up_proj.weight) is type(model.model.layers[0].mlp.up_proj.weight)
    assert type(model.model.layers[0].mlp.up_proj.weight) is not torch.nn.Parameter
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(expected(tokens).logits, model(tokens).logits)
    assert "transformers: 0 tensors become parameters" in summary(caplog)


def quantize_to_fp8(tensors):
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        rows, columns = tensors[name].shape
        tensors[name] = (tensors[name].float() * 4).to(torch.float8_e4m3fn)
        scale = torch.rand(-(-rows // 32), -(-columns // 32)) / 8 + 0.01
        tensors[name.replace("weight", "weight_scale_inv")] = scale


@pytest.mark.parametrize("eager", EAGER)
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_quantized_before(folders, kind, eager, tmp_path):
    """fp8 in blocks, which Transformers multiplies out where there is no GPU."""
    folder = change(folders[kind], tmp_path, quantize_to_fp8)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [32, 32], "dequantize": True,
                                     "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(config))
    expected = stock(folder, device_map="cpu")
    model = ours(folder, eager, device_map="cpu")
    assert expected.model.layers[0].self_attn.q_proj.weight.dtype == torch.bfloat16
    assert_equal_models(expected, model)


# ----------------------------------------------------------------------------------------------------- adapters


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize("eager", EAGER)
def test_adapter(folders, eager, tmp_path):
    import peft

    torch.manual_seed(1)
    adapted = peft.get_peft_model(stock(folders["llama"]), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, tensor in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(tensor)
    adapted.save_pretrained(tmp_path)
    expected = stock(folders["llama"])
    expected.load_adapter(tmp_path)
    model = ours(folders["llama"], eager)
    with headrace.transformers.accelerate(eager=eager):
        model.load_adapter(tmp_path)
    assert_equal_models(expected, model)
    assert_equal_models(expected, ours(tmp_path, eager))  # an adapter's folder names its model


# --------------------------------------------------------------------------------------------- stepping aside


def test_a_given_state_dict(folders, caplog):
    state, config = stock(folders["llama"]).state_dict(), config_of("llama")
    with headrace.transformers.accelerate():
        model = transformers.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state)
    assert_equal_state(state, model.state_dict())
    assert len(warnings_of(caplog)) == 1 and "gave a state_dict" in warnings_of(caplog)[0]


def test_offload_to_disk(folders, caplog, tmp_path):
    device_map = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu",
                  "lm_head": "cpu"}
    model = ours(folders["llama"], device_map=device_map, offload_folder=tmp_path)
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, stock(folders["llama"])(tokens).logits)
    assert len(warnings_of(caplog)) == 1 and "offloaded to disk" in warnings_of(caplog)[0]


def test_another_format(folders, caplog, tmp_path):
    model = stock(folders["llama"])
    torch.save({name: tensor.clone() for name, tensor in model.state_dict().items()}, tmp_path / "pytorch_model.bin")
    model.config.save_pretrained(tmp_path)
    assert_equal_state(model.state_dict(), ours(tmp_path).state_dict())
    assert len(warnings_of(caplog)) == 1 and "not made of .safetensors" in warnings_of(caplog)[0]


def test_rocm_steps_aside_by_name(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert "ROCm" in headrace.transformers._reason_against_devices({"": "cuda:0"})
    assert headrace.transformers._reason_against_devices({"": "cpu"}) is None
    assert "mps" in headrace.transformers._reason_against_devices({"": "mps"})


def test_zero3_steps_aside(folders, caplog, monkeypatch):
    module = transformers.modeling_utils
    monkeypatch.setattr(module, "is_deepspeed_zero3_enabled", lambda: True)
    arguments = {"state_dict": None, "checkpoint_files": ["a.safetensors"],
                 "load_config": module.LoadStateDictConfig()}
    assert "ZeRO-3" in headrace.transformers._reason_against(arguments)


def test_a_planner_that_fails(folders, caplog, monkeypatch):
    """Whatever is not as it was known, Transformers loads by itself."""
    def fail(self):
        raise AttributeError("'WeightConverter' object has no attribute 'source_patterns'")

    monkeypatch.setattr(headrace.transformers.Planner, "make", fail)
    with headrace.transformers.accelerate():
        model = transformers.AutoModelForCausalLM.from_pretrained(folders["mixtral"])
    assert len(warnings_of(caplog)) == 1 and "AttributeError" in warnings_of(caplog)[0]
    monkeypatch.undo()
    assert_equal_state(stock(folders["mixtral"]).state_dict(), model.state_dict())


def test_an_unknown_signature(caplog):
    class Model:
        @staticmethod
        def _load_pretrained_model(model, files):
            raise AssertionError

    module = type(sys)("unknown")
    module.PreTrainedModel, module.caching_allocator_warmup = Model, print
    original = Model._load_pretrained_model
    headrace.transformers._install(module)
    assert Model._load_pretrained_model is original and module.caching_allocator_warmup is print
    assert "takes (model, files)" in warnings_of(caplog)[0]


def test_a_damaged_file(folders, caplog, tmp_path):
    """The error is Transformers' own."""
    folder = change(folders["llama"], tmp_path, lambda tensors: None)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-8])
    with pytest.raises(Exception) as expected:
        stock(folder)
    with pytest.raises(type(expected.value)):
        ours(folder, True)
    assert "steps aside" in warnings_of(caplog)[0]


def test_a_read_that_fails_ends_the_load(folders, monkeypatch):
    from headrace import _transformers_read

    def fail(self, item):
        raise headrace.errors.make("IoError", "the disk is gone")

    monkeypatch.setattr(_transformers_read._Batch, "take", fail)
    with pytest.raises(headrace.errors.IoError, match="the disk is gone"):
        ours(folders["llama"], True)


def test_off_again(folders, caplog):
    caplog.set_level(logging.INFO, "headrace")
    headrace.transformers.enable(eager=True)
    stock(folders["llama"])
    assert summary(caplog)
    headrace.transformers.disable()
    caplog.clear()
    stock(folders["llama"])
    assert not caplog.records


# --------------------------------------------------------------------------------------------------- the slices


@pytest.fixture
def reading(folders, monkeypatch):
    """What Transformers is given for a mixture that is cast, kept open behind the load."""
    from headrace import _transformers_read

    kept = []
    monkeypatch.setattr(_transformers_read.Reading, "close", lambda self: kept.append(self))
    ours(folders["qwen3_moe"], True, dtype=torch.float64)
    monkeypatch.undo()
    yield kept[0]
    kept[0].close()


def test_slices_are_read_again(reading, folders):
    tensors = headrace.load(folders["qwen3_moe"], framework="torch")
    slices = reading.slices()
    assert len(slices) < len(tensors)
    for name in ("model.norm.weight", "model.layers.0.self_attn.q_proj.weight"):
        part = slices[name]
        assert part.get_shape() == list(tensors[name].shape) and part.get_dtype() == "BF16"
        first, second = part[...], part[...]
        assert torch.equal(first, tensors[name]) and first.data_ptr() != second.data_ptr()
        assert torch.equal(part[3:9], tensors[name][3:9])
    columns = slices["model.layers.0.self_attn.q_proj.weight"][slice(0, 5), slice(7, 60)]
    assert torch.equal(columns, tensors["model.layers.0.self_attn.q_proj.weight"][0:5, 7:60])


def test_merged_slices(reading, folders):
    tensors = headrace.load(folders["qwen3_moe"], framework="torch")
    name = "model.layers.1.mlp.experts"
    gate_up = torch.stack([torch.cat([tensors[f"{name}.{at}.{kind}_proj.weight"] for kind in ("gate", "up")])
                           for at in range(12)])
    part = reading.slices()[f"{name}.gate_up_proj"]
    assert part.get_shape() == [12, 64, 64]
    assert torch.equal(part[...], gate_up) and torch.equal(part[2:3, 1:], gate_up[2:3, 1:])


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_looked_at_together_or_one_by_one(folders, kind, monkeypatch):
    """Experts are renamed as a family, unless a transform looks at numbers; the plans are the same."""
    planner, plans = headrace.transformers.Planner, []
    make = planner.make
    monkeypatch.setattr(planner, "make", lambda self: plans.append(make(self)) or plans[-1])
    ours(folders[kind], True, dtype=torch.float64)
    monkeypatch.setattr(planner, "_looks_at_numbers", lambda self, transform: True)
    ours(folders[kind], True, dtype=torch.float64)
    first, second = ([(item.name, item.parts, item.shape) for item in plan.passing] for plan in plans)
    assert first == second and plans[0].used == plans[1].used
    order = [transformers.core_model_loading.dot_natural_key(name) for name, _, _ in first]
    assert order == sorted(order)


def test_a_window_bounds_what_is_read_ahead(folders, monkeypatch):
    from headrace import _transformers_read

    window, ahead, most = 64 << 10, {}, []
    start, take = _transformers_read._Batch.start, _transformers_read._Batch.take

    def started(batch, *arguments):
        if batch._job is None:
            ahead.update({item.name: item.nbytes for item in batch.items})
            most.append(sum(ahead.values()))
        start(batch, *arguments)

    def taken(batch, item):
        tensor = take(batch, item)
        ahead.pop(item.name)
        return tensor

    monkeypatch.setattr(_transformers_read._Batch, "start", started)
    monkeypatch.setattr(_transformers_read._Batch, "take", taken)
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    assert_equal_models(stock(folders["llama"]), ours(folders["llama"], True, window))
    assert len(most) > 4 and max(most) <= window


# --------------------------------------------------------------------------------------------- tensor parallelism

RANK = """
import sys, torch, transformers, headrace.transformers
torch.set_num_threads(1)
folder, rank, store = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
load = lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
expected = load()
lines = []
headrace.transformers.logger.info = lambda text, *values: lines.append(text % values)
with headrace.transformers.accelerate(eager=True):
    model = load()
assert any("when asked for" in line and ", 0 when asked for" not in line for line in lines), lines
local = lambda tensor: tensor.to_local() if hasattr(tensor, "to_local") else tensor
count = 0
for (name, first), (_, second) in zip(expected.state_dict().items(), model.state_dict().items(), strict=True):
    assert type(first) is type(second) and torch.equal(local(first), local(second)), name
    count += local(first).shape != first.shape
assert count > 0
print("equal", count)
"""


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_tensor_parallel(folders, kind, tmp_path):
    """Two processes; each reads the slices that Transformers asks for."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, folders[kind], str(rank), tmp_path / "store"],
                              env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(2)]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0] and all("equal" in output for output in outputs), outputs


# ------------------------------------------------------------------------------------------- whole programs


def run_program(tmp_path, text, *arguments, module=False):
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, "-m", "headrace.run", *(["-m", "program"] if module else [tmp_path / "program.py"]),
               *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path,
                          env=os.environ | {"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize("module", [False, True])
def test_run(folders, module, tmp_path):
    program = (
        "import logging, sys\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "logging.basicConfig(level=logging.INFO, format='%(name)s %(message)s', stream=sys.stdout)\n"
        "from transformers import AutoModelForCausalLM\n"
        "AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "print(__name__, sys.argv[0].rpartition('/')[2], sys.argv[2:])\n"
        "sys.exit(7)\n"
    )
    result = run_program(tmp_path, program, str(folders["mixtral"]), "--flag", "x", module=module)
    assert result.returncode == 7, result.stderr
    assert "headrace transformers:" in result.stdout and "merged into 6 parameters" in result.stdout
    assert "__main__ program.py ['--flag', 'x']" in result.stdout


@pytest.mark.parametrize("options", [{"window_bytes": "1GB"}, {"window_bytes": 1e6}, {"loader": "x"}, {"eager": "no"}])
def test_enable_refuses_wrong_options(options):
    with pytest.raises(headrace.errors.InvalidArgument, match=f"{next(iter(options))}="):
        headrace.transformers.enable(**options)
    assert headrace.transformers._settings is None


def test_run_says_how(tmp_path):
    result = subprocess.run([sys.executable, "-m", "headrace.run"], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "usage: python -m headrace.run" in result.stderr


def test_begun_before_the_imports(folders, tmp_path):
    program = (
        "import sys, headrace, headrace._begin as begin\n"
        "headrace.begin(sys.argv[1])\n"
        "from transformers import AutoModelForCausalLM\n"
        "AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "assert not begin._begun, begin._begun\n"
    )
    result = run_program(tmp_path, program, str(folders["llama"]))
    assert result.returncode == 0, result.stderr
