"""The dtypes of the format and their names in each framework. Nothing is imported here: a framework's module is
handed in."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import _core

# (name, bits of an element), in the order of the library's codes.
DTYPES: list[tuple[str, int]] = _core.dtype_list()
BITS: dict[str, int] = dict(DTYPES)
CODES: dict[str, int] = {name: position + 1 for position, (name, _) in enumerate(DTYPES)}
# What a dtype for a whole load converts; integers and BOOL stay as they are, as PyTorch's and Transformers' models do.
FLOATS = {"F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}

# F4 packs two elements into a byte; PyTorch's element is the pair.
TORCH = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}

NUMPY = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}

# What numpy holds with the package ml_dtypes. F4 and F6 have an element a byte there, which is another layout.
ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}

# Spellings that `dtype=` takes, besides the format's own.
ALIASES = {name.lower(): code for table in (TORCH, NUMPY, ML_DTYPES) for code, name in table.items()}

RAW = "framework=None gives a headrace.Tensor, whose raw() is its bytes as U8 for any framework"


_known: dict[Any, str | None] = {}


def name_of(dtype: Any) -> str | None:
    """The format's name of `dtype` ("BF16", "bfloat16", torch.bfloat16, numpy.dtype(...), numpy.float16), or None."""
    try:
        if dtype not in _known:
            _known[dtype] = _name_of(dtype)
        return _known[dtype]
    except TypeError:  # lists and the like, which cannot be keys
        return None


def _name_of(dtype: Any) -> str | None:
    if isinstance(dtype, type):  # of scalars, as numpy.float16
        text = dtype.__name__.removesuffix("_")
    else:
        text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    return text.upper() if text.upper() in BITS else ALIASES.get(text.lower())


def converts(source: str, target: str) -> bool:
    """Whether elements of one dtype can be made into those of another, or are of it already."""
    return source == target or _core.dtype_converts(CODES[source], CODES[target])


def casts(source: str, target: str) -> bool:
    """Whether a load makes the same of it as PyTorch's cast does, bit for bit."""
    return source == target or {source, target} <= {"F32", "F16", "BF16"}


def torch_dtype(torch: ModuleType, name: str) -> Any:
    """torch's dtype, or None when this version of torch has none."""
    return getattr(torch, TORCH.get(name, ""), None)


def numpy_dtype(numpy: ModuleType, name: str) -> Any:
    """numpy's dtype, by ml_dtypes where needed, or None when there is none."""
    if name in NUMPY:
        return numpy.dtype(NUMPY[name])
    try:
        import ml_dtypes
    except ImportError:
        return None
    kind = getattr(ml_dtypes, ML_DTYPES.get(name, ""), None)
    return None if kind is None else numpy.dtype(kind)


def numpy_reason(name: str) -> str:
    """Why numpy has no dtype for `name`, and what to do."""
    if name in ML_DTYPES:
        return f"numpy has no dtype for {name} without the package ml_dtypes; install it, or {RAW}"
    return f"numpy has no dtype for {name}; {RAW}"
