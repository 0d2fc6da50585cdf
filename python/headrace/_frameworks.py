"""How tensors come into being in each framework.

A framework with a maker (PyTorch, numpy) makes its own empty tensors, which the engine fills and which are handed out
as they are: they are ordinary tensors of the framework's allocator. JAX's arrays cannot be written to, so it imports
ours by DLPack, and so does CuPy. Without a framework the tensor is a headrace.Tensor.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import _core, _devices, _dtypes, errors

NAMES = {
    "pt": "torch",
    "pytorch": "torch",
    "torch": "torch",
    "np": "numpy",
    "numpy": "numpy",
    "jax": "jax",
    "flax": "jax",
    "cupy": "cupy",
}

Scope = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Framework:
    """What a load needs to know of a framework.

    maker: (callable, row of each dtype, name of the address method), or None.
    convert: makes the framework's tensor of a headrace.Tensor, or None when nothing is to be done.
    reason: why a dtype cannot be held, or None; only for frameworks without a maker.
    capture: only on GPUs, for frameworks with a maker: called where a load starts, gives the handle of the framework's
        current stream and a context in which that stream is current, for threads that wait and allocate.
    """

    name: str
    maker: tuple[Any, ...] | None = None
    convert: Callable[[_core.Tensor], Any] | None = None
    reason: Callable[[str], str | None] | None = None
    capture: Callable[[], tuple[int, Scope]] | None = None

    def empty(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """A tensor of this shape, in the format's elements. Raises Unsupported where the framework has none."""
        if self.maker is None:
            raise errors.make("Unsupported", "it comes in several parts; 'torch' and 'numpy' make a tensor for "
                                             "them, so use one of them, or give memory by into=")
        make, rows, _ = self.maker
        row = rows[list(_dtypes.BITS).index(dtype)]
        if isinstance(row, str):
            raise errors.make("Unsupported", row)
        keywords, packed = row
        if packed > 1 and (not shape or shape[-1] % packed):
            raise errors.make("Unsupported", f"its last dimension does not fill whole bytes; {_dtypes.RAW}")
        return make((*shape[:-1], shape[-1] // packed) if packed > 1 else shape, **keywords)


NONE = Framework("none")


def find(name: str | None, device: str = "cpu") -> Framework:
    """The framework of a name ("pt", "torch", "np", "jax", ...; None: none) on a device of a resolved name. Imports it.

    Raises InvalidArgument for another name, Unsupported for a device that it has no memory on, DeviceUnavailable when
    it cannot use the device here.
    """
    chosen = canonical(name)
    if chosen is None:
        return NONE
    key = chosen, device
    if key not in _made:
        _made[key] = _MAKERS[chosen](importlib.import_module(chosen), device)
    return _made[key]


def find_all(name: str | None, devices: Iterable[str]) -> list[Framework]:
    """A framework on each of the devices of a load; they differ in their makers and captures only."""
    return [find(name, device) for device in devices]


def maker_of(frameworks: list[Framework]) -> tuple[Any, ...] | None:
    """The maker of a load: (callable, table of each device, name of the address method), or None."""
    makers = [framework.maker for framework in frameworks if framework.maker is not None]
    if not makers:
        return None
    return makers[0][0], [maker[1] for maker in makers], makers[0][2]


def capture_all(frameworks: list[Framework]) -> tuple[list[int], Scope | None]:
    """The handle of each device's current stream (0: of none), and a context in which all of them are current."""
    captured = [None if framework.capture is None else framework.capture() for framework in frameworks]
    scopes = [found[1] for found in captured if found is not None]
    streams = [0 if found is None else found[0] for found in captured]
    if len(scopes) <= 1:
        return streams, scopes[0] if scopes else None
    return streams, lambda: _entered(scopes)


def _entered(scopes: list[Scope]) -> contextlib.ExitStack:
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope())
        return stack.pop_all()


def canonical(name: str | None) -> str | None:
    """The name of a framework's module."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in NAMES:
        raise errors.make("InvalidArgument", f"framework {name!r} is none of {', '.join(NAMES)} or None")
    return NAMES[name]


def default_device(name: str | None) -> str:
    """Where a load goes that names no device."""
    if canonical(name) != "cupy":
        return "cpu"
    cupy: Any = importlib.import_module("cupy")
    return f"cuda:{cupy.cuda.runtime.getDevice()}"


def torch_stream(torch: Any, device: str) -> int:
    """The handle of PyTorch's current stream."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def _check_torch(torch: Any, device: str) -> None:
    index = _devices.index_of(device)
    if torch.version.cuda is None:
        problem = f"torch {torch.__version__} was built without CUDA; install a build with it"
    elif not torch.cuda.is_available():
        problem = f"torch {torch.__version__} finds no GPU that it can use (torch.cuda.is_available() is False)"
    elif index >= torch.cuda.device_count():
        problem = f"torch {torch.__version__} finds {torch.cuda.device_count()} GPUs"
    else:
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", "")
        return _devices.check_same(device, "torch", str(uuid))
    raise errors.make("DeviceUnavailable", f"device '{device}': {problem}; or framework=None, which needs no torch")


def _torch(torch: Any, device: str) -> Framework:
    if device != "cpu":
        _check_torch(torch, device)
    place = torch.device(device)
    rows: list[Any] = []
    for name, _ in _dtypes.DTYPES:
        dtype = _dtypes.torch_dtype(torch, name)
        if dtype is None:
            rows.append(f"torch {torch.__version__} has no dtype for {name}; {_dtypes.RAW}")
        else:
            rows.append(({"dtype": dtype, "device": place}, 2 if name == "F4" else 1))
    if device == "cpu":
        return Framework("torch", (torch.empty, rows, "data_ptr"))

    def capture() -> tuple[int, Scope]:
        stream = torch.cuda.current_stream(place)

        def scope() -> contextlib.AbstractContextManager[Any]:
            is_current = torch.cuda.current_stream(place) == stream
            return contextlib.nullcontext() if is_current else torch.cuda.stream(stream)

        return int(stream.cuda_stream), scope

    return Framework("torch", (torch.empty, rows, "data_ptr"), capture=capture)


def _numpy(numpy: ModuleType, device: str) -> Framework:
    if device != "cpu":
        raise errors.make("Unsupported", f"device '{device}': numpy holds host memory only; use device='cpu', or "
                                         "framework 'torch', 'cupy' or 'jax'")
    rows: list[Any] = []
    for name, _ in _dtypes.DTYPES:
        dtype = _dtypes.numpy_dtype(numpy, name)
        rows.append(_dtypes.numpy_reason(name) if dtype is None else ({"dtype": dtype}, 1))
    return Framework("numpy", (numpy.empty, rows, None))


def _check_jax(jax: Any, device: str) -> None:
    try:
        count = len(jax.local_devices(backend="cuda"))
    except RuntimeError as error:
        message = f"device '{device}': jax {jax.__version__} cannot use GPUs here ({error}); install jax[cuda13]"
        raise errors.make("DeviceUnavailable", message) from None
    if _devices.index_of(device) >= count:
        raise errors.make("DeviceUnavailable", f"device '{device}': jax {jax.__version__} finds {count} GPUs")


def _jax(jax: Any, device: str) -> Framework:
    if device != "cpu":
        _check_jax(jax, device)

    def reason(name: str) -> str | None:
        if name not in _dtypes.NUMPY and name not in _dtypes.ML_DTYPES:
            return f"jax has no dtype for {name}; {_dtypes.RAW}"
        if name in ("F64", "I64", "U64") and not jax.config.jax_enable_x64:
            return f"jax would cut {name} to 32 bits; set jax_enable_x64, or {_dtypes.RAW}"
        return None

    return Framework("jax", convert=importlib.import_module("jax.dlpack").from_dlpack, reason=reason)


def _cupy(cupy: Any, device: str) -> Framework:
    if device == "cpu":
        raise errors.make("Unsupported", "cupy holds GPU memory only; use device='cuda', or framework 'numpy'")
    count = cupy.cuda.runtime.getDeviceCount()
    if _devices.index_of(device) >= count:
        raise errors.make("DeviceUnavailable", f"device '{device}': cupy {cupy.__version__} finds {count} GPUs")
    holds_bf16 = int(cupy.__version__.partition(".")[0]) >= 14 and importlib.util.find_spec("ml_dtypes") is not None

    def reason(name: str) -> str | None:
        if name in _dtypes.NUMPY or (name == "BF16" and holds_bf16):
            return None
        hint = "; BF16 needs cupy 14 and the package ml_dtypes" if name == "BF16" else ""
        return f"cupy {cupy.__version__} has no dtype for {name}{hint}; {_dtypes.RAW}"

    return Framework("cupy", convert=cupy.from_dlpack, reason=reason)


_MAKERS: dict[str, Callable[[Any, str], Framework]] = {"torch": _torch, "numpy": _numpy, "jax": _jax, "cupy": _cupy}
_made: dict[tuple[str, str], Framework] = {}
