"""What the modules headrace.torch, .numpy and .jax share: load_file() and load() of the safetensors package."""

from __future__ import annotations

import os
from typing import Any

from . import _core, _hub, errors
from ._safe_open import safe_open

Filename = _hub.PathLike


def load_file(
    filename: Filename, framework: str, device: Any, backend: str, eager: bool
) -> dict[str, Any]:
    """{name: tensor} of a file, by name order of the offsets."""
    with safe_open(filename, framework, device, backend=backend, eager=eager) as file:
        return file.get_tensors()


def open_bytes(data: bytes) -> _core.Checkpoint:
    """The table of a file that is given as bytes. The library reads headers from files: it gets one that exists in
    memory only, as long as `data` but holding no more than its header."""
    header_size = 8 + int.from_bytes(data[:8], "little")
    fd = os.memfd_create("headrace", os.MFD_CLOEXEC)
    try:
        with memoryview(data) as view:
            os.write(fd, view[: min(header_size, len(view))])
        os.ftruncate(fd, len(data))
        return _core.open([b"/proc/self/fd/%d" % fd], 1, 0, 1)
    except errors.HeadraceError as error:
        error.file = None
        raise
    finally:
        os.close(fd)
