"""Stepping aside: what a stand-in does not do, the package that it stands for does, and the log says so.

`originals` keeps a package's own objects, which are captured before a stand-in takes their names over.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Union

logger = logging.getLogger("headrace")

originals: dict[tuple[str, str], Any] = {}

_said: set[tuple[str, str]] = set()
_thread = threading.local()  # .depth: how many original functions are running on this thread


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except ImportError:
        return False


def capture(module: ModuleType, names: tuple[str, ...]) -> None:
    """Keeps a module's objects of these names, the first time."""
    for name in names:
        if name in module.__dict__:
            originals.setdefault((module.__name__, name), module.__dict__[name])


def original(module: str, name: str) -> Any:
    """The package's own object, or None when there is none."""
    if (module, name) not in originals:
        if not is_installed(module.partition(".")[0]):
            return None
        found = getattr(importlib.import_module(module), name, None)
        originals.setdefault((module, name), found)  # a hook on the import may have captured it already
    return originals[module, name]


def is_running() -> bool:
    """Whether this thread is in an original function, whose own calls are no business of a stand-in."""
    return getattr(_thread, "depth", 0) > 0


def call(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Calls an original function; stand-ins that it meets step aside at once."""
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        return function(*arguments, **keywords)
    finally:
        _thread.depth -= 1


def say(name: str, reason: Union[Exception, str]) -> None:
    """One visible line for each function and kind of reason; the others are for who looks for them."""
    key = name, type(reason).__name__ if isinstance(reason, Exception) else reason
    level = logging.DEBUG if key in _said else logging.WARNING
    _said.add(key)
    package = name.partition(".")[0]
    logger.log(level, "headrace steps aside, %s of the package %s goes on: %s", name, package, reason)
