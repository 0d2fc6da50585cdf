"""What tensors, groups and devices are in PyTorch, the one framework here: wrapped tensors, which some methods of
fastsafetensors give, and the group that a loader has as `pg`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import torch

from ... import _dtypes, errors
from .st_types import Device, DeviceType, DType

DTypeLike = Union[DType, torch.dtype, str, None]
DeviceLike = Union[Device, torch.device, str, None]
FRAMEWORKS = ("pytorch", "pt", "torch")


def check_framework(name: str) -> None:
    if name not in FRAMEWORKS:
        raise errors.make("Unsupported", f"framework '{name}': tensors are PyTorch's here ('pytorch' or 'pt')")


def device_of(device: Any) -> Device:
    """A device of any spelling: text, torch.device, Device."""
    if isinstance(device, Device):
        return device
    place = torch.device(device)
    if place.type not in ("cpu", "cuda"):
        raise errors.make("InvalidArgument", f"device '{place}' is neither cpu nor cuda")
    return Device(DeviceType(place.type), place.index)


def place_of(device: Device) -> str:
    """The device by the name that the engine takes: without an index PyTorch's current one."""
    if device.type is DeviceType.CPU:
        return "cpu"
    return f"cuda:{torch.cuda.current_device() if device.index is None else device.index}"


def torch_dtype_of(dtype: DTypeLike) -> torch.dtype | None:
    """PyTorch's dtype; None: as stored."""
    if dtype is None or dtype is DType.AUTO or isinstance(dtype, torch.dtype):
        return dtype if isinstance(dtype, torch.dtype) else None
    name = dtype.value if isinstance(dtype, DType) else dtype
    found: torch.dtype | None = _dtypes.torch_dtype(torch, _dtypes.name_of(name) or "")
    if found is None:
        raise errors.make("Unsupported", f"torch {torch.__version__} has no dtype for '{name}'")
    return found


def converted(tensor: torch.Tensor, device: DeviceLike, dtype: DTypeLike) -> torch.Tensor:
    """The tensor where and as what it is wanted; itself where it is so already."""
    place = place_of(device_of(device)) if device is not None else None
    return tensor.to(device=place, dtype=torch_dtype_of(dtype))


def concatenated(tensors: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Tensors of one dtype in one, by their bytes where PyTorch joins no such dtype."""
    dtype = tensors[0].dtype
    if dtype.itemsize == 1 and len({tensor.dtype for tensor in tensors}) == 1:
        return torch.cat([tensor.view(torch.uint8) for tensor in tensors], dim).view(dtype)
    return torch.cat(tensors, dim)


@dataclass
class TensorBase:
    """A tensor that is wrapped: get_raw() is the framework's own."""

    device: Device
    dtype: DType

    def get_raw(self) -> Any:
        raise NotImplementedError


@dataclass
class TorchTensor(TensorBase):
    real_tensor: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TorchTensor:
        name = _dtypes.name_of(tensor.dtype)
        return cls(device_of(tensor.device), DType.AUTO if name is None else DType(name), tensor)

    def get_raw(self) -> torch.Tensor:
        return self.real_tensor

    def get_shape(self) -> list[int]:
        """In elements of the format: of F4 two are one of PyTorch's."""
        shape = list(self.real_tensor.shape)
        if self.dtype is DType.F4:
            shape[-1] *= 2
        return shape

    def get_nbytes(self) -> int:
        return self.real_tensor.nbytes

    def to(self, device: DeviceLike = None, dtype: DTypeLike = DType.AUTO) -> TorchTensor:
        return TorchTensor.of(converted(self.real_tensor, device, dtype))

    def clone(self) -> TorchTensor:
        return TorchTensor.of(self.real_tensor.clone())

    def detach(self) -> TorchTensor:
        return TorchTensor.of(self.real_tensor.detach())

    def contiguous(self) -> TorchTensor:
        return TorchTensor.of(self.real_tensor.contiguous())

    def view(self, dtype: DTypeLike) -> TorchTensor:
        return TorchTensor.of(self.real_tensor.view(torch_dtype_of(dtype) or self.real_tensor.dtype))

    def reshape(self, shape: list[int]) -> TorchTensor:
        return TorchTensor.of(self.real_tensor.reshape(shape))

    def __getitem__(self, index: Any) -> TorchTensor:
        return TorchTensor.of(self.real_tensor[index])

    def data_ptr(self) -> int:
        return self.real_tensor.data_ptr()


class TorchProcessGroup:
    """A group of ranks, or this process alone where `real_pg` is None."""

    def __init__(self, pg: Any) -> None:
        if pg is not None and not hasattr(pg, "size"):
            text = f"pg is a torch.distributed.ProcessGroup, SingleGroup() or None, not {pg!r}"
            raise errors.make("InvalidArgument", text)
        self.real_pg = None if pg is None or pg.size() == 1 else pg

    def size(self) -> int:
        return 1 if self.real_pg is None else int(self.real_pg.size())

    def rank(self) -> int:
        return 0 if self.real_pg is None else int(self.real_pg.rank())
