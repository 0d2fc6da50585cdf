"""The loader of files that hold one rank's parameters."""

import glob
import os

import safetensors

from vllm.model_executor.model_loader.base_loader import BaseModelLoader


class ShardedStateLoader(BaseModelLoader):
    def __init__(self, load_config):
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config)
        self.pattern = extra.pop("pattern", None)
        assert not extra

    def load_weights(self, model, model_config):
        pattern = self.pattern or "model-rank-{rank}-part-{part}.safetensors"
        paths = glob.glob(os.path.join(model_config.model, pattern.format(rank=model.rank, part="*")))
        state = model.state_dict()
        for key, tensor in self.iterate_over_files(paths):
            memory = state.pop(key).data
            for dim, size in enumerate(tensor.shape):
                memory = memory.narrow(dim, 0, size)
            memory.copy_(tensor)
        assert not state

    def iterate_over_files(self, paths):
        for path in paths:
            with safetensors.safe_open(path, framework="pt") as file:
                yield from ((name, file.get_tensor(name)) for name in file.keys())
