"""What of a checkpoint is asked for: names and globs, slices and shards, dtypes, and memory to load into, resolved to
the positions and exact ranges that the engine takes. Pure but for `into`, which asks tensors for their addresses.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

from . import _core, _dtypes, _frameworks, _places, errors

Ranges = tuple[tuple[int, int, int], ...]
Names = Union[str, Iterable[str], None]


@dataclass(frozen=True)
class Shard:
    """The block of one dimension that belongs to a rank; see shard()."""

    dim: int
    rank: int
    world: int


def shard(dim: int, rank: int, world: int) -> Shard:
    """The block of dimension `dim` that belongs to `rank` of `world`, for `slices=`.

    Blocks have ceil(extent / world) elements; the last ones may be shorter or empty. `dim` may be negative.
    """
    if not 0 <= rank < world:
        raise errors.make("InvalidArgument", f"rank {rank} is not between 0 and {world - 1} (world {world})")
    return Shard(dim, rank, world)


@dataclass
class Request:
    """What _core.Load takes. Positions count the items of the request."""

    indices: list[int] | None = None  # of tensors; None: all
    ranges: dict[int, Ranges] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    into: dict[int, tuple[Any, int, tuple[int, ...] | None]] = field(default_factory=dict)
    exports: list[Any] = field(default_factory=list)  # keeps the buffers of `into` from being resized
    devices: _places.Devices = ()  # where the tensors go; (): nobody said
    places: bytes | None = None  # by position, the index of the device; None: the first
    streams: dict[str, int] = field(default_factory=dict)  # of each GPU: what used the memory of `into` last

    def index_of(self, position: int) -> int:
        return position if self.indices is None else self.indices[position]

    def device_of(self, position: int) -> str:
        return self.devices[0 if self.places is None else self.places[position]]


def make(
    core: _core.Checkpoint,
    names: Names = None,
    slices: Mapping[str, Any] | None = None,
    dtype: Any = None,
    into: Mapping[str, Any] | None = None,
    device: str | None = None,
    device_map: Mapping[str, Any] | None = None,
) -> Request:
    """Resolves the arguments of a load. `device` is the resolved name of the one that was asked for."""
    request = Request(select(core, names), devices=() if device is None else (device,))
    if into is not None:
        given = [_find(core, name) for name in into]
        wanted = None if request.indices is None else set(request.indices)
        left_out = [name for name, index in zip(into, given) if wanted is not None and index not in wanted]
        if left_out:
            raise errors.make("InvalidArgument", f"into= has '{left_out[0]}', which names= does not ask for",
                              tensor=left_out[0])
        request.indices = sorted(given)
    if slices:
        _add_slices(core, request, slices)
    if dtype is not None:
        _check_dtypes(core, request, dtype if isinstance(dtype, Mapping) else {"*": dtype})
    places = None if device_map is None else _places.resolve(core, request.indices, device_map, device)
    if into is not None:
        places = _add_into(core, request, into, [device] * len(into) if places is None else places)
    if places:
        request.devices, request.places = _places.settle(places)
    return request


def _find(core: _core.Checkpoint, name: str) -> int:
    index = core.find(name)
    if index < 0:
        raise errors.make("TensorNotFound", f"no tensor is named '{name}'", tensor=name)
    return index


def match(core: _core.Checkpoint, pattern: str) -> list[int]:
    """Indices of the tensor of this name, or of those that the glob matches; none is an error."""
    index = core.find(pattern)
    if index >= 0:
        return [index]
    if not any(character in pattern for character in "*?["):
        return [_find(core, pattern)]
    found = core.match(pattern)
    if not found:
        raise errors.make("TensorNotFound", f"no tensor's name matches '{pattern}'")
    return found


def select(core: _core.Checkpoint, names: Names) -> list[int] | None:
    """Indices in file order, each once; None for all."""
    if names is None or names == "*":
        return None
    patterns = [names] if isinstance(names, str) else names
    return sorted({index for pattern in patterns for index in match(core, pattern)})


def _by_pattern(core: _core.Checkpoint, request: Request, table: Mapping[str, Any]) -> dict[int, Any]:
    """position -> value of the first key that names or matches the tensor; an exact name goes before globs."""
    positions = None if request.indices is None else {index: at for at, index in enumerate(request.indices)}
    result: dict[int, Any] = {}
    exact = [key for key in table if core.find(key) >= 0]
    for pattern in [*exact, *(key for key in table if core.find(key) < 0)]:
        for index in [] if pattern == "*" and len(core) == 0 else match(core, pattern):
            position = index if positions is None else positions.get(index)
            if position is not None:
                result.setdefault(position, table[pattern])
    return result


# ---------------------------------------------------------------------------------------------------------- slices


def resolve_index(shape: tuple[int, ...], index: Any) -> tuple[Ranges, tuple[int, ...]]:
    """Ranges and resulting shape of `index` by numpy's rules: integers (which drop their dimension), slices of
    positive step with negative and clamped bounds, one ellipsis. Raises InvalidArgument."""
    if isinstance(index, Shard):
        return _resolve_shard(shape, index)
    parts = list(index) if isinstance(index, tuple) else [index]
    ellipses = [at for at, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise errors.make("InvalidArgument", "only one ellipsis (...) is allowed in a slice")
    given = len(parts) - len(ellipses)
    if given > len(shape):
        raise errors.make("InvalidArgument", f"{given} indices for a tensor of {len(shape)} dimensions {shape}")
    at = ellipses[0] if ellipses else len(parts)
    parts[at : at + len(ellipses)] = [slice(None)] * (len(shape) - given)
    ranges = tuple(_resolve_part(part, dim, extent) for dim, (part, extent) in enumerate(zip(parts, shape)))
    sizes = (_extent(bounds) for bounds, part in zip(ranges, parts) if isinstance(part, slice))
    return ranges, tuple(sizes)


def _resolve_part(part: Any, dim: int, extent: int) -> tuple[int, int, int]:
    try:
        if isinstance(part, slice):
            start, stop, step = part.indices(extent)
            if step < 1:
                raise errors.make("InvalidArgument", f"dimension {dim}: the step must be positive, it is {step}")
            return start, max(start, stop), step
        if isinstance(part, bool):
            raise TypeError
        number = operator.index(part)
    except errors.HeadraceError:
        raise
    except (TypeError, ValueError) as error:
        message = f"dimension {dim}: an index is an integer, a slice of positive step or ..., not {part!r}"
        raise errors.make("InvalidArgument", message) from error
    if not -extent <= number < extent:
        raise errors.make("InvalidArgument", f"dimension {dim}: index {number} is out of bounds for size {extent}")
    number %= extent
    return number, number + 1, 1


def _resolve_shard(shape: tuple[int, ...], part: Shard) -> tuple[Ranges, tuple[int, ...]]:
    dim = part.dim + len(shape) if part.dim < 0 else part.dim
    if not 0 <= dim < len(shape):
        raise errors.make("InvalidArgument", f"there is no dimension {part.dim} in shape {shape}")
    block = -(-shape[dim] // part.world)
    start = min(part.rank * block, shape[dim])
    ranges = [(0, extent, 1) for extent in shape]
    ranges[dim] = (start, min(start + block, shape[dim]), 1)
    return tuple(ranges), tuple(map(_extent, ranges))


def _extent(bounds: tuple[int, int, int]) -> int:
    start, stop, step = bounds
    return -(-(stop - start) // step)


def _add_slices(core: _core.Checkpoint, request: Request, slices: Mapping[str, Any]) -> None:
    for position, index in _by_pattern(core, request, slices).items():
        name, dtype, shape, *_ = core.info(request.index_of(position))
        try:
            ranges, sliced = resolve_index(shape, index)
        except errors.HeadraceError as error:
            raise errors.make(error.kind, f"tensor '{name}': {error}", tensor=name) from None
        request.ranges[position] = ranges
        if len(sliced) != len(shape):
            request.shapes[position] = packed_shape(name, dtype, sliced)


def packed_shape(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in PyTorch's elements: of F4 two make one."""
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        message = f"tensor '{name}': F4 elements come in pairs, and the last dimension of {shape} is odd"
        raise errors.make("Unsupported", message, tensor=name)
    return (*shape[:-1], shape[-1] // 2)


def _check_dtypes(core: _core.Checkpoint, request: Request, dtypes: Mapping[str, Any]) -> None:
    for position, dtype in _by_pattern(core, request, dtypes).items():
        name, stored, *_ = core.info(request.index_of(position))
        wanted = _dtypes.name_of(dtype)
        if wanted is None:
            raise errors.make("InvalidArgument", f"dtype {dtype!r} is none of {', '.join(_dtypes.BITS)}")
        if wanted != stored:
            raise errors.make("Unsupported", f"tensor '{name}' is stored as {stored}; this version converts no dtypes "
                                             f"(asked for: {wanted})", tensor=name)


# ------------------------------------------------------------------------------------------------------------ into


class Target(NamedTuple):
    """Memory to load into."""

    address: int
    strides: tuple[int, ...] | None  # bytes; None: row-major
    device: str = "cpu"
    stream: int | None = None  # CUDA: what the memory was used on last; None: nowhere that matters


def _add_into(
    core: _core.Checkpoint, request: Request, into: Mapping[str, Any], wanted: Sequence[str | None]
) -> list[str]:
    """Returns the device of each position, which must be the wanted one, if one is."""
    places: list[str] = []
    for position, index in enumerate(request.indices or ()):
        name, dtype, shape, *_ = core.info(index)
        if position in request.ranges:
            shape = tuple(map(_extent, request.ranges[position]))
        try:
            target = _target(request, into[name], dtype, shape, request.shapes.get(position))
            _check_place(request, target, wanted[position])
        except errors.HeadraceError as error:
            raise errors.make(error.kind, f"tensor '{name}': {error}", tensor=name) from None
        request.into[position] = (into[name], target.address, target.strides)
        places.append(target.device)
    return places


def _target(
    request: Request, memory: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None
) -> Target:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(memory, torch.Tensor):
        return _torch_target(torch, memory, dtype, shape, dropped)
    if hasattr(memory, "__cuda_array_interface__"):
        return _cuda_target(memory, dtype, shape, dropped)
    if hasattr(memory, "__array_interface__"):
        return _numpy_target(memory, dtype, shape, dropped)
    return Target(_buffer_address(request, memory, dtype, shape), None)


def _check_place(request: Request, target: Target, wanted: str | None) -> None:
    """Memory is where the load goes, if that was said, and what may still use it is one stream of each device."""
    if wanted not in (None, target.device):
        raise errors.make("InvalidArgument", f"the memory to load into is on {target.device}, but the load goes to "
                                             f"{wanted}")
    if target.stream is not None and request.streams.setdefault(target.device, target.stream) != target.stream:
        raise errors.make("InvalidArgument", f"the memory to load into is in use on two CUDA streams of "
                                             f"{target.device}; synchronize one, or use a load for each")


def _check_target(dtype: str, shape: tuple[int, ...], found_dtype: str | None, found_shape: tuple[int, ...]) -> None:
    if found_dtype != dtype:
        raise errors.make("Unsupported", f"it is stored as {dtype} and the memory to load into is {found_dtype}; this "
                                         "version converts no dtypes")
    if found_shape != shape:
        raise errors.make("InvalidArgument", f"it has shape {shape} and the memory to load into {found_shape}")


def _torch_target(
    torch: Any, target: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None
) -> Target:
    device = str(target.device)
    if target.device.type not in ("cpu", "cuda") or target.layout is not torch.strided:
        message = f"the memory to load into is a {target.layout} tensor on {device}; it must be dense, on cpu or cuda"
        raise errors.make("DeviceUnavailable", message)
    stream = _frameworks.torch_stream(torch, device) if target.device.type == "cuda" else None
    expected = dropped or (shape if dtype != "F4" else packed_shape("", dtype, shape))
    _check_target(dtype, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    if target.is_contiguous():
        return Target(target.data_ptr(), None, device, stream)
    step = target.element_size()
    strides = _strides(tuple(stride * step for stride in target.stride()), shape, dtype, expected)
    return Target(target.data_ptr(), strides, device, stream)


def _cuda_target(target: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None) -> Target:
    """CuPy's arrays and others that have the CUDA array interface, which does not name the device: DLPack does."""
    interface = target.__cuda_array_interface__
    if not hasattr(target, "__dlpack_device__"):
        raise errors.make("InvalidArgument", f"a {type(target).__name__} does not tell its device (__dlpack_device__)")
    address, read_only = interface["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    device, stream = f"cuda:{int(target.__dlpack_device__()[1])}", interface.get("stream")
    expected = dropped or shape
    found = tuple(interface["shape"])
    _check_target(dtype, expected, _dtypes.name_of(getattr(target, "dtype", interface["typestr"])), found)
    given = interface.get("strides")
    strides = None if given is None else _strides(tuple(given), shape, dtype, expected)
    return Target(address, strides, device, 0 if stream == 1 else stream)


def _numpy_target(target: Any, dtype: str, shape: tuple[int, ...], dropped: tuple[int, ...] | None) -> Target:
    address, read_only = target.__array_interface__["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    if target.__array_interface__["typestr"][0] == (">" if sys.byteorder == "little" else "<"):
        raise errors.make("InvalidArgument", "the array to load into has the other byte order; tensors are loaded as "
                                             "stored, in this machine's order")
    expected = dropped or shape
    _check_target(dtype, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    if target.flags.c_contiguous:
        return Target(address, None)
    return Target(address, _strides(tuple(target.strides), shape, dtype, expected))


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
