"""Names of devices and dtypes, as fastsafetensors.st_types has them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ... import errors


class DeviceType(Enum):
    CPU = "cpu"
    CUDA = "cuda"
    GPU = "gpu"


@dataclass(frozen=True)
class Device:
    """A device; no index: the current one."""

    type: DeviceType = DeviceType.CPU
    index: int | None = None

    def as_str(self) -> str:
        return self.type.value if self.index is None else f"{self.type.value}:{self.index}"

    @classmethod
    def from_str(cls, s: str) -> Device:
        kind, colon, index = s.partition(":")
        try:
            return cls(DeviceType(kind.lower()), int(index) if colon else None)
        except ValueError:
            raise errors.make("InvalidArgument", f"device '{s}' is none of cpu, cuda, cuda:N") from None


class DType(Enum):
    """The format's dtypes; AUTO: as stored."""

    BOOL = "BOOL"
    F4 = "F4"
    F6_E2M3 = "F6_E2M3"
    F6_E3M2 = "F6_E3M2"
    U8 = "U8"
    I8 = "I8"
    F8_E5M2 = "F8_E5M2"
    F8_E4M3 = "F8_E4M3"
    F8_E8M0 = "F8_E8M0"
    F8_E4M3FNUZ = "F8_E4M3FNUZ"
    F8_E5M2FNUZ = "F8_E5M2FNUZ"
    I16 = "I16"
    U16 = "U16"
    F16 = "F16"
    BF16 = "BF16"
    I32 = "I32"
    U32 = "U32"
    F32 = "F32"
    C64 = "C64"
    F64 = "F64"
    I64 = "I64"
    U64 = "U64"
    AUTO = "AUTO"
