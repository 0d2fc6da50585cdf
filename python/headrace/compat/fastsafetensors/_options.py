"""Options that have no meaning for this engine: each is named once in a process, in one warning for a call's options.
And the engine's loader for those that have one.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

from ..._options import Loader

BBUF_SIZE_KB = 16 * 1024  # the original's defaults
MAX_THREADS = 16
MAX_COPY_BLOCK_SIZE = 16 << 30
BROADCAST_RUN_BYTES = 16 << 20
BROADCAST_RUN_TENSORS = 64
CHUNK_BYTES = 4 << 20  # the engine's default; its staging holds one at least

_named: set[str] = set()


def ignored(where: str, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Warns of the options that are `given` and are not as by default, or have none."""
    names = [name for name, value in given.items()
             if (name not in defaults or value != defaults[name]) and name not in _named]
    if names:
        _named.update(names)
        warnings.warn(f"{where}: {', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect with headrace",
                      stacklevel=3)


def engine(bbuf_size_kb: int, max_threads: int, nogds: bool, set_numa: bool, debug_log: bool) -> Loader:
    """A loader by the original's options; what is as by default is left to the engine."""
    if debug_log:
        logger = logging.getLogger("headrace")
        logger.setLevel(logging.DEBUG)
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler())
    asked_gds = os.environ.get("HEADRACE_ROUTE") == "gds"
    return Loader(
        threads=None if max_threads == MAX_THREADS else max(1, max_threads),
        staging_bytes=None if bbuf_size_kb == BBUF_SIZE_KB else max(CHUNK_BYTES, bbuf_size_kb * 1024),
        route="auto" if nogds and asked_gds else None,
        numa=set_numa,
    )
