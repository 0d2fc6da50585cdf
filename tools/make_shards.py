"""Splits a .safetensors file into shards of about equal size with an index, as model hubs do; all by the safetensors
package, so that it serves as a reference: `make_shards.py FILE FOLDER COUNT`.
"""

import json
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save_file


def make_shards(source: Path, folder: Path, count: int) -> None:
    with safe_open(source, "numpy") as checkpoint:
        tensors = {name: checkpoint.get_tensor(name) for name in sorted(checkpoint.keys())}
    total = sum(tensor.nbytes for tensor in tensors.values())
    shards = [{} for _ in range(count)]
    seen = 0
    for name, tensor in tensors.items():
        shards[min(seen * count // total, count - 1)][name] = tensor
        seen += tensor.nbytes

    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{count:05}.safetensors"
        save_file(shard, folder / file_name, {"format": "pt"})
        weight_map |= dict.fromkeys(shard, file_name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


if __name__ == "__main__":
    make_shards(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
