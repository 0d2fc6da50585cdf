"""How tensors come into being in each framework.

A framework with a maker (PyTorch, numpy) makes its own empty tensors, which the engine fills and which are handed out
as they are: they are ordinary tensors of the framework's allocator. JAX's arrays cannot be written to, so it imports
ours by DLPack. Without a framework the tensor is a headrace.Tensor.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import _core, _dtypes, errors

NAMES = {
    "pt": "torch",
    "pytorch": "torch",
    "torch": "torch",
    "np": "numpy",
    "numpy": "numpy",
    "jax": "jax",
    "flax": "jax",
}


@dataclass(frozen=True)
class Framework:
    """What a load needs to know of a framework.

    maker: for _core.Load: (callable, row of each dtype, name of the address method), or None.
    convert: makes the framework's tensor of a headrace.Tensor, or None when nothing is to be done.
    reason: why a dtype cannot be held, or None; only for frameworks without a maker.
    """

    name: str
    maker: tuple[Any, ...] | None = None
    convert: Callable[[_core.Tensor], Any] | None = None
    reason: Callable[[str], str | None] | None = None


NONE = Framework("none")


def find(name: str | None) -> Framework:
    """The framework of a name ("pt", "torch", "np", "jax", ...; None: none). Imports it."""
    if name is None:
        return NONE
    if name == "cupy":
        raise errors.make("Unsupported", "cupy holds device memory only, and this version loads into host memory; "
                                         "framework=None gives tensors that speak DLPack")
    if name not in NAMES:
        raise errors.make("InvalidArgument", f"framework '{name}' is none of {', '.join(NAMES)} or None")
    chosen = NAMES[name]
    if chosen not in _made:
        _made[chosen] = _MAKERS[chosen](importlib.import_module(chosen))
    return _made[chosen]


def check_device(device: Any) -> None:
    """Refuses what is not host memory."""
    if str(device) not in ("cpu", "cpu:0"):
        message = f"device '{device}': this version loads into host memory only; use 'cpu'"
        raise errors.make("DeviceUnavailable", message)


def _torch(torch: ModuleType) -> Framework:
    rows: list[Any] = []
    for name, _ in _dtypes.DTYPES:
        dtype = _dtypes.torch_dtype(torch, name)
        if dtype is None:
            rows.append(f"torch {torch.__version__} has no dtype for {name}; {_dtypes.RAW}")
        else:
            rows.append(({"dtype": dtype, "device": torch.device("cpu")}, 2 if name == "F4" else 1))
    return Framework("torch", (torch.empty, rows, "data_ptr"))


def _numpy(numpy: ModuleType) -> Framework:
    rows: list[Any] = []
    for name, _ in _dtypes.DTYPES:
        dtype = _dtypes.numpy_dtype(numpy, name)
        rows.append(_dtypes.numpy_reason(name) if dtype is None else ({"dtype": dtype}, 1))
    return Framework("numpy", (numpy.empty, rows, None))


def _jax(jax: ModuleType) -> Framework:
    def reason(name: str) -> str | None:
        if name not in _dtypes.NUMPY and name not in _dtypes.ML_DTYPES:
            return f"jax has no dtype for {name}; {_dtypes.RAW}"
        if name in ("F64", "I64", "U64") and not jax.config.jax_enable_x64:
            return f"jax would cut {name} to 32 bits; set jax_enable_x64, or {_dtypes.RAW}"
        return None

    return Framework("jax", convert=importlib.import_module("jax.dlpack").from_dlpack, reason=reason)


_MAKERS = {"torch": _torch, "numpy": _numpy, "jax": _jax}
_made: dict[str, Framework] = {}
