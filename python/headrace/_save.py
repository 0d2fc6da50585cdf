"""save_file() and save(): tensors of any framework to what the extension writes: names, dtypes, shapes, addresses.

Nothing is imported here but what a tensor's own framework has imported already. A tensor's memory is read where it is,
on a GPU too; only what does not lie in row-major order is copied before.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from . import _checks, _core, _devices, _dtypes, _hub, _into, _shared, _stale, errors

_CODES = {name: number for number, (name, _) in enumerate(_dtypes.DTYPES, start=1)}

# What the letters of the buffer protocol are, by their width.
_LETTERS = {"?": "BOOL", "b": "I", "h": "I", "i": "I", "l": "I", "q": "I", "B": "U", "c": "U", "H": "U", "I": "U",
            "L": "U", "Q": "U", "e": "F", "f": "F", "d": "F"}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where a tensor's bytes are: `data` is an address or an object with a buffer, `keep` what must live meanwhile."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    nbytes: int
    device: str
    keep: Any


def save_file(
    tensors: Mapping[str, Any],
    path: _hub.PathLike,
    metadata: Mapping[str, str] | None = None,
    *,
    align: int | None = None,
    shard_size: Union[int, str, None] = None,
    threads: int = 0,
    sync: bool = True,
) -> None:
    """Writes tensors into a safetensors file: what the safetensors package writes, byte for byte.

    The file comes into being under another name in the same folder, is brought to the storage, and is renamed; whoever
    has the old one open or mapped keeps it, and after an error nothing is left. Permissions are those of the file that
    is replaced, or what the umask says. The interpreter lock is not held while writing.

    Args:
        tensors: {name: tensor}; tensors of PyTorch (also on GPUs, from where they are copied piece by piece), numpy,
            JAX, CuPy, headrace.Tensor, and what has the buffer protocol or, in host memory, DLPack.
        path: of the file.
        metadata: {text: text}, kept in this order.
        align: the data section and every tensor whose size is a multiple of this begin on a multiple of it; a power of
            two from 8 to 1 MiB, best 4096. Readers need not know.
        shard_size: most bytes of tensors in a file, a number or "5GB": tensors fill NAME-00001-of-0000N.safetensors in
            their order, and NAME.safetensors.index.json says where they are. If one file is enough, it is `path`.
        threads: that write; 0: the cores that may be used, at most 8.
        sync: wait until everything is on the storage. Without, a power failure may leave an empty file.

    Raises InvalidArgument (a ValueError) for what cannot be written, and where readers of the folder would take an
    older checkpoint instead (a file beside an index of others, shards beside a file); Unsupported for a dtype that the
    format lacks, IoError (an OSError) with .file and .errno, RuntimeError for PyTorch tensors that share memory: see
    headrace.torch.save_model().
    """
    shard_bytes = size_of(shard_size)
    sources = sources_of(tensors)
    _stale.check(_hub.path_of(path), [source.nbytes for source in sources.values()], shard_bytes)
    _write(os.fsencode(path), sources, metadata, align, shard_bytes, threads, not _checks.flag("sync", sync))


def write_file(tensors: Mapping[str, Any], path: _hub.PathLike, metadata: Mapping[str, str] | None) -> None:
    """save_file() as the safetensors package does it: whatever lies beside, and without waiting for the storage."""
    _write(os.fsencode(_hub.path_of(path)), sources_of(tensors), metadata, None, 0, 0, True)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None, *, align: int | None = None) -> bytes:
    """The bytes that save_file() would write."""
    return bytes(_write(None, sources_of(tensors), metadata, align, 0, 0, False))


def _write(
    path: bytes | None,
    sources: dict[str, Source],
    metadata: Mapping[str, str] | None,
    align: int | None,
    shard_bytes: int,
    threads: int,
    no_sync: bool,
) -> Any:
    devices = list(dict.fromkeys(source.device for source in sources.values()))
    rows = [
        (name, _CODES[source.dtype], source.shape, source.data, source.nbytes, devices.index(source.device))
        for name, source in sources.items()
    ]
    align = _checks.number("align=", 0 if align is None else align, 1 << 63)
    threads = _checks.number("threads=", threads, 0xFFFFFFFF)
    return _core.write(path, rows, _pairs(metadata), devices, align, shard_bytes, threads, int(no_sync))


def _pairs(metadata: Mapping[str, str] | None) -> list[tuple[str, str]] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise errors.make("InvalidArgument", f"metadata is a dict of text, or None, not {metadata!r}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            message = f"metadata[{key!r}] is {value!r}; keys and values must be str, as the format holds nothing else"
            raise errors.make("InvalidArgument", message)
    return list(metadata.items())


#: As the command's options, in any case.
_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024), ("", 1024))
}


def size_of(size: Union[int, str, None]) -> int:
    """Bytes of a number or a text ("5GB", "512MiB"); 0 for None."""
    if size is None:
        return 0
    if isinstance(size, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", size.strip().lower())
        if match is not None and match[2] in _UNITS:
            size = int(float(match[1]) * _UNITS[match[2]])
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 1 << 63:
        message = f"shard_size= is {size!r}; it must be a number of bytes over 0, or a text like '5GB' or '512MiB'"
        raise errors.make("InvalidArgument", message)
    return size


# ------------------------------------------------------------------------------------------ where bytes are


def sources_of(tensors: Mapping[str, Any]) -> dict[str, Source]:
    """What is written of each tensor, once the work on GPUs that makes them is done."""
    if not isinstance(tensors, Mapping):
        raise errors.make("InvalidArgument", f"tensors must be a dict of names and tensors, not {type(tensors)}")
    torch = sys.modules.get("torch")
    if torch is not None:
        of_torch = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        _shared.check(torch, of_torch)
    sources = {_checked_name(name): _source(name, tensor) for name, tensor in tensors.items()}
    _wait(sources)
    return sources


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise errors.make("InvalidArgument", f"a tensor's name must be str, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise errors.make("InvalidArgument", f"{name!r} cannot be a tensor's name: {error.reason}") from None
    return name


def _source(name: str, tensor: Any) -> Source:
    return checked(name, _find_source(name, tensor))


def checked(name: str, source: Source) -> Source:
    """Refuses a source whose bytes are not those of its shape."""
    bits = math.prod(source.shape) * _dtypes.BITS[source.dtype]
    if bits % 8 == 0 and bits // 8 != source.nbytes:
        message = f"tensor '{name}': {source.nbytes} bytes, but {source.dtype} of {source.shape} has {bits // 8}"
        raise errors.make("InvalidArgument", message, tensor=name)
    return source


def _find_source(name: str, tensor: Any) -> Source:
    if isinstance(tensor, _core.Tensor):
        return Source(tensor.dtype, tensor.shape, tensor.data_ptr(), tensor.nbytes, tensor.device, tensor)
    for module, kind, make in (("torch", "Tensor", _of_torch), ("numpy", "ndarray", _of_numpy),
                               ("numpy", "generic", _of_numpy), ("jax", "Array", _of_jax)):  # fmt: skip
        if module in sys.modules and isinstance(tensor, getattr(sys.modules[module], kind)):
            return make(name, tensor)
    if hasattr(tensor, "__cuda_array_interface__"):
        return _of_cuda(name, tensor)
    try:
        view = memoryview(tensor)
    except TypeError:
        return _of_dlpack(name, tensor)
    return _of_buffer(name, view)


def _dtype_of(name: str, dtype: Any) -> str:
    found = _dtypes.name_of(dtype)
    if found is None:
        raise errors.make("Unsupported", f"tensor '{name}': the format has no dtype for {dtype}", tensor=name)
    return found


def _of_torch(name: str, tensor: Any) -> Source:
    torch = sys.modules["torch"]
    if tensor.device.type not in ("cpu", "cuda"):
        message = f"tensor '{name}' is on device '{tensor.device}', which cannot be read; move it to the cpu"
        raise errors.make("Unsupported", message, tensor=name)
    reason = _into.lack_of_memory(torch, tensor)
    if reason is not None:
        raise errors.make("InvalidArgument", f"tensor '{name}' {reason}", tensor=name)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dtype = _dtype_of(name, tensor.dtype)
    shape = tuple(tensor.shape)
    if dtype == "F4" and shape:
        shape = (*shape[:-1], 2 * shape[-1])
    device = _devices.name_of(torch.device(tensor.device))
    return Source(dtype, shape, tensor.data_ptr(), tensor.numel() * tensor.element_size(), device, tensor)


def _of_numpy(name: str, array: Any) -> Source:
    """What numpy's buffers cannot describe (the dtypes of ml_dtypes) its addresses can."""
    numpy = sys.modules["numpy"]
    dtype = _dtype_of(name, array.dtype)
    compact = numpy.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return Source(dtype, tuple(array.shape), compact.ctypes.data, compact.nbytes, "cpu", compact)


def _of_jax(name: str, array: Any) -> Source:
    devices = list(array.devices())
    if len(devices) == 1 and devices[0].platform in ("gpu", "cuda"):
        dtype = _dtype_of(name, array.dtype)
        device = _devices.name_of(f"cuda:{devices[0].local_hardware_id}")
        array.block_until_ready()
        return Source(dtype, tuple(array.shape), array.unsafe_buffer_pointer(), array.nbytes, device, array)
    import numpy

    return _of_numpy(name, numpy.asarray(array))


def _of_cuda(name: str, array: Any) -> Source:
    """CuPy's arrays, and others with its interface."""
    facts = array.__cuda_array_interface__
    dtype = _dtype_of(name, getattr(array, "dtype", facts["typestr"]))
    shape = tuple(facts["shape"])
    nbytes = math.prod(shape) * _dtypes.BITS[dtype] // 8
    strides, expected = facts.get("strides"), _dtypes.BITS[dtype] // 8
    for extent, stride in reversed(list(zip(shape, strides or ()))):
        if stride != expected and extent > 1 and nbytes > 0:
            message = f"tensor '{name}' is not contiguous; make it so on its device before (cupy.ascontiguousarray)"
            raise errors.make("InvalidArgument", message, tensor=name)
        expected *= extent
    return Source(dtype, shape, facts["data"][0], nbytes, f"cuda:{array.__dlpack_device__()[1]}", array)


def _of_buffer(name: str, view: memoryview) -> Source:
    letter = view.format.lstrip("@=<") if view.format else "B"
    kind = _LETTERS.get(letter)
    if kind is None:
        message = f"tensor '{name}': the format has no dtype for a buffer of '{view.format}'"
        raise errors.make("Unsupported", message, tensor=name)
    dtype = kind if kind == "BOOL" else f"{kind}{8 * view.itemsize}"
    data: Any = view if view.c_contiguous else view.tobytes()
    return Source(dtype, tuple(view.shape or ()), data, view.nbytes, "cpu", data)


def _of_dlpack(name: str, tensor: Any) -> Source:
    if hasattr(tensor, "__dlpack__") and tensor.__dlpack_device__()[0] == 1:
        import numpy

        return _of_numpy(name, numpy.from_dlpack(tensor))
    message = f"tensor '{name}' is {type(tensor)}, which neither has a buffer nor DLPack in host memory"
    raise errors.make("InvalidArgument", message, tensor=name)


def _wait(sources: dict[str, Source]) -> None:
    """Bytes are read by streams of the library's own, which know nothing of what others still do."""
    kept = [source.keep for source in sources.values() if source.device != "cpu"]
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None:
        for device in {tensor.device for tensor in kept if isinstance(tensor, torch.Tensor)}:
            torch.cuda.current_stream(device).synchronize()
    if cupy is not None and any(isinstance(array, cupy.ndarray) for array in kept):
        cupy.cuda.get_current_stream().synchronize()
