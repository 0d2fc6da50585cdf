"""PyTorch tensors that share memory: which do, that they are not saved twice, and which of them stand for the others.

The rules, and the words of the errors, are those of the safetensors package, since programs and their users know them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_HELP = "https://huggingface.co/docs/safetensors/torch_shared_tensors"


def check(torch: Any, tensors: Mapping[str, Any]) -> None:
    """Refuses what cannot be written as it is: ValueError for sparse tensors and for those that are not contiguous,
    RuntimeError for those that share memory."""
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support."
            " You can make it a dense tensor before saving with `.to_dense()` but be aware this might"
            " make a much larger file than needed."
        )
    failing = [names for names in groups(torch, tensors) if len(names) > 1]
    if failing:
        raise RuntimeError(
            "Some tensors share memory, this will lead to duplicate memory on disk and potential differences when"
            f" loading them again: {failing}. A potential way to correctly save your model is to use `save_model`."
            f" More information at {_HELP}"
        )
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It either means you"
                " are trying to save tensors which are reference of each other in which case it's recommended to save"
                " only the full tensors, and reslice at load time, or simply call `.contiguous()` on your tensor to"
                " pack it before saving."
            )


def groups(torch: Any, tensors: Mapping[str, Any]) -> list[set[str]]:
    """Names whose tensors overlap in one storage, and single ones; what has no memory is in none."""
    by_storage: dict[tuple[Any, int, int], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device != torch.device("meta") and _storage(tensor)[0] != 0 and _storage(tensor)[1] != 0:
            by_storage.setdefault((tensor.device, *_storage(tensor)), []).append(name)
    found: list[set[str]] = []
    for names in by_storage.values():
        found += _overlapping(tensors, names) if len(names) > 1 else [set(names)]
    return found


def _storage(tensor: Any) -> tuple[int, int]:
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # of sparse tensors and of wrappers
        return 0, 0


def _overlapping(tensors: Mapping[str, Any], names: list[str]) -> list[set[str]]:
    areas = sorted((tensors[name].data_ptr(), _end(tensors[name]), name) for name in names)
    found: list[set[str]] = []
    last_stop = 0
    for start, stop, name in areas:
        if not found or start >= last_stop:
            found.append(set())
        found[-1].add(name)
        last_stop = stop
    return found


def _end(tensor: Any) -> int:
    """Behind the last element, which strides may put anywhere."""
    if tensor.numel() == 0:
        return int(tensor.data_ptr())
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
    return int(tensor.data_ptr() + (last + 1) * tensor.element_size())


def _covers_storage(tensor: Any) -> bool:
    return bool((tensor.data_ptr(), tensor.numel() * tensor.element_size()) == _storage(tensor))


def duplicates(torch: Any, tensors: Mapping[str, Any], preferred: Iterable[str] = ()) -> dict[str, list[str]]:
    """Of each group that shares memory, the name that stands for it, and the others. It covers its whole storage, is
    one of `preferred` if possible, and of several the first by name. RuntimeError when none covers its storage."""
    dropped: dict[str, list[str]] = {}
    wanted = set(preferred)
    for names in groups(torch, tensors):
        complete = {name for name in names if _covers_storage(tensors[name])}
        if not complete:
            raise RuntimeError(
                "Error while trying to find names to remove to save state dict, but found no suitable name to keep"
                f" for saving amongst: {names}. None is covering the entire storage.Refusing to save/load the model"
                " since you could be storing much more memory than needed. Please refer to"
                f" {_HELP} for more information. Or open an issue."
            )
        kept = min(complete & wanted or complete)
        others = sorted(names - {kept})
        if others:
            dropped[kept] = others
    return dropped
