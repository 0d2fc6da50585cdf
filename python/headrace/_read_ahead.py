"""Reading ahead into the page cache, on a thread of its own, while a load cannot begin yet."""

from __future__ import annotations

import threading

from . import _core, errors

#: Of loads that are ahead of a GPU's driver, which takes a part of a second to start.
WHILE_STARTING_BYTES = 2 << 30


def start(core: _core.Checkpoint, most_bytes: int) -> None:
    """The first `most_bytes` of a checkpoint (0: as the library chooses), until a load of it starts. Does not block."""
    threading.Thread(target=_run, args=(core, most_bytes), name="headrace-ahead", daemon=True).start()


def _run(core: _core.Checkpoint, most_bytes: int) -> None:
    try:
        core.read_ahead(most_bytes)
    except errors.HeadraceError:
        return  # the load will say what is wrong
