"""A model with its weights; which model it is, a test says."""

from types import SimpleNamespace

from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader
from vllm.plugins import load_general_plugins


class LLM:
    make_model = None

    def __init__(self, model, *, load_format="auto", model_loader_extra_config=None, tensor_parallel_size=1):
        load_general_plugins()
        self.config = LoadConfig(load_format, model_loader_extra_config=model_loader_extra_config or {})
        self.loader = get_model_loader(self.config)
        self.world = tensor_parallel_size
        self.model = type(self).make_model()
        self.loader.load_weights(self.model, SimpleNamespace(model=model))
