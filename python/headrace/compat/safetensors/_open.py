"""safe_open: headrace.safe_open with the arguments, the words and the exceptions of the safetensors package.

Frameworks, devices and files that ours does not take are opened by the package, whose object safe_open() then returns.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, TypeVar, Union

from ... import _frameworks, _safe_open, errors
from .. import _aside
from . import _errors

Result = TypeVar("Result")
Filename = Union[str, "os.PathLike[str]"]


class safe_open:  # noqa: N801 (the original's name)
    """Opens one safetensors file lazily and returns tensors as asked.

    Args:
        filename: path of the file.
        framework: "pt", "np", "flax" and what else the safetensors package takes.
        device: "cpu", "cuda:0", 0, ... GPUs of CUDA are read to at the speed of the link, others by the package.
        backend: "mmap" or "pread".
    """

    __slots__ = ("_arguments", "_file", "_theirs")
    _arguments: tuple[Filename, str, Any, str]
    _file: Union[_safe_open.safe_open, None]
    _theirs: Any  # the package's object, once a method was asked for that ours lacks, and then for everything

    def __new__(
        cls, filename: Filename, framework: str, device: Any = "cpu", *, backend: str = "mmap"
    ) -> safe_open:
        def ours() -> safe_open:
            self = object.__new__(cls)
            where = device_of(framework, device)
            if framework == "cupy":
                raise errors.make("InvalidArgument", "framework cupy is invalid")
            self._file = _safe_open.safe_open(filename, framework, where, backend=backend)
            self._arguments = filename, framework, device, backend
            self._theirs = None
            return self

        if isinstance(filename, bytes):
            raise TypeError("argument 'filename': 'bytes' object is not an instance of 'str'")
        return _errors.run("safe_open", ours, _errors.HEADER, filename, framework, device, backend=backend)

    def _get(self, function: Callable[[_safe_open.safe_open], Result], name: str, *arguments: str) -> Result:
        """The result of a method of our file, else of the same method of the package's."""
        if self._file is None:
            raise _errors.SafetensorError("File is closed")
        if self._theirs is not None:
            result: Result = getattr(self._theirs, name)(*arguments)
            return result
        try:
            return function(self._file)
        except errors.HeadraceError as error:
            if error.kind == "TensorNotFound":
                raise _errors.translated(error, _errors.HEADER) from error
            theirs: Result = self._aside(error, lambda file: getattr(file, name)(*arguments))
            return theirs

    def _aside(self, error: errors.HeadraceError, function: Callable[[Any], Any]) -> Any:
        """What the package's safe_open has instead of `error`."""
        original = _aside.original("safetensors", "safe_open")
        if original is None:
            raise _errors.translated(error, _errors.HEADER) from error
        result = function(self._opened_by(original))
        _aside.say("safetensors.safe_open", error)
        return result

    def _opened_by(self, original: Callable[..., Any]) -> Any:
        filename, framework, device, backend = self._arguments
        keywords = {} if backend == "mmap" else {"backend": backend}
        return _aside.call(original, (filename, framework, device), keywords)

    def __getattr__(self, name: str) -> Any:
        original = _aside.original("safetensors", "safe_open")
        if name.startswith("_") or self._file is None or not hasattr(original, name):
            raise AttributeError(f"'safe_open' object has no attribute {name!r}")
        if self._theirs is None:
            self._theirs = self._opened_by(original)
            _aside.say("safetensors.safe_open", f"headrace has no {name}()")
        return getattr(self._theirs, name)

    def keys(self) -> list[str]:
        """The names, sorted."""
        return self._get(lambda file: file.keys(), "keys")

    def offset_keys(self) -> list[str]:
        """The names in the order of their offsets."""
        return self._get(lambda file: file.offset_keys(), "offset_keys")

    def metadata(self) -> Union[dict[str, str], None]:
        """The `__metadata__` of the file, or None when it has none."""
        return self._get(lambda file: file.metadata(), "metadata")

    def get_tensor(self, name: str) -> Any:
        """A whole tensor."""
        return self._get(lambda file: file.get_tensor(checked_name(name)), "get_tensor", name)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, in the order of their offsets."""
        return self._get(lambda file: file.get_tensors(), "get_tensors")

    def get_slice(self, name: str) -> Slice:
        """An object that reads what it is indexed with."""
        return self._get(lambda file: Slice(self, name, file.get_slice(checked_name(name))), "get_slice", name)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, _exc_type: object, _exc_value: object, _traceback: object) -> None:
        self._file = None
        if self._theirs is not None:
            self._theirs.__exit__(_exc_type, _exc_value, _traceback)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("cannot pickle 'safe_open' object")


class Slice:
    """A tensor of a file, to be indexed; made by safe_open.get_slice()."""

    __slots__ = ("_file", "_name", "_slice")

    def __init__(self, file: safe_open, name: str, of_file: _safe_open.Slice) -> None:
        self._file = file
        self._name = name
        self._slice = of_file

    def get_shape(self) -> list[int]:
        """The extents in elements of the format."""
        return self._slice.get_shape()

    def get_dtype(self) -> str:
        """The format's name of the dtype."""
        return self._slice.get_dtype()

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._slice[index]
        except (errors.HeadraceError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, errors.HeadraceError) and error.kind != "InvalidArgument":
                return self._file._aside(error, lambda file: file.get_slice(self._name)[index])
            shape = self._slice.get_shape()
            raise _errors.SafetensorError(f"Error during slicing {index!r} with shape {shape}: {error}") from error

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("cannot pickle 'PySafeSlice' object")


def checked_name(name: Any) -> str:
    """Refuses a name that is no text as the package does."""
    if not isinstance(name, str):
        raise TypeError(f"argument 'name': '{type(name).__name__}' object is not an instance of 'str'")
    return name


def device_of(framework: str, device: Any) -> Any:
    """A device as headrace takes it; "cuda" is the first GPU for the package too, not PyTorch's current one.
    DeviceUnavailable for the GPUs of ROCm, which PyTorch calls "cuda" too."""
    if device is None:
        return "cpu"
    if _frameworks.NAMES.get(framework) != "torch" or device == "cpu" or str(device) == "cpu":
        return device
    torch = importlib.import_module("torch")
    if torch.version.hip is not None:
        message = f"device '{device}': torch {torch.__version__} is built for ROCm, whose GPUs headrace does not drive"
        raise errors.make("DeviceUnavailable", message)
    return device
