"""safe_open: the drop-in for safetensors.safe_open.

In host memory tensors are views of one private, writable mapping of the file, read when touched, as the original's are:
opening costs nothing and a tensor that is never touched is never read. numpy and jax get copies, as there. With
`eager=True`, and always for a GPU, the engine reads instead.
"""

from __future__ import annotations

import io
import mmap
import os
from types import ModuleType
from typing import Any, Protocol

from . import _core, _devices, _dtypes, _frameworks, _hub, _into, _slices, errors
from ._begin import identity
from ._checkpoint import Checkpoint, TensorInfo

BACKENDS = ("mmap", "pread")
SMALL_BYTES = 4 << 20


class Reader(Protocol):
    """How a file's tensors are made."""

    def whole(self, info: TensorInfo) -> Any: ...

    def part(self, info: TensorInfo, index: Any) -> Any: ...

    def all(self, checkpoint: Checkpoint) -> dict[str, Any]: ...


class safe_open:  # noqa: N801 (the original's name)
    """Opens one safetensors file lazily and returns tensors as asked.

    Args:
        filename: path of the file.
        framework: "pt", "pytorch", "torch", "np", "numpy", "jax", "flax" or "cupy".
        device: as for Checkpoint.start(); None: "cpu".
        backend: "mmap" or "pread"; "pread" is the same as eager.
        eager: read tensors through the engine, into memory of their own, instead of mapping the file.

    What the original raises as SafetensorError is a HeadraceError here (`headrace.SafetensorError` is the same
    class); a missing file is a FileNotFoundError.
    """

    def __init__(
        self,
        filename: _hub.PathLike,
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        eager: bool = False,
    ) -> None:
        if not isinstance(framework, str):
            raise TypeError(f"argument 'framework' must be a string, not {type(framework).__name__}")
        if framework not in _frameworks.NAMES:
            raise errors.make("InvalidArgument", f"framework {framework} is invalid")
        if backend not in BACKENDS:
            raise errors.make("InvalidArgument", f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        if not _hub.is_path(filename):
            raise TypeError(f"argument 'filename' must be text, bytes or an os.PathLike, not {type(filename).__name__}")
        place = _devices.name_of("cpu" if device is None else device)
        path = _hub.path_of(filename)
        if os.path.isdir(path):
            raise errors.make("NotARegularFile", f"{path} is a folder; safe_open takes one file", file=path)
        before = identity(path) if os.path.exists(path) else None
        checkpoint = Checkpoint(_core.open([os.fsencode(path)], 1, 0, 1), path)
        if [file[0] for file in checkpoint._files] != [os.fsdecode(path)]:
            message = f"{path} is an index; safe_open takes one file, headrace.open takes an index too"
            raise errors.make("NotSafetensors", message, file=path)
        chosen = _frameworks.find(framework, place)
        reader: Reader
        if eager or backend == "pread" or place != "cpu":
            reader = EagerReader(checkpoint, chosen, place)
        elif chosen.name == "torch":
            reader = TorchMapping(path, checkpoint._files[0][1])
        else:
            reader = _BufferMapping(path, chosen)
        if before != identity(path):
            raise errors.make("FileChanged", f"{path}: the file was replaced while it was opened", file=path)
        self._opened: tuple[Checkpoint, Reader] | None = checkpoint, reader

    def _open(self) -> tuple[Checkpoint, Reader]:
        if self._opened is None:
            raise errors.make("InvalidArgument", "File is closed")
        return self._opened

    def _find(self, name: str) -> tuple[Reader, TensorInfo]:
        if not isinstance(name, str):
            raise TypeError(f"argument 'name' must be a string, not {type(name).__name__}")
        checkpoint, reader = self._open()
        index = checkpoint._core.find(name)
        if index < 0:
            raise errors.make("TensorNotFound", f"File does not contain tensor {name}", tensor=name)
        return reader, checkpoint._info(index)

    def keys(self) -> list[str]:
        """The names, sorted."""
        return sorted(self.offset_keys())

    def offset_keys(self) -> list[str]:
        """The names in the order of their offsets."""
        checkpoint, _ = self._open()
        return checkpoint._core.names()

    def metadata(self) -> dict[str, str] | None:
        """The `__metadata__` of the file, or None when it has none."""
        checkpoint, _ = self._open()
        return checkpoint._core.metadata(0) or None

    def get_tensor(self, name: str) -> Any:
        """A whole tensor. Raises TensorNotFound, or Unsupported when the framework has no such dtype."""
        reader, info = self._find(name)
        return reader.whole(info)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, in the order of their offsets."""
        checkpoint, reader = self._open()
        return reader.all(checkpoint)

    def get_slice(self, name: str) -> Slice:
        """An object that reads what it is indexed with."""
        return Slice(*self._find(name))

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, exc_type: object = None, exc_value: object = None, traceback: object = None) -> None:
        self._opened = None


class Slice:
    """A tensor of a file, to be indexed; made by safe_open.get_slice().

    Indices follow the framework: with PyTorch whatever its tensors take; else integers, slices of positive step with
    negative and clamped bounds, and one ellipsis.
    """

    def __init__(self, reader: Reader, info: TensorInfo) -> None:
        self._reader = reader
        self._info = info

    def get_shape(self) -> list[int]:
        """The extents in elements of the format."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """The format's name of the dtype."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        return self._reader.part(self._info, index)


class TorchMapping:
    """One storage over the file: private, writable, read when touched. Every tensor is a view that keeps it alive."""

    def __init__(self, path: str, size: int) -> None:
        import torch

        self._torch: ModuleType = torch
        self._storage = torch.UntypedStorage.from_file(path, False, size)

    def whole(self, info: TensorInfo) -> Any:
        torch = self._torch
        dtype = _dtypes.torch_dtype(torch, info.dtype)
        if dtype is None:
            raise errors.make(
                "Unsupported",
                f"tensor '{info.name}': torch {torch.__version__} has no dtype for {info.dtype}; {_dtypes.RAW}",
                tensor=info.name,
            )
        shape = _into.packed_shape(info.name, info.dtype, info.shape)
        part = self._storage[info.offset : info.offset + info.nbytes]
        return torch.empty(0, dtype=dtype, device="cpu").set_(part, 0, shape)

    def part(self, info: TensorInfo, index: Any) -> Any:
        return self.whole(info)[index]

    def all(self, checkpoint: Checkpoint) -> dict[str, Any]:
        whole, info = self.whole, checkpoint._info
        tensors = (info(index) for index in range(len(checkpoint)))
        return {tensor.name: whole(tensor) for tensor in tensors}


class _BufferMapping:
    """numpy and jax: what is handed out is a copy of what was asked for, as in the original. Whole tensors are read
    into place, faster than copying out of a mapping; parts are copied out of one, which reads only their pages."""

    def __init__(self, path: str, framework: _frameworks.Framework) -> None:
        import numpy

        self._numpy: ModuleType = numpy
        self._framework = framework
        self._file = io.FileIO(path)
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def _dtype(self, info: TensorInfo) -> Any:
        dtype = _dtypes.numpy_dtype(self._numpy, info.dtype)
        if dtype is None:
            message = f"tensor '{info.name}': {_dtypes.numpy_reason(info.dtype)}"
            raise errors.make("Unsupported", message, tensor=info.name)
        return dtype

    def _give(self, array: Any) -> Any:
        if self._framework.name == "numpy":
            return array
        import jax.numpy

        return jax.numpy.asarray(array)

    def whole(self, info: TensorInfo) -> Any:
        array = self._numpy.empty(info.shape, self._dtype(info))
        rest, offset = memoryview(array.reshape(-1).view("u1")), info.offset
        while len(rest) > 0:
            count = os.preadv(self._file.fileno(), [rest], offset)
            if count == 0:
                size = os.fstat(self._file.fileno()).st_size
                message = (f"tensor '{info.name}' in {info.file}: the file ends at byte {size}, the tensor at "
                           f"{info.offset + info.nbytes}")
                raise errors.make("ShortRead", message, tensor=info.name, file=info.file, offset=offset)
            rest, offset = rest[count:], offset + count
        return self._give(array)

    def part(self, info: TensorInfo, index: Any) -> Any:
        cut = _slices.cut(info.shape, index)
        view = self._numpy.ndarray(info.shape, self._dtype(info), self._map, info.offset)
        array = self._numpy.empty(cut.extents, view.dtype)
        for ranges, starts in cut.parts():
            part = view[tuple(slice(*bounds) for bounds in ranges)]
            array[tuple(slice(start, start + size) for start, size in zip(starts, part.shape))] = part
        return self._give(array.reshape(cut.shape))

    def all(self, checkpoint: Checkpoint) -> dict[str, Any]:
        infos = (checkpoint._info(index) for index in range(len(checkpoint)))
        return {info.name: self.whole(info) for info in infos}


class EagerReader:
    """Reads through the engine: a small tensor on the asking thread, else with all threads."""

    def __init__(self, checkpoint: Checkpoint, framework: _frameworks.Framework, device: str) -> None:
        self._checkpoint = checkpoint
        self._options = {"framework": framework.name, "device": device}

    def whole(self, info: TensorInfo) -> Any:
        return self._read(info, None)

    def part(self, info: TensorInfo, index: Any) -> Any:
        return self._read(info, {info.name: index})

    def _read(self, info: TensorInfo, slices: dict[str, Any] | None) -> Any:
        lazy = info.nbytes < SMALL_BYTES
        return self._checkpoint.load([info.name], slices=slices, lazy=lazy, **self._options)[info.name]

    def all(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return checkpoint.load(**self._options)
