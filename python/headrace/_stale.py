"""An older checkpoint beside what is about to be written, which readers of the folder would take for the new one."""

from __future__ import annotations

import json
import os

from . import errors

SUFFIX = ".safetensors"


def check(path: str, sizes: list[int], shard_bytes: int) -> None:
    """Raises InvalidArgument where a file would lie beside an index of other files, by which a folder is read, or
    shards beside a file of the plain name, which other programs prefer to an index. `sizes` are the tensors'."""
    stem = path.removesuffix(SUFFIX)
    index = f"{stem}{SUFFIX}.index.json"
    if shard_bytes and len(sizes) > 1 and sum(sizes) > shard_bytes:
        plain = stem + SUFFIX
        if os.path.lexists(plain):
            message = (f"{plain} exists, and would lie beside the shards and their index: some readers would take the "
                       "old file, so remove it first, or write into another folder")
            raise errors.make("InvalidArgument", message, file=plain)
    elif path.endswith(SUFFIX) and (others := _named_by(index) - {os.path.basename(path)}):
        message = (f"{index} names other files ({min(others)}), which readers of the folder would take instead of "
                   f"{path}: remove it and them first, or write into another folder")
        raise errors.make("InvalidArgument", message, file=index)


def _named_by(index: str) -> set[str]:
    """The files that an index names; none where there is no index that can be read."""
    try:
        with open(index, encoding="utf-8") as file:
            names = json.load(file)["weight_map"].values()
        return {name for name in names if isinstance(name, str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
