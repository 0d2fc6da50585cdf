"""vLLM's plugin: `--load-format headrace`, and `headrace_sharded_state` for files of save_sharded_state.

vLLM finds register() by the entry point group `vllm.general_plugins` and calls it in each of its processes. It never
raises: an exception would end the server, whatever format it loads. vLLM is imported there and not before.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

LOAD_FORMAT = "headrace"
SHARDED_FORMAT = "headrace_sharded_state"

logger = logging.getLogger("vllm.plugins.headrace")

#: Keys of --model-loader-extra-config that are vLLM's own and handed on to it.
KEYS_OF_DEFAULT = ("enable_weights_track",)
KEYS_OF_SHARDED = ("pattern",)


def register() -> None:
    """Makes the load formats known to vLLM; called again it does nothing."""
    try:
        package = importlib.import_module("vllm.model_executor.model_loader")
        default = importlib.import_module("vllm.model_executor.model_loader.default_loader")
        sharded = importlib.import_module("vllm.model_executor.model_loader.sharded_state_loader")
        known = getattr(package, "_LOAD_FORMAT_TO_MODEL_LOADER", {})
        if LOAD_FORMAT in known:
            return
        package.register_model_loader(SHARDED_FORMAT)(make_sharded_loader(sharded))
        package.register_model_loader(LOAD_FORMAT)(make_loader(default))
    except Exception as error:
        logger.warning("headrace: load format '%s' is not there: %s: %s", LOAD_FORMAT, type(error).__name__, error)


def make_loader(default: Any) -> type[Any]:
    """The loader class for the module vllm.model_executor.model_loader.default_loader, which is made to ask it."""
    from . import _weights

    filters = importlib.import_module("vllm.model_executor.model_loader.ep_weight_filter")
    default.safetensors_weights_iterator = _weights.stepping_in(
        default.safetensors_weights_iterator, _beginning(filters.should_skip_weight)
    )

    class HeadraceModelLoader(default.DefaultModelLoader):  # type: ignore[misc]
        """vLLM's default loader, with safetensors files read by headrace."""

        def __init__(self, load_config: Any) -> None:
            options, handed_on = _split(load_config, KEYS_OF_DEFAULT)
            self.headrace = _weights.Reader(options, logger, KEYS_OF_DEFAULT)
            # "auto": what vLLM itself would load, so that files of other formats find their way
            super().__init__(_changed(load_config, load_format="auto", model_loader_extra_config=handed_on))

        def _get_weights_iterator(self, source: Any) -> Any:
            with _weights.active(self.headrace):
                return super()._get_weights_iterator(source)

    return HeadraceModelLoader


def make_sharded_loader(sharded: Any) -> type[Any]:
    """The loader class for the module vllm.model_executor.model_loader.sharded_state_loader."""
    from . import _weights

    class HeadraceShardedStateLoader(sharded.ShardedStateLoader):  # type: ignore[misc]
        """vLLM's loader of a rank's own files, read straight into the parameters."""

        def __init__(self, load_config: Any) -> None:
            options, handed_on = _split(load_config, KEYS_OF_SHARDED)
            self.headrace = _weights.Reader(options, logger, KEYS_OF_SHARDED)
            super().__init__(_changed(load_config, load_format="sharded_state", model_loader_extra_config=handed_on))

        def iterate_over_files(self, paths: Any) -> Any:
            from . import errors

            try:
                return self.headrace.sharded(paths)
            except errors.HeadraceError as error:
                logger.warning("headrace steps aside, vLLM's own loader goes on: %s", error)
                return super().iterate_over_files(paths)

    return HeadraceShardedStateLoader


def _beginning(should_skip: Callable[[str, Any], bool]) -> Callable[[Any, Mapping[str, Any]], Any]:
    def begin(reader: Any, arguments: Mapping[str, Any]) -> Any:
        from . import _weights, errors

        if arguments.get("safetensors_load_strategy") == "torchao":
            raise errors.make("Unsupported", "torchao's tensors are put together by vLLM")
        local = arguments.get("local_expert_ids")
        return reader.weights(
            arguments["hf_weights_files"],
            lambda name: not should_skip(name, local),
            progress=bool(arguments.get("use_tqdm_on_load")) and _weights.is_first_rank(),
        )

    return begin


def _split(load_config: Any, of_vllm: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The extra options that are ours, and those that are vLLM's."""
    extra = dict(load_config.model_loader_extra_config or {})
    handed_on = {key: extra.pop(key) for key in of_vllm if key in extra}
    return extra, handed_on


def _changed(load_config: Any, **fields: Any) -> Any:
    return dataclasses.replace(load_config, **fields)
