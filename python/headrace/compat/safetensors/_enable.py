"""enable() and disable(): our functions take the places of the safetensors package's in a running program.

A place is a name of a module: of the package itself, and of every module that has imported the function by name, before
or after. What holds a function otherwise (an attribute of a class, a default argument, a partial) is not reached.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

from ... import _on_import
from .. import _aside

NAMES = {
    "": ("safe_open", "serialize", "serialize_file", "deserialize"),
    ".torch": ("load_file", "load", "save_file", "save", "load_model", "save_model"),
    ".numpy": ("load_file", "load", "save_file", "save"),
    ".flax": ("load_file", "load", "save_file", "save"),
}

_lock = threading.RLock()
_is_enabled = False
_hooked: set[str] = set()
_pairs: list[tuple[Any, Any]] = []  # (the package's, ours)


def enable() -> list[str]:
    """Puts ours in the place of the safetensors package's functions: safe_open, serialize, serialize_file, deserialize,
    and those of its modules torch, numpy and flax, which may be imported later.

    Returns the names of other modules that were reached, as "accelerate.utils.modeling.safe_load_file". Raises
    ImportError when the package is not installed. Calling it again reaches what has been imported meanwhile.
    """
    global _is_enabled
    with _lock:
        importlib.import_module("safetensors")
        _is_enabled = True
        for suffix in NAMES:
            name = f"safetensors{suffix}"
            if name in _hooked:
                continue
            _hooked.add(name)
            _on_import.call_after(name, _take_over)
        reached = _replace({id(original): ours for original, ours in _pairs})
    _aside.logger.info("safetensors goes through headrace%s", f", also {', '.join(reached)}" if reached else "")
    return reached


def disable() -> None:
    """Gives all places back, also those of modules that were imported meanwhile."""
    global _is_enabled
    with _lock:
        _is_enabled = False
        _replace({id(ours): original for original, ours in _pairs})


def _take_over(module: ModuleType) -> None:
    """What follows the import of a module of the package."""
    with _lock:
        suffix = module.__name__.removeprefix("safetensors")
        _aside.capture(module, NAMES[suffix])
        mine = importlib.import_module(f"headrace.compat.safetensors{suffix}")
        for name in NAMES[suffix]:
            if name in module.__dict__:
                _pairs.append((module.__dict__[name], getattr(mine, name)))
        if _is_enabled:
            _replace({id(original): ours for original, ours in _pairs}, [module])


def _replace(table: dict[int, Any], modules: list[ModuleType] | None = None) -> list[str]:
    """Puts what the table has for an object's id wherever a module has that object, but in the package and in ours they
    are not told. A module's dictionary is read as it is: a lazy module is not woken."""
    reached = []
    for module in modules or [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]:
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
        package = str(names.get("__name__", "")).partition(".")[0]
        if package in ("headrace", "_safetensors_rust"):
            continue
        for name, value in list(names.items()):
            if id(value) in table:
                names[name] = table[id(value)]
                if package != "safetensors":
                    reached.append(f"{names.get('__name__')}.{name}")
    return reached
