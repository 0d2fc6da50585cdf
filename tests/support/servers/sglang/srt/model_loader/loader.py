"""The loader whose safetensors files headrace reads."""

import dataclasses
import glob
import os

from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.model_loader.weight_utils import buffered_multi_thread_safetensors_weights_iterator


class DefaultModelLoader:
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        prefix: str = ""

    def __init__(self, load_config):
        assert load_config.load_format in (LoadFormat.AUTO, LoadFormat.SAFETENSORS)
        assert set(load_config.model_loader_extra_config) <= {"enable_multithread_load", "num_threads"}
        self.load_config = load_config

    def _get_weights_iterator(
        self, source, *, resolved_source=None, startup_prefetch_started=False, startup_prefetch_active=False
    ):
        files = glob.glob(os.path.join(source.model_or_path, "*.safetensors"))
        weights = buffered_multi_thread_safetensors_weights_iterator(files, max_workers=8, prefetch=False)
        return ((source.prefix + name, tensor) for name, tensor in weights)


def get_model_loader(load_config, model_config=None):
    chosen = load_config.load_format
    return chosen(load_config) if isinstance(chosen, type) else DefaultModelLoader(load_config)
