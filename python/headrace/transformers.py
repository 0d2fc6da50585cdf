"""Transformers 5: `from_pretrained` reads its checkpoints through headrace, with nothing else changed in a program.

    import headrace.transformers

    headrace.transformers.enable()
    model = AutoModelForCausalLM.from_pretrained("model-folder", device_map="cuda")

Parameters for a GPU are read straight into their memory, experts into their places of the merged parameter; what is to
be cast or quantized is read ahead of its use within `window_bytes`. Parameters for host memory stay mapped. Where this
does not apply, one WARNING of the logger "headrace" says why, and Transformers loads as it would without.

`python -m headrace.run script.py` does the same for a program that cannot be edited.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Union

from . import _begin, _checks, _on_import, _options
from ._checkpoint import Checkpoint, open_core
from ._transformers_plan import Planner
from ._transformers_read import Reading

__all__ = ["accelerate", "disable", "enable"]

logger = logging.getLogger("headrace")

MODULE = "transformers.modeling_utils"
PARAMETERS = ("model", "state_dict", "checkpoint_files", "load_config")
WINDOW_BYTES = 1 << 30


@dataclass(frozen=True)
class _Settings:
    window_bytes: int
    loader: Union[_options.Loader, None]
    eager: bool


_settings: Union[_Settings, None] = None  # None: Transformers loads by itself
_lock = threading.Lock()
_is_hooked = False
_call = threading.local()  # .warmed_up: this thread's load has made its destinations


def enable(
    *, window_bytes: Union[int, None] = None, loader: Union[_options.Loader, None] = None, eager: bool = False
) -> None:
    """From now on Transformers loads through headrace, also when it is imported later.

    Args:
        window_bytes: most bytes of tensors that are read ahead of their use and do not become parameters as they are;
            None: HEADRACE_WINDOW_BYTES, else 1 GiB.
        loader: a headrace.Loader of one's own instead of the process's.
        eager: also read what goes to host memory, instead of mapping the files.
    """
    global _settings, _is_hooked
    window = _options.number_option("window_bytes", window_bytes) or WINDOW_BYTES
    eager = _checks.flag("eager", eager)
    if loader is not None:
        _options.checked_loader(loader)
    with _lock:
        _settings = _Settings(window, loader, eager)
        hooked, _is_hooked = _is_hooked, True
    if not hooked:
        _on_import.call_after(MODULE, _install)


def disable() -> None:
    """From now on Transformers loads by itself. Loads that run go on."""
    global _settings
    with _lock:
        _settings = None


@contextlib.contextmanager
def accelerate(**options: Any) -> Iterator[None]:
    """enable() within a `with` block, for all threads; then what was before."""
    global _settings
    before = _settings
    enable(**options)
    try:
        yield
    finally:
        with _lock:
            _settings = before


# ----------------------------------------------------------------------------------------------------- the seam


def _install(module: ModuleType) -> None:
    """Wraps the function that Transformers loads with, and the one that warms its allocator up."""
    model_class = getattr(module, "PreTrainedModel", None)
    original = getattr(model_class, "_load_pretrained_model", None)
    warm_up = getattr(module, "caching_allocator_warmup", None)
    reason = _unknown(original, warm_up)
    if reason is not None or original is None or warm_up is None or model_class is None:
        _step_aside(f"this version of Transformers is not known: {reason}")
        return

    def load(*arguments: Any, **keywords: Any) -> Any:
        settings = _settings
        if settings is None:
            return original(*arguments, **keywords)
        bound = inspect.signature(original).bind(*arguments, **keywords)
        return _load(original, bound, settings)

    def warm_up_unless_done(*arguments: Any, **keywords: Any) -> Any:
        return None if getattr(_call, "warmed_up", False) else warm_up(*arguments, **keywords)

    model_class._load_pretrained_model = staticmethod(load)
    module.caching_allocator_warmup = warm_up_unless_done  # type: ignore[attr-defined]


def _unknown(original: Any, warm_up: Any) -> Union[str, None]:
    if original is None:
        return "PreTrainedModel._load_pretrained_model is not there"
    if warm_up is None:
        return "caching_allocator_warmup is not there"
    names = tuple(inspect.signature(original).parameters)
    if names[: len(PARAMETERS)] != PARAMETERS:
        return f"_load_pretrained_model takes ({', '.join(names)})"
    return None


def _step_aside(reason: str) -> None:
    logger.warning("transformers: headrace steps aside, Transformers loads by itself: %s", reason)


def _load(original: Callable[..., Any], bound: inspect.BoundArguments, settings: _Settings) -> Any:
    arguments = bound.arguments
    reason = _reason_against(arguments)
    begun = None
    if reason is None:
        try:
            begun = _begin_reading(arguments, settings)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    if begun is None:
        _step_aside(str(reason))
        return original(*bound.args, **bound.kwargs)
    reading, plan = begun
    arguments["state_dict"] = reading.slices()
    before = getattr(_call, "warmed_up", False)
    _call.warmed_up = any(item.device != "cpu" for item in plan.final)
    try:
        result = original(*bound.args, **bound.kwargs)
    finally:
        _call.warmed_up = before
        reading.close()
    if plan.used is not None:
        _mark_used(arguments["model"], arguments["load_config"], plan.used)
    return result


def _begin_reading(arguments: dict[str, Any], settings: _Settings) -> tuple[Reading, Any]:
    files, config = list(arguments["checkpoint_files"]), arguments["load_config"]
    core, label = _begin.take_over_files(files) or open_core(files, None, True, False, 0)
    checkpoint = Checkpoint(core, config.pretrained_model_name_or_path or label)
    eager = settings.eager or _must_not_map(config, files)
    plan = Planner(arguments["model"], checkpoint._core, config, eager).make()
    reading = Reading(checkpoint, plan, settings.loader or _options.shared_loader(), settings.window_bytes)
    try:
        reading.start()
    except BaseException:
        reading.close()
        raise
    merged = [len(item.parts) for item in (*plan.final, *plan.passing) if item.is_merged]
    logger.info("transformers: %d tensors become parameters as they are read, %d are read ahead, %d when asked for, %d "
                "are mapped or not wanted; %d tensors are merged into %d parameters",
                len(plan.final), len(plan.passing), len(plan.direct), len(plan.mapped), sum(merged), len(merged))
    return reading, plan


def _must_not_map(config: Any, files: list[str]) -> bool:
    module: Any = importlib.import_module(MODULE)
    return bool(config.disable_mmap) or any(module._is_on_hf_mount(file) for file in files)


def _mark_used(model: Any, config: Any, used: list[bool]) -> None:
    """Transformers has seen merged names only; save_pretrained writes the hub's by the converters that were used."""
    for transform, was_used in zip(config.weight_mapping, used):
        transform._was_used = was_used
    model._weight_conversions = [entry for entry, was_used in zip(config.weight_mapping, used) if was_used]


# ---------------------------------------------------------------------------------------------- when not to do it


def _reason_against(arguments: dict[str, Any]) -> Union[str, None]:
    """Why this load is none of ours, or None."""
    files, config = arguments["checkpoint_files"], arguments["load_config"]
    if arguments["state_dict"] is not None:
        return "the program gave a state_dict"
    if not files or not all(str(file).endswith(".safetensors") for file in files):
        return "the checkpoint is not made of .safetensors files"
    module: Any = importlib.import_module(MODULE)
    if module.is_deepspeed_zero3_enabled() and config.hf_quantizer is None:
        return "DeepSpeed ZeRO-3 spreads the parameters itself"
    return _reason_against_devices(config.device_map)


def _reason_against_devices(device_map: Any) -> Union[str, None]:
    torch: Any = importlib.import_module("torch")
    if "disk" in (devices := list((device_map or {}).values())):
        return "a part of the model is offloaded to disk"
    kinds = {torch.device(device).type for device in devices}
    if others := sorted(kinds - {"cpu", "cuda"}):
        return f"the model goes to {', '.join(others)}, and headrace loads to cpu and cuda"
    if "cuda" in kinds and torch.version.hip is not None:
        return f"this torch is for ROCm {torch.version.hip}, whose devices are called cuda too"
    return None
