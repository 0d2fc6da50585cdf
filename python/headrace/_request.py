"""What of a checkpoint is asked for: names and globs, slices and shards, dtypes, and memory to load into, resolved to
the positions and exact ranges that the engine takes. Pure but for `into`, which asks tensors for their addresses.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from . import _core, _dtypes, _frameworks, errors

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
    dtypes: dict[int, str] = field(default_factory=dict)  # of what is converted, and what was asked for by its name
    into: dict[int, tuple[Any, int, tuple[int, ...] | None]] = field(default_factory=dict)
    exports: list[Any] = field(default_factory=list)  # keeps the buffers of `into` from being resized
    device: str | None = None  # where the memory of `into` must be; None: not known yet
    stream: int | None = None  # CUDA: what the memory of `into` was used on last; None: nowhere that matters

    def index_of(self, position: int) -> int:
        return position if self.indices is None else self.indices[position]

    def dtype_codes(self) -> dict[int, int]:
        return {position: _dtypes.CODES[name] for position, name in self.dtypes.items()}


def make(
    core: _core.Checkpoint,
    names: Names = None,
    slices: Mapping[str, Any] | None = None,
    dtype: Any = None,
    into: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Request:
    """Resolves the arguments of a load. `device` is the resolved name of the one that was asked for."""
    request = Request(select(core, names), device=device)
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
        _add_dtypes(core, request, dtype if isinstance(dtype, Mapping) else {"*": dtype})
    if into is not None:
        _add_into(core, request, into)
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
    ranges = tuple(_resolve_part(part, dim, size) for dim, (part, size) in enumerate(zip(parts, shape)))
    sizes = (extent(bounds) for bounds, part in zip(ranges, parts) if isinstance(part, slice))
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
    ranges = [(0, size, 1) for size in shape]
    ranges[dim] = (start, min(start + block, shape[dim]), 1)
    return tuple(ranges), tuple(map(extent, ranges))


def extent(bounds: tuple[int, int, int]) -> int:
    """How many elements a range leaves."""
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


def _add_dtypes(core: _core.Checkpoint, request: Request, dtypes: Mapping[str, Any]) -> None:
    """`"*"` is for all of which no other entry speaks, and converts tensors of floats only."""
    general = dtypes.get("*")
    special = {key: value for key, value in dtypes.items() if key != "*"}
    named = _by_pattern(core, request, special) if special else {}
    for position, dtype in named.items():
        _add_dtype(core, request, position, dtype, named=True)
    if _dtype_name(general) is None:
        return
    for position in range(len(core) if request.indices is None else len(request.indices)):
        if position not in named:
            _add_dtype(core, request, position, general, named=False)


def _dtype_name(dtype: Any) -> str | None:
    """The format's name; None: as stored. Raises InvalidArgument."""
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return None
    name = _dtypes.name_of(dtype)
    if name is None:
        raise errors.make("InvalidArgument", f"dtype {dtype!r} is none of {', '.join(_dtypes.BITS)} and 'auto'")
    return name


def _add_dtype(core: _core.Checkpoint, request: Request, position: int, dtype: Any, named: bool) -> None:
    name, stored, *_ = core.info(request.index_of(position))
    wanted = _dtype_name(dtype)
    if wanted is None or (not named and stored not in _dtypes.FLOATS):
        return
    if not _dtypes.converts(stored, wanted):
        message = f"tensor '{name}' is stored as {stored}, which cannot be converted to {wanted}; say 'auto' for it"
        raise errors.make("Unsupported", message, tensor=name)
    request.dtypes[position] = wanted


# ------------------------------------------------------------------------------------------------------------ into


@dataclass
class Wanted:
    """A tensor that is loaded into memory of the caller's."""

    stored: str
    asked: str | None  # by dtype=
    shape: tuple[int, ...]
    dropped: tuple[int, ...] | None  # the shape, where an index drops dimensions or F4 is packed
    found: str | None = None  # what the memory holds, once it is known


def _add_into(core: _core.Checkpoint, request: Request, into: Mapping[str, Any]) -> None:
    for position, index in enumerate(request.indices or ()):
        name, stored, shape, *_ = core.info(index)
        if position in request.ranges:
            shape = tuple(map(extent, request.ranges[position]))
        try:
            target = into[name]
            wanted = Wanted(stored, request.dtypes.get(position), shape, request.shapes.get(position))
            address, strides = _address(request, target, wanted)
            if wanted.found not in (None, stored):
                request.dtypes[position] = wanted.found
        except errors.HeadraceError as error:
            raise errors.make(error.kind, f"tensor '{name}': {error}", tensor=name) from None
        request.into[position] = (target, address, strides)


def _address(request: Request, target: Any, wanted: Wanted) -> tuple[int, tuple[int, ...] | None]:
    """Address and strides in bytes (None: row-major) of memory to load into."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Tensor):
        return _torch_address(request, torch, target, wanted)
    if hasattr(target, "__cuda_array_interface__"):
        return _cuda_address(request, target, wanted)
    _place(request, "cpu")
    if hasattr(target, "__array_interface__"):
        return _numpy_address(target, wanted)
    return _buffer_address(request, target, wanted), None


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


def _check_target(wanted: Wanted, expected: tuple[int, ...], found: str | None, shape: tuple[int, ...]) -> None:
    """What the memory to load into is decides what its tensor becomes."""
    if wanted.asked is not None and found != wanted.asked:
        raise errors.make("InvalidArgument", f"dtype= asks for {wanted.asked} and the memory to load into is {found}")
    if found is None or not _dtypes.converts(wanted.stored, found):
        raise errors.make("Unsupported", f"it is stored as {wanted.stored}, which cannot be converted to that of the "
                                         f"memory to load into, {found}")
    if shape != expected:
        raise errors.make("InvalidArgument", f"it has shape {expected} and the memory to load into {shape}")
    wanted.found = found


def _torch_address(
    request: Request, torch: Any, target: Any, wanted: Wanted
) -> tuple[int, tuple[int, ...] | None]:
    device = str(target.device)
    if target.device.type not in ("cpu", "cuda") or target.layout is not torch.strided:
        message = f"the memory to load into is a {target.layout} tensor on {device}; it must be dense, on cpu or cuda"
        raise errors.make("DeviceUnavailable", message)
    _place(request, device, _frameworks.torch_stream(torch, device) if target.device.type == "cuda" else None)
    expected = wanted.dropped or packed_shape("", wanted.stored, wanted.shape)
    _check_target(wanted, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    if target.is_contiguous():
        return target.data_ptr(), None
    step = target.element_size()
    return target.data_ptr(), _strides(tuple(stride * step for stride in target.stride()), wanted, expected)


def _cuda_address(request: Request, target: Any, wanted: Wanted) -> tuple[int, tuple[int, ...] | None]:
    """CuPy's arrays and others that have the CUDA array interface, which does not name the device: DLPack does."""
    interface = target.__cuda_array_interface__
    if not hasattr(target, "__dlpack_device__"):
        raise errors.make("InvalidArgument", f"a {type(target).__name__} does not tell its device (__dlpack_device__)")
    address, read_only = interface["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    stream = interface.get("stream")
    _place(request, f"cuda:{int(target.__dlpack_device__()[1])}", 0 if stream == 1 else stream)
    expected = wanted.dropped or wanted.shape
    found = tuple(interface["shape"])
    _check_target(wanted, expected, _dtypes.name_of(getattr(target, "dtype", interface["typestr"])), found)
    strides = interface.get("strides")
    return address, None if strides is None else _strides(tuple(strides), wanted, expected)


def _numpy_address(target: Any, wanted: Wanted) -> tuple[int, tuple[int, ...] | None]:
    address, read_only = target.__array_interface__["data"]
    if read_only:
        raise errors.make("InvalidArgument", "the array to load into is read-only")
    if target.__array_interface__["typestr"][0] == (">" if sys.byteorder == "little" else "<"):
        raise errors.make("InvalidArgument", "the array to load into has the other byte order; tensors are loaded as "
                                             "stored, in this machine's order")
    expected = wanted.dropped or wanted.shape
    _check_target(wanted, expected, _dtypes.name_of(target.dtype), tuple(target.shape))
    if target.flags.c_contiguous:
        return address, None
    return address, _strides(tuple(target.strides), wanted, expected)


def _strides(strides: tuple[int, ...], wanted: Wanted, expected: tuple[int, ...]) -> tuple[int, ...]:
    if len(expected) != len(wanted.shape) or wanted.stored == "F4":
        raise errors.make("Unsupported", "with an index that drops a dimension, or F4, the memory to load into must be "
                                         "contiguous")
    if any(stride == 0 and size > 1 for stride, size in zip(strides, wanted.shape)):
        raise errors.make("InvalidArgument", "the memory to load into is expanded: elements share their bytes")
    return strides


def _buffer_address(request: Request, target: Any, wanted: Wanted) -> int:
    dtype = wanted.asked or wanted.stored  # a buffer does not tell
    bits = _dtypes.BITS[dtype]
    for size in wanted.shape:
        bits *= size
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
