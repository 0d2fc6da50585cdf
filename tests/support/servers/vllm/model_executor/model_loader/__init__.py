"""The table of load formats."""

from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

_LOAD_FORMAT_TO_MODEL_LOADER = {"auto": DefaultModelLoader, "sharded_state": ShardedStateLoader}


def register_model_loader(load_format):
    def register(loader):
        assert issubclass(loader, BaseModelLoader) and load_format not in _LOAD_FORMAT_TO_MODEL_LOADER
        _LOAD_FORMAT_TO_MODEL_LOADER[load_format] = loader
        return loader

    return register


def get_model_loader(load_config):
    return _LOAD_FORMAT_TO_MODEL_LOADER[load_config.load_format](load_config)
