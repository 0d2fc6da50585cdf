#!/usr/bin/env python3
"""A page-cache-hot model into a GPU by Transformers, with and without headrace, against the bare load of its files.

usage: bench_transformers.py SCRATCH_FOLDER [--gib N] [--rounds N] [--device cuda:0] [--json FILE]

dense     a Llama of N GiB in bfloat16 (7.5)
mixture   a mixture of experts like Qwen3-30B-A3B: 18,867 tensors, of which 18,432 are experts, 1.2 GB
begin     from the start of a process to the first token of a Llama of 1.5 GiB whose files are not in the page cache:
          headrace, and headrace.begin() before the imports

The models are random, made by Transformers here. In each round stock, headrace and the bare load (headrace.load with
warm_up) take turns in one process; before each PyTorch's allocator gives everything back. The first round is not
counted. Goals: dense at most 1.25 times the bare load and 0.05 s; the mixture at most 0.5 s above its bare load. Exit
status 77: there is no device, or no Transformers. "begin" is left out where the page cache keeps the files.
"""

import argparse
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench_cold_peers import NOT_HERE, drop

BEGIN_GIB = 1.5
LAYER_BYTES = 436 << 20
EMBEDDING_BYTES = 500 << 20


def dense_config(gib: float) -> object:
    from transformers import LlamaConfig

    layers = max(1, round((gib * (1 << 30) - EMBEDDING_BYTES) / LAYER_BYTES))
    return LlamaConfig(vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
                       num_attention_heads=32, num_key_value_heads=8)


def mixture_config() -> object:
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(vocab_size=32000, hidden_size=512, intermediate_size=512, moe_intermediate_size=64,
                          num_hidden_layers=48, num_experts=128, num_experts_per_tok=8, num_attention_heads=8,
                          num_key_value_heads=4, head_dim=64)


def make_model(folder: Path, config: object, device: str) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").exists():
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
        model.save_pretrained(folder, max_shard_size="2GB")
        os.sync()
    return folder


# ------------------------------------------------------------------------------------------------ taking turns


def stock(folder: Path, device: str) -> object:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, device_map=device)


def with_headrace(folder: Path, device: str) -> object:
    import headrace.transformers

    with headrace.transformers.accelerate():
        return stock(folder, device)


def bare(folder: Path, device: str) -> object:
    import headrace

    return headrace.load(folder, framework="torch", device=device, warm_up=True)


SUBJECTS = {"stock": stock, "headrace": with_headrace, "bare": bare}


def once(load: object, folder: Path, device: str) -> tuple[float, int]:
    """Seconds, and the most bytes that PyTorch's allocator had given out."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    result = load(folder, device)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    del result
    return seconds, torch.cuda.max_memory_allocated() - before


def in_turns(folder: Path, device: str, rounds: int) -> dict:
    seconds: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    peaks: dict[str, int] = {}
    for number in range(rounds + 1):
        for name, load in SUBJECTS.items():
            taken, peaks[name] = once(load, folder, device)
            if number > 0:
                seconds[name].append(taken)
    rows = {name: {"seconds": statistics.median(all_of), "trials": all_of, "peak_bytes": peaks[name]}
            for name, all_of in seconds.items()}
    above = [ours - raw for ours, raw in zip(seconds["headrace"], seconds["bare"])]
    ratios = [(ours - 0.05) / raw for ours, raw in zip(seconds["headrace"], seconds["bare"])]
    return {"bytes": sum(path.stat().st_size for path in folder.glob("*.safetensors")), **rows,
            "seconds_above_bare": statistics.median(above), "ratio_to_bare": statistics.median(ratios)}


# ------------------------------------------------------------------------------------- from nothing to a token

PROGRAM = """
import sys
folder, device, kind = sys.argv[1:]
import headrace
import headrace.transformers
headrace.transformers.enable()
if kind == "begin":
    headrace.begin(folder, device=device)
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(folder, device_map=device)
tokens = torch.arange(8, device=device).reshape(1, 8)
model.generate(tokens, max_new_tokens=1, do_sample=False, pad_token_id=0).cpu()
"""


def first_token(folder: Path, device: str, rounds: int, until: float) -> dict | None:
    """Rounds begin until `until`, one is counted in any case."""
    files = [str(path) for path in folder.glob("*.safetensors")]
    seconds: dict[str, list[float]] = {"headrace": [], "begin": []}
    for number in range(rounds + 1):
        if number > 1 and time.monotonic() > until:
            break
        for kind in seconds:
            if not drop(files):
                return None
            begin = time.perf_counter()
            command = [sys.executable, "-c", PROGRAM, folder, device, kind]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            if number > 0:
                seconds[kind].append(time.perf_counter() - begin)
    saved = [without - ahead for without, ahead in zip(seconds["headrace"], seconds["begin"])]
    return {"bytes": sum(map(os.path.getsize, files)), "saved_seconds": statistics.median(saved),
            **{kind: {"seconds": statistics.median(all_of), "trials": all_of} for kind, all_of in seconds.items()}}


def show(name: str, result: dict) -> None:
    parts = [f"{subject} {result[subject]['seconds']:.3f} s" for subject in SUBJECTS if subject in result]
    print(f"{name}: {', '.join(parts)}; above bare {result['seconds_above_bare']:.3f} s, "
          f"ratio {result['ratio_to_bare']:.3f}; peak {result['headrace']['peak_bytes'] / 1e9:.3f} GB, "
          f"stock {result['stock']['peak_bytes'] / 1e9:.3f} GB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--gib", type=float, default=7.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0, help="bound of all, which the rounds to a first token keep")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds if options.seconds else float("inf")
    if importlib.util.find_spec("transformers") is None:
        return NOT_HERE
    import torch
    import transformers

    if not torch.cuda.is_available():
        return NOT_HERE
    transformers.utils.logging.disable_progress_bar()
    result: dict = {"torch": torch.__version__, "transformers": transformers.__version__,
                    "device": torch.cuda.get_device_name(options.device)}
    dense = make_model(options.scratch / "dense", dense_config(options.gib), options.device)
    mixture = make_model(options.scratch / "mixture", mixture_config(), options.device)
    for name, folder in {"dense": dense, "mixture": mixture}.items():
        result[name] = in_turns(folder, options.device, options.rounds)
        show(name, result[name])
    begun = make_model(options.scratch / "begin", dense_config(min(options.gib, BEGIN_GIB)), options.device)
    result["begin"] = first_token(begun, options.device, options.rounds, until)
    if result["begin"]:
        print(f"begin: {result['begin']['headrace']['seconds']:.2f} s without, "
              f"{result['begin']['begin']['seconds']:.2f} s with, saved {result['begin']['saved_seconds']:.2f} s")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
