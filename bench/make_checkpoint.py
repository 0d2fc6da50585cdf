#!/usr/bin/env python3
"""Write a Llama-shaped checkpoint of random bytes, sharded, with an index.

usage: make_checkpoint.py DIR GIB SHARDS [--small COUNT] [--hidden N] [--dtype BF16|F32]

--small COUNT adds COUNT tensors of 16 KiB to 3 MiB each instead of the usual layers. --hidden N is the model's hidden
size, 4096 unless given: layers of a smaller one come closer to a small GIB. The header of every shard is
padded to a multiple of 8 bytes, as the reference writer does. Needs nothing but Python.
"""
import json
import os
import random
import struct
import sys
from pathlib import Path


DTYPES = {"BF16": 2, "F32": 4}
DTYPE = sys.argv[sys.argv.index("--dtype") + 1] if "--dtype" in sys.argv else "BF16"


def layer_tensors(layer: int, hidden: int) -> list:
    inner = hidden * 7 // 2
    prefix = f"model.layers.{layer}."
    return [
        (prefix + "input_layernorm.weight", [hidden]),
        (prefix + "mlp.down_proj.weight", [hidden, inner]),
        (prefix + "mlp.gate_proj.weight", [inner, hidden]),
        (prefix + "mlp.up_proj.weight", [inner, hidden]),
        (prefix + "post_attention_layernorm.weight", [hidden]),
        (prefix + "self_attn.k_proj.weight", [hidden // 4, hidden]),
        (prefix + "self_attn.o_proj.weight", [hidden, hidden]),
        (prefix + "self_attn.q_proj.weight", [hidden, hidden]),
        (prefix + "self_attn.v_proj.weight", [hidden // 4, hidden]),
    ]


def small_tensors(count: int) -> list:
    rng = random.Random(1)
    return [(f"model.experts.{i // 3}.w{i % 3 + 1}.weight", [rng.randrange(8, 1537), 1024]) for i in range(count)]


def bytes_of(shape: list) -> int:
    size = DTYPES[DTYPE]
    for extent in shape:
        size *= extent
    return size


def write_shard(path: Path, tensors: list) -> None:
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        header[name] = {"dtype": DTYPE, "shape": shape, "data_offsets": [offset, offset + bytes_of(shape)]}
        offset += bytes_of(shape)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    noise = os.urandom(16 << 20)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while offset:
            file.write(noise[: min(offset, len(noise))])
            offset -= min(offset, len(noise))


def number_option(name: str, default: int) -> int:
    return int(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else default


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    folder, wanted, shard_count = Path(sys.argv[1]), float(sys.argv[2]) * (1 << 30), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    hidden = number_option("--hidden", 4096)
    if "--small" in sys.argv:
        tensors = small_tensors(number_option("--small", 0))
    else:
        tensors, layer = [("model.embed_tokens.weight", [32064, hidden])], 0
        while sum(bytes_of(shape) for _, shape in tensors) < wanted:
            tensors += layer_tensors(layer, hidden)
            layer += 1
    total = sum(bytes_of(shape) for _, shape in tensors)
    shards, filled = [[]], 0
    for name, shape in tensors:
        if filled >= total / shard_count and len(shards) < shard_count:
            shards.append([])
            filled = 0
        shards[-1].append((name, shape))
        filled += bytes_of(shape)
    weight_map = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / name, shard)
        weight_map.update({tensor: name for tensor, _ in shard})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    print(f"{len(tensors)} tensors, {total} bytes, {len(shards)} files in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
