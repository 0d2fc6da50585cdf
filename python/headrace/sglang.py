"""SGLang's plugin: `--load-format headrace`, `sglang.Engine(load_format="headrace")`, or SGLANG_HEADRACE=1 for the
default formats.

SGLang finds register() by the entry point group `sglang.srt.plugins`. Its formats are a closed list, so a hook on the
check of the name puts the loader's class in the place of the name, which SGLang takes. Hooks on its functions that
iterate over safetensors files do the rest; they pass everything through that no reader of ours is meant to read.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

LOAD_FORMAT = "headrace"
VARIABLE = "SGLANG_HEADRACE"
ITERATORS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")

logger = logging.getLogger("sglang.plugins.headrace")
_registered = False


def register() -> None:
    """Hooks into SGLang; called again it does nothing. It never raises."""
    global _registered
    if _registered:
        return
    try:
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        around, add = hooks.HookType.AROUND, hooks.HookRegistry.register
        _add_choice()
        add("sglang.srt.configs.load_config.LoadConfig._verify_load_format", verify_load_format, around)
        for name in ITERATORS:
            add(f"sglang.srt.model_loader.weight_utils.{name}", iterate, around)
        _registered = True
    except Exception as error:
        logger.warning("headrace: load format '%s' is not there: %s: %s", LOAD_FORMAT, type(error).__name__, error)


def _add_choice() -> None:
    """Makes the command line take the format."""
    choices = importlib.import_module("sglang.srt.server_args")
    if LOAD_FORMAT not in choices.LOAD_FORMAT_CHOICES:
        choices.add_load_format_choices([LOAD_FORMAT])


def verify_load_format(original: Callable[..., Any], config: Any) -> Any:
    """Around LoadConfig._verify_load_format."""
    if isinstance(config.load_format, str) and config.load_format.lower() == LOAD_FORMAT:
        config.load_format = loader_class()
        return None
    return original(config)


def iterate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's functions that iterate over safetensors files."""
    from . import _weights

    reader = _weights.current()
    if reader is None and os.environ.get(VARIABLE) == "1":
        reader = _weights.Reader({}, logger)
    if reader is None:
        return original(*args, **kwargs)
    return _weights.step_in(reader, inspect.signature(original), _begin, functools.partial(original, *args, **kwargs))


def _begin(reader: Any, arguments: Mapping[str, Any]) -> Any:
    from . import _weights

    return reader.weights(arguments["hf_weights_files"], lambda _: True, progress=_weights.is_first_rank())


@functools.cache
def loader_class() -> type[Any]:
    """The loader that SGLang makes where a class stands for a format."""
    from . import _weights

    loader: Any = importlib.import_module("sglang.srt.model_loader.loader")
    formats = importlib.import_module("sglang.srt.configs.load_config").LoadFormat

    class HeadraceModelLoader(loader.DefaultModelLoader):  # type: ignore[misc]
        """SGLang's default loader, with safetensors files read by headrace."""

        def __init__(self, load_config: Any) -> None:
            self.headrace = _weights.Reader(load_config.model_loader_extra_config or {}, logger)
            config = copy.copy(load_config)
            config.load_format, config.model_loader_extra_config = formats.AUTO, {}
            super().__init__(config)

        def _get_weights_iterator(self, *args: Any, **kwargs: Any) -> Any:
            with _weights.active(self.headrace):
                return super()._get_weights_iterator(*args, **kwargs)

    return HeadraceModelLoader
