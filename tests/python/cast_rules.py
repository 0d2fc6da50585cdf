"""Tensors to convert, and what PyTorch's `to()` makes of them. The numbers are small ones, on which its devices agree;
what every other one becomes is test_convert.py's matter. Nothing here knows headrace.
"""

import numpy
import pytest
import reference

torch = pytest.importorskip("torch")

TORCH = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
SHAPES = {"wide": [67, 41], "scalar": [], "empty": [3, 0, 5]}


def bytes_of(tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def tensors() -> dict[str, reference.Tensor]:
    """{"DTYPE.SHAPE": (dtype, shape, bytes)}: numbers between 0 and 100 and fractions of them."""
    random = torch.Generator().manual_seed(11)
    made = {}
    for dtype, kind in TORCH.items():
        for name, shape in SHAPES.items():
            values = torch.rand(shape, generator=random) * 100
            if dtype == "BOOL":
                values = values > 50
            elif dtype in ("F64", "C64"):
                values = torch.rand(shape, generator=random, dtype=torch.float64) * 100
            made[f"{dtype}.{name}"] = dtype, shape, bytes_of(values.to(kind))
    return made


def converted(dtype: str, shape: list[int], data: bytes, target: str) -> bytes:
    if not data:
        return b""
    return bytes_of(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(TORCH[dtype]).to(TORCH[target]))


def part(tensor: reference.Tensor, index: object) -> reference.Tensor:
    """A slice of a tensor."""
    dtype, shape, data = tensor
    size = reference.DTYPE_BITS[dtype] // 8
    cut = numpy.frombuffer(data, f"V{size}").reshape(shape)[index]
    return dtype, list(cut.shape), cut.tobytes()
