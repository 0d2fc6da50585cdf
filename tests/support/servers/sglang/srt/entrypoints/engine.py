"""A model with its weights; which model it is, a test says."""

from sglang.srt.plugins import load_plugins


class Engine:
    make_model = None

    def __init__(self, *, model_path, load_format="auto", model_loader_extra_config=None):
        load_plugins()
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.model_loader.loader import get_model_loader

        self.config = LoadConfig(load_format, model_loader_extra_config or {})
        self.loader = get_model_loader(self.config)
        self.model = type(self).make_model()
        self.model.load_weights(self.loader._get_weights_iterator(type(self.loader).Source(model_path, None)))
