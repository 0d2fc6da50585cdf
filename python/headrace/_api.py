"""The functions of the package that begin at a path: open, load, stream, start, verify."""

from __future__ import annotations

import os
from typing import Any

from . import _checks, _core, _group, _hub, errors
from ._begin import take_over
from ._checkpoint import Checkpoint, TensorInfo, open_core
from ._job import Job
from ._request import Names
from ._stream import Stream


def open(
    source: _hub.Source,
    *,
    revision: str | None = None,
    strict: bool = True,
    allow_trailing: bool = False,
    threads: int = 0,
) -> Checkpoint:
    """Opens a checkpoint: reads and checks the headers of its files, and nothing else.

    Args:
        source: a .safetensors file, a list of them, a folder (whose index decides which files belong), a
            *.safetensors.index.json, or a model of the local Hugging Face cache ("org/name"). A path that exists
            wins. Nothing is downloaded.
        revision: branch, tag or commit of a hub id; None: main.
        strict: also refuse what no honest writer makes (duplicate names, NUL in names, rank over 64).
        allow_trailing: allow bytes after the last tensor.
        threads: threads that read headers of many files; 0: 8, since they mostly wait.

    Raises FileNotFound (also a FileNotFoundError) with where it looked; for bad files the exception of the kind
    (InvalidOffset, ShardMissing, NotSafetensors, ...) with .file, .tensor and .offset.
    """
    strict, allow_trailing = _checks.flag("strict", strict), _checks.flag("allow_trailing", allow_trailing)
    begun = take_over(source, revision, strict, allow_trailing)
    thread_count = _checks.number("threads=", threads, 0xFFFFFFFF)
    return Checkpoint(*(begun or open_core(source, revision, strict, allow_trailing, thread_count)))


def start(source: _hub.Source, names: Names = None, *, revision: str | None = None, **options: Any) -> Job:
    """open() and Checkpoint.start()."""
    group = options.pop("group", None)
    with _group.attending(group) as peer:
        return open(source, revision=revision).start(names, group=peer or group, **options)


def load(source: _hub.Source, names: Names = None, *, revision: str | None = None, **options: Any) -> dict[str, Any]:
    """open() and Checkpoint.load(): {name: tensor}."""
    group = options.pop("group", None)
    with _group.attending(group) as peer:
        return open(source, revision=revision).load(names, group=peer or group, **options)


def stream(source: _hub.Source, names: Names = None, *, revision: str | None = None, **options: Any) -> Stream:
    """open() and Checkpoint.stream(): (name, tensor) as they come."""
    group = options.pop("group", None)
    with _group.attending(group) as peer:
        return open(source, revision=revision).stream(names, group=peer or group, **options)


VERIFY_WINDOW_BYTES = 1 << 30
VERIFY_BLOCK_BYTES = 1 << 24
VERIFY_OPTIONS = {"device", "device_map", "loader", "window_bytes", "deadline", "progress"}


def verify(source: _hub.Source, names: Names = None, *, revision: str | None = None, **options: Any) -> int:
    """Loads tensors as load() does and compares every byte with what a plain read of the file gives.

    On a GPU the bytes are those that lie there, copied back. Returns the bytes compared. Raises what open() and load()
    raise, and IoError with the tensor and the offset of the first byte that differs. `options` are `device`,
    `device_map`, `loader`, `window_bytes`, `deadline` and `progress`.
    """
    wrong = set(options) - VERIFY_OPTIONS
    if wrong:
        raise errors.make("InvalidArgument", f"verify() takes no {min(wrong)}=: it compares whole tensors")
    options["window_bytes"] = options.get("window_bytes") or VERIFY_WINDOW_BYTES
    compared = 0
    with open(source, revision=revision) as checkpoint, checkpoint.start(names, **options) as job:
        for position in job._ready():
            info = checkpoint._info(job._request.index_of(position))
            _compare(job._load, position, info)
            compared += info.nbytes
            job._load.drop(position)
    return compared


def _compare(load: _core.Load, position: int, info: TensorInfo) -> None:
    fd = os.open(info.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for begin in range(0, info.nbytes, VERIFY_BLOCK_BYTES):
            part = load.read(position, begin, min(VERIFY_BLOCK_BYTES, info.nbytes - begin))
            plain = os.pread(fd, len(part), info.offset + begin)
            if plain != part:
                at = next((i for i, (a, b) in enumerate(zip(plain, part)) if a != b), min(len(plain), len(part)))
                offset = info.offset + begin + at
                raise errors.make(
                    "IoError",
                    f"tensor '{info.name}' in {info.file}: byte {offset} differs between the load and a plain read",
                    tensor=info.name,
                    file=info.file,
                    offset=offset,
                )
    finally:
        os.close(fd)
