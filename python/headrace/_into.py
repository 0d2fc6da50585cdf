"""Memory to load into: what a PyTorch tensor, an array or a buffer tells of its address, strides, device and of the
stream that may still use it, checked against the tensor that is to lie there.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

from . import _dtypes, _frameworks, errors

if TYPE_CHECKING:
    from ._request import Request


def packed_shape(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in PyTorch's elements: of F4 two make one."""
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        message = f"tensor '{name}': F4 elements come in pairs, and the last dimension of {shape} is odd"
        raise errors.make("Unsupported", message, tensor=name)
    return (*shape[:-1], shape[-1] // 2)


def address(
    request: Request, target: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None
) -> tuple[int, tuple[int, ...] | None]:
    """Address and strides in bytes (None: row-major) of memory to load into."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Tensor):
        return _torch_address(request, torch, target, dtype, shape, dropped)
    if hasattr(target, "__cuda_array_interface__"):
        return _cuda_address(request, target, dtype, shape, dropped)
    _place(request, "cpu")
    if hasattr(target, "__array_interface__"):
        return _numpy_address(target, dtype, shape, dropped)
    return _buffer_address(request, target, dtype, shape), None


def _place(request: Request, found: str, stream: int | None = None) -> None:
    """All memory of a load is on one device, and what may still use it on one stream."""
    if request.device is None:
        request.device = found
    if request.device != found:
        raise errors.make("InvalidArgument", f"the memory to load into is on {found}, but the load goes to "
                                             f"{request.device}; memory of each device wants a load of its own")
    if stream is not None and request.stream not in (None, stream):
        raise errors.make("InvalidArgument", "the memory to load into is in use on two CUDA streams; synchronize one, "
                                             "or use a load for each")
    request.stream = stream if request.stream is None else request.stream


def _check_target(dtype: str, shape: tuple[int, ...], found_dtype: str | None, found_shape: tuple[int, ...]) -> None:
    if found_dtype != dtype:
        raise errors.make("Unsupported", f"it is stored as {dtype} and the memory to load into is {found_dtype}; this "
                                         "version converts no dtypes")
    if found_shape != shape:
        raise errors.make("InvalidArgument", f"it has shape {shape} and the memory to load into {found_shape}")


def _torch_address(
    request: Request, torch: Any, target: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None
) -> tuple[int, tuple[int, ...] | None]:
    device = str(target.device)
    if target.device.type not in ("cpu", "cuda") or target.layout is not torch.strided:
        message = f"the memory to load into is a {target.layout} tensor on {device}; it must be dense, on cpu or cuda"
        raise errors.make("DeviceUnavailable", message)
    _place(request, device, _frameworks.torch_stream(torch, device) if target.device.type == "cuda" else None)
    expected = packed_shape("", dtype, shape) if dropped is None else dropped
    _check_target(dtype, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    if target.is_contiguous():
        return target.data_ptr(), None
    step = target.element_size()
    return target.data_ptr(), _strides(tuple(stride * step for stride in target.stride()), shape, dtype, expected)


def _cuda_address(
    request: Request, target: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None
) -> tuple[int, tuple[int, ...] | None]:
    """CuPy's arrays and others that have the CUDA array interface, which does not name the device: DLPack does."""
    interface = target.__cuda_array_interface__
    if not hasattr(target, "__dlpack_device__"):
        raise errors.make("InvalidArgument", f"a {type(target).__name__} does not tell its device (__dlpack_device__)")
    start, read_only = interface["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    stream = interface.get("stream")
    _place(request, f"cuda:{int(target.__dlpack_device__()[1])}", 0 if stream == 1 else stream)
    expected = shape if dropped is None else dropped
    found = tuple(interface["shape"])
    _check_target(dtype, expected, _dtypes.name_of(getattr(target, "dtype", interface["typestr"])), found)
    strides = interface.get("strides")
    return start, None if strides is None else _strides(tuple(strides), shape, dtype, expected)


def _numpy_address(
    target: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None
) -> tuple[int, tuple[int, ...] | None]:
    start, read_only = target.__array_interface__["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    if target.__array_interface__["typestr"][0] == (">" if sys.byteorder == "little" else "<"):
        raise errors.make("InvalidArgument", "the array to load into has the other byte order; tensors are loaded as "
                                             "stored, in this machine's order")
    expected = shape if dropped is None else dropped
    _check_target(dtype, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    if target.flags.c_contiguous:
        return start, None
    return start, _strides(tuple(target.strides), shape, dtype, expected)


def _strides(
    strides: tuple[int, ...], shape: tuple[int, ...], dtype: str, expected: tuple[int, ...]
) -> tuple[int, ...]:
    if len(expected) != len(shape) or dtype == "F4":
        raise errors.make("Unsupported", "with an index that drops a dimension, or F4, the memory to load into must be "
                                         "contiguous")
    if any(stride == 0 and extent > 1 for stride, extent in zip(strides, shape)):
        raise errors.make("InvalidArgument", "the memory to load into is expanded: elements share their bytes")
    return strides


def _buffer_address(request: Request, target: Any, dtype: str, shape: tuple[int, ...]) -> int:
    bits = _dtypes.BITS[dtype]
    for extent in shape:
        bits *= extent
    try:
        view = memoryview(target)
    except TypeError:
        raise errors.make("InvalidArgument", "what to load into is a torch tensor, a numpy or cupy array or a writable "
                                             f"buffer, not {type(target).__name__}") from None
    if view.readonly or not view.c_contiguous:
        found = "read-only" if view.readonly else "not contiguous"
        raise errors.make("InvalidArgument", f"the buffer to load into is {found}")
    if view.nbytes != bits // 8 or view.itemsize not in (1, _dtypes.BITS[dtype] // 8):
        raise errors.make("InvalidArgument", f"a buffer to load into must hold {bits // 8} bytes, as bytes or as "
                                             f"elements of {dtype}; this one has {view.nbytes} in elements of "
                                             f"{view.itemsize}")
    if view.nbytes == 0:
        return 0
    export = (ctypes.c_char * view.nbytes).from_buffer(view)
    request.exports.append(export)
    return ctypes.addressof(export)
