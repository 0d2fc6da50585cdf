"""The loader whose safetensors files headrace reads."""

import dataclasses
import glob
import os

from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.weight_utils import pt_weights_iterator, safetensors_weights_iterator


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""

    def __init__(self, load_config):
        super().__init__(load_config)
        self.local_expert_ids = None
        assert load_config.load_format in ("auto", "safetensors")
        assert set(load_config.model_loader_extra_config) <= {"num_threads", "enable_weights_track"}

    def _get_weights_iterator(self, source):
        files = glob.glob(os.path.join(source.model_or_path, "*.safetensors"))
        config = self.load_config
        if files:
            weights = safetensors_weights_iterator(
                files,
                config.use_tqdm_on_load,
                config.safetensors_load_strategy,
                local_expert_ids=self.local_expert_ids,
            )
        else:
            weights = pt_weights_iterator(glob.glob(os.path.join(source.model_or_path, "*.bin")), False)
        return ((source.prefix + name, tensor) for name, tensor in weights)

    def get_all_weights(self, model_config, model):
        yield from self._get_weights_iterator(DefaultModelLoader.Source(model_config.model, None))

    def load_weights(self, model, model_config):
        model.load_weights(self.get_all_weights(model_config, model))
