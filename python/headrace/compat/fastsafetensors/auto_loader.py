"""AutoLoader: PipelineParallel by a configuration file."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch

from ... import errors
from .config import LoaderConfig, load_config
from .loader import Path, SafeTensorsFileLoader
from .parallel_loader import PipelineParallel


class AutoLoader:
    """Tensors of files, with the options of load_config(). Of its loaders there is "base"."""

    def __init__(self, pg: Any, hf_weights_files: Sequence[Path], device: Any = "cpu") -> None:
        self._config = config = load_config()
        if config.loader != "base":
            text = f"loader '{config.loader}' of the configuration: there is 'base' here, which reads any mounted file"
            raise errors.make("Unsupported", text)
        options = SafeTensorsFileLoader.process_extension_config(config.get_extension_config("base"))
        self._loader = SafeTensorsFileLoader(
            pg, device, framework=config.framework, debug_log=config.debug_log, set_numa=config.set_numa,
            disable_cache=config.disable_cache, **options,
        )
        self._pipeline = PipelineParallel(pg, self._loader, hf_weights_files, **config.create_parallel_kwargs())

    @property
    def config(self) -> LoaderConfig:
        return self._config

    def iterate_weights(self) -> Generator[tuple[str, torch.Tensor], None, None]:
        return self._pipeline.iterate_weights()

    def close(self) -> None:
        self._pipeline.close()
