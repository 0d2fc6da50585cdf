#!/usr/bin/env python3
"""The plugin in the real vLLM, without a GPU: a small Llama in one and in two ranks, against vLLM's own iterator.

    VLLM_TARGET_DEVICE=empty pip install --no-build-isolation --no-deps vllm-*.tar.gz      (into an environment that
    pip install -r requirements/common.txt                                                  has PyTorch and headrace)
    check_vllm.py FOLDER          keeps the model there

Not a part of the tests: the installation takes minutes and gigabytes. Prints what each rank copied and read.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.multiprocessing


def make_model(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
                         num_key_value_heads=4, vocab_size=1000)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def run_rank(rank: int, world: int, load_format: str, extra: dict, folder: Path) -> None:
    """Loads as a rank, and writes hashes of its parameters; without vLLM's ways of ending a process."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "VLLM_PLUGINS": "headrace"}
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm import config as configs
    from vllm import distributed
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    options = {"skip_tokenizer_init": True, "dtype": "bfloat16", "enforce_eager": True}
    model_config = configs.ModelConfig(model=str(folder), **options)
    config = configs.VllmConfig(
        model_config=model_config,
        parallel_config=configs.ParallelConfig(tensor_parallel_size=world, rank=rank),
        load_config=LoadConfig(load_format=load_format, model_loader_extra_config=extra),
        device_config=configs.DeviceConfig("cpu"),
    )
    with configs.set_current_vllm_config(config):
        distributed.init_distributed_environment(world, rank, "env://", rank, backend="gloo")
        distributed.initialize_model_parallel(world)
        loader = get_model_loader(config.load_config)
        torch.set_default_dtype(torch.bfloat16)
        model = loader.create_model(config, model_config)
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)
        loader.load_weights(model, model_config)
    hashes = {
        name: hashlib.sha256(parameter.data.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, parameter in model.named_parameters()
    }
    reader = getattr(loader, "headrace", None)
    told = None if reader is None else (reader.bytes_wanted, reader.bytes_read)
    (folder / f"rank{rank}.json").write_text(json.dumps([hashes, told]))
    os._exit(0)


def run(world: int, load_format: str, extra: dict, folder: Path) -> tuple[list, list]:
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run_rank, args=(rank, world, load_format, extra, folder)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    results = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]
    return [hashes for hashes, _ in results], [told for _, told in results]


def main() -> None:
    folder = Path(sys.argv[1])
    if not (folder / "config.json").exists():
        make_model(folder)
    for world in (1, 2):
        expected, _ = run(world, "safetensors", {}, folder)
        for extra in ({}, {"lazy_bytes": 1}):
            found, told = run(world, "headrace", extra, folder)
            assert found == expected, f"{world} ranks, {extra}: parameters differ"
            print(f"{world} ranks, {extra}: {len(found[0])} parameters equal; bytes copied and read by rank: {told}")


if __name__ == "__main__":
    main()
