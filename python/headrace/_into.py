"""Memory to load into: what a PyTorch tensor, an array or a buffer tells of its address, strides, device and of the
stream that may still use it, checked against the tensor that is to lie there.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

from . import _dtypes, _frameworks, errors


class Wanted(NamedTuple):
    """What is to lie in memory to load into."""

    stored: str  # its dtype
    asked: str | None  # the dtype that was asked for; None: that of the memory counts
    shape: tuple[int, ...]  # of the elements to load
    dropped: tuple[int, ...] | None  # the memory's, where an index drops dimensions


class Target(NamedTuple):
    """Memory to load into."""

    address: int
    dtype: str
    strides: tuple[int, ...] | None  # bytes; None: row-major
    device: str = "cpu"
    stream: int | None = None  # CUDA: what the memory was used on last; None: nowhere that matters


def packed_shape(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in PyTorch's elements: of F4 two make one."""
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        message = f"tensor '{name}': F4 elements come in pairs, and the last dimension of {shape} is odd"
        raise errors.make("Unsupported", message, tensor=name)
    return (*shape[:-1], shape[-1] // 2)


def target(memory: Any, wanted: Wanted, exports: list[Any]) -> Target:
    """What memory to load into tells of itself; what keeps a buffer in its place comes into `exports`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(memory, torch.Tensor):
        return _torch_target(torch, memory, wanted)
    if hasattr(memory, "__cuda_array_interface__"):
        return _cuda_target(memory, wanted)
    if hasattr(memory, "__array_interface__"):
        return _numpy_target(memory, wanted)
    return _buffer_target(memory, wanted, exports)


def _check_target(wanted: Wanted, expected: tuple[int, ...], found: str | None, shape: tuple[int, ...]) -> str:
    """The dtype that the memory holds, which is what the tensor becomes. Raises InvalidArgument, Unsupported."""
    if wanted.asked is not None and found != wanted.asked:
        raise errors.make("InvalidArgument", f"dtype= asks for {wanted.asked} and the memory to load into is {found}")
    if found is None:
        raise errors.make("Unsupported", f"it is stored as {wanted.stored}, and the memory to load into has a dtype "
                                         "that the format lacks")
    if not _dtypes.converts(wanted.stored, found):
        raise errors.make("Unsupported", f"it is stored as {wanted.stored}, which cannot be converted to that of the "
                                         f"memory to load into, {found}")
    if shape != expected:
        raise errors.make("InvalidArgument", f"it has shape {expected} and the memory to load into {shape}")
    return found


def lack_of_memory(torch: Any, tensor: Any) -> str | None:
    """Why the storage of a PyTorch tensor does not hold what the tensor spans, and what to do: of meta and fake
    tensors, of wrappers around others, of a storage that was made smaller, as FSDP does. None: it does."""
    if tensor.layout is not torch.strided:
        return f"is a {tensor.layout} tensor; it must be dense"
    if tensor.numel() == 0:
        return None
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    where = f"is a {type(tensor).__name__} of {tuple(tensor.shape)} that spans {needed} bytes of its storage, which"
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        return f"{where} is on meta and has none: make it real before (torch.empty_like, to_empty())"
    if storage.nbytes() < needed:
        return f"{where} has {storage.nbytes()}: resize the storage before"
    return f"{where} has no address: take the tensors that it is made of" if tensor.data_ptr() == 0 else None


def check_memory(torch: Any, tensor: Any) -> None:
    """Raises InvalidArgument where memory to load into is not there."""
    reason = lack_of_memory(torch, tensor)
    if reason is not None:
        raise errors.make("InvalidArgument", f"the memory to load into {reason}")


def _check_torch(torch: Any, tensor: Any) -> None:
    """What of a dense tensor on cpu or cuda can be loaded into."""
    check_memory(torch, tensor)
    if tensor.is_conj() or tensor.is_neg():
        what, how = ("conjugated", "conj") if tensor.is_conj() else ("negated", "neg")
        message = (f"the memory to load into is a {what} view (.is_{how}()), whose memory holds other values than it "
                   f"shows: load into the tensor that it is a view of, or into its .resolve_{how}(), a copy")
        raise errors.make("InvalidArgument", message)


def _torch_target(torch: Any, target: Any, wanted: Wanted) -> Target:
    if target.is_meta:
        check_memory(torch, target)
    device = str(target.device)
    if target.device.type not in ("cpu", "cuda") or target.layout is not torch.strided:
        message = f"the memory to load into is a {target.layout} tensor on {device}; it must be dense, on cpu or cuda"
        raise errors.make("DeviceUnavailable", message)
    _check_torch(torch, target)
    stream = _frameworks.torch_stream(torch, device) if target.device.type == "cuda" else None
    expected = packed_shape("", wanted.stored, wanted.shape if wanted.dropped is None else wanted.dropped)
    dtype = _check_target(wanted, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    if target.is_contiguous():
        return Target(target.data_ptr(), dtype, None, device, stream)
    step = target.element_size()
    strides = _strides(tuple(stride * step for stride in target.stride()), wanted, expected)
    return Target(target.data_ptr(), dtype, strides, device, stream)


def _cuda_target(target: Any, wanted: Wanted) -> Target:
    """CuPy's arrays and others that have the CUDA array interface, which does not name the device: DLPack does."""
    interface = target.__cuda_array_interface__
    if not hasattr(target, "__dlpack_device__"):
        raise errors.make("InvalidArgument", f"a {type(target).__name__} does not tell its device (__dlpack_device__)")
    address, read_only = interface["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    device, stream = f"cuda:{int(target.__dlpack_device__()[1])}", interface.get("stream")
    expected = wanted.shape if wanted.dropped is None else wanted.dropped
    found = tuple(interface["shape"])
    dtype = _check_target(wanted, expected, _dtypes.name_of(getattr(target, "dtype", interface["typestr"])), found)
    given = interface.get("strides")
    strides = None if given is None else _strides(tuple(given), wanted, expected)
    return Target(address, dtype, strides, device, 0 if stream == 1 else stream)


def _numpy_target(target: Any, wanted: Wanted) -> Target:
    if not hasattr(target, "dtype") or not hasattr(target, "flags"):
        kind = type(target).__name__
        raise errors.make("InvalidArgument", f"a {kind} does not tell its dtype; load into numpy.asarray() of it")
    address, read_only = target.__array_interface__["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    if target.__array_interface__["typestr"][0] == (">" if sys.byteorder == "little" else "<"):
        raise errors.make("InvalidArgument", "the array to load into has the other byte order; tensors are loaded as "
                                             "stored, in this machine's order")
    expected = wanted.shape if wanted.dropped is None else wanted.dropped
    dtype = _check_target(wanted, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    _check_bounds(target)
    if target.flags.c_contiguous:
        return Target(address, dtype, None)
    return Target(address, dtype, _strides(tuple(target.strides), wanted, expected))


def _check_bounds(array: Any) -> None:
    """Refuses an array that strides (numpy.lib.stride_tricks) put beyond the array that has the memory."""
    owner = array
    while getattr(owner, "base", None) is not None:
        owner = owner.base
    if owner is array or not hasattr(owner, "__array_interface__") or not owner.flags.forc or array.size == 0:
        return  # of memory that is not an array's nothing is known
    begin = end = array.__array_interface__["data"][0]
    for extent, stride in zip(array.shape, array.strides):
        begin += min(0, (extent - 1) * stride)
        end += max(0, (extent - 1) * stride)
    start = owner.__array_interface__["data"][0]
    if begin < start or end + array.itemsize > start + owner.nbytes:
        message = (f"the memory to load into, an array of {array.shape}, spans {end + array.itemsize - begin} bytes "
                   f"from byte {begin - start} of an array that has {owner.nbytes}")
        raise errors.make("InvalidArgument", message)


def _strides(strides: tuple[int, ...], wanted: Wanted, expected: tuple[int, ...]) -> tuple[int, ...]:
    if len(expected) != len(wanted.shape) or wanted.stored == "F4":
        raise errors.make("Unsupported", "with an index that drops a dimension, or F4, the memory to load into must be "
                                         "contiguous")
    has_elements = 0 not in wanted.shape
    if has_elements and any(stride == 0 and extent > 1 for stride, extent in zip(strides, wanted.shape)):
        raise errors.make("InvalidArgument", "the memory to load into is expanded: elements share their bytes")
    return strides


def _buffer_target(target: Any, wanted: Wanted, exports: list[Any]) -> Target:
    dtype = wanted.asked or wanted.stored  # a buffer does not tell
    bits = _dtypes.BITS[dtype]
    for extent in wanted.shape:
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
        return Target(0, dtype, None)
    export = (ctypes.c_char * view.nbytes).from_buffer(view)
    exports.append(export)
    return Target(ctypes.addressof(export), dtype, None)
