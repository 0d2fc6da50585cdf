"""safetensors, by headrace: safe_open, the functions on bytes, and the modules torch, numpy and flax.

    from headrace.compat import safetensors
    from headrace.compat.safetensors.torch import load_file, save_file

    headrace.compat.safetensors.enable()

Exceptions are the package's own SafetensorError in its own words; the HeadraceError with file, tensor and offset is
their cause. Names that are not here are those of the package.
"""

from __future__ import annotations

import importlib
from typing import Any

from .. import _aside
from ._bytes import TensorSpec, deserialize, serialize, serialize_file
from ._enable import disable, enable
from ._errors import SafetensorError
from ._open import safe_open

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "deserialize",
    "disable",
    "enable",
    "safe_open",
    "serialize",
    "serialize_file",
]

__version__: str = _aside.original("safetensors", "__version__") or "0.8.0"


def __getattr__(name: str) -> Any:
    if name in ("torch", "numpy", "flax"):
        return importlib.import_module(f"{__name__}.{name}")
    found = None if name.startswith("__") else _aside.original("safetensors", name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
