"""serialize, serialize_file, deserialize and TensorSpec: the functions beneath those of the frameworks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from ... import _dtypes, _files, _save, errors
from .. import _aside
from . import _errors

Metadata = Union[Mapping[str, str], None]


class _OwnSpec:
    """A tensor for serialize(): where its bytes are. `shape` counts elements of the format; of float4_e2m1fn_x2, which
    is two of them, the framework's shape is taken and its last dimension doubled."""

    __slots__ = ("_data_len", "_data_ptr", "_dtype", "_shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        code = _dtypes.ALIASES.get(dtype)
        if code is None:
            supported = ", ".join(_dtypes.TORCH.values())
            raise _errors.SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {supported}')
        self._dtype = code
        self._shape = [int(extent) for extent in shape]
        if code == "F4" and self._shape:
            self._shape[-1] *= 2
        self._data_ptr = data_ptr
        self._data_len = data_len

    @property
    def dtype(self) -> str:
        """The format's name of the dtype."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """The extents in elements of the format."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """How many bytes there are."""
        return self._data_len

    def __repr__(self) -> str:
        where = f"data_ptr={self._data_ptr}, data_len={self._data_len}"
        return f"TensorSpec(dtype='{self._dtype}', shape={self._shape}, {where})"


_OwnSpec.__name__ = _OwnSpec.__qualname__ = "TensorSpec"

TensorSpec: Any = _aside.original("safetensors", "TensorSpec") or _OwnSpec


def serialize(tensor_dict: Mapping[str, Any], metadata: Metadata = None) -> bytes:
    """The bytes of a file with these tensors, which are TensorSpecs whose memory stays alive meanwhile."""

    def ours() -> bytes:
        return bytes(_write(None, tensor_dict, metadata))

    return _errors.run("serialize", ours, _errors.WRITE, tensor_dict, metadata)


def serialize_file(
    tensor_dict: Mapping[str, Any], filename: Union[str, os.PathLike[str]], metadata: Metadata = None
) -> None:
    """Writes a file with these tensors, as serialize()."""

    def ours() -> None:
        _write(os.fsencode(filename), tensor_dict, metadata)

    _errors.run("serialize_file", ours, _errors.WRITE, tensor_dict, filename, metadata)


def _write(path: Union[bytes, None], tensor_dict: Mapping[str, Any], metadata: Metadata) -> Any:
    _errors.metadata_of(metadata)
    if not isinstance(tensor_dict, Mapping):
        raise TypeError(f"argument 'tensor_dict': '{type(tensor_dict).__name__}' object is not an instance of 'dict'")
    for spec in tensor_dict.values():
        if not isinstance(spec, (TensorSpec, _OwnSpec)):
            kind = type(spec).__name__
            if isinstance(spec, Mapping) and TensorSpec is _OwnSpec:
                raise errors.make("Unsupported", "tensors as dicts are for versions of safetensors before 0.8")
            raise TypeError(f"argument 'tensor_dict': '{kind}' object is not an instance of 'TensorSpec'")
    sources = {name: _source(name, spec) for name, spec in tensor_dict.items()}
    return _save._write(path, sources, metadata, None, 0, 0, True)


def _source(name: str, spec: Any) -> _save.Source:
    source = _save.Source(spec.dtype, tuple(spec.shape), spec.data_ptr, spec.data_len, "cpu", spec)
    return _save.checked(name, source)


def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    """(name, {"dtype", "shape", "data"}) of every tensor of a file that is given as bytes, by name order of offsets."""
    data = bytes
    if type(data).__name__ != "bytes":
        raise TypeError(f"argument 'bytes': '{type(data).__name__}' object is not an instance of 'bytes'")

    def ours() -> list[tuple[str, dict[str, Any]]]:
        core, view = _files.open_bytes(data), memoryview(data)
        found = []
        for index, name in enumerate(core.names()):
            _, dtype, shape, _, offset, nbytes = core.info(index)
            part = bytearray(view[offset : offset + nbytes])
            found.append((name, {"shape": list(shape), "dtype": dtype, "data": part}))
        return found

    return _errors.run("deserialize", ours, _errors.BYTES, data)
