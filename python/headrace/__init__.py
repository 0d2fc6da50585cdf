"""headrace: safetensors checkpoints into host and GPU memory, at the speed of the slowest link.

    import headrace

    with headrace.open("model-folder") as checkpoint:
        tensors = checkpoint.load(framework="torch", device="cuda:0")

open(), load(), stream(), start() take a file, a list, a folder, an index or a hub id of the local cache; save_file()
writes what they read; safe_open() and the modules headrace.torch, headrace.numpy and headrace.jax are drop-ins for
those of the safetensors package, headrace.cupy is like them, and headrace.compat.safetensors stands in for it whole.
One INFO line a load goes to the logger "headrace". Any thread may call everything.
"""

from __future__ import annotations

from . import errors
from ._api import load, open, start, stream, verify
from ._begin import Beginning, begin
from ._checkpoint import Checkpoint, TensorInfo
from ._core import Tensor
from ._core import version as __version__
from ._job import Job, Stats
from ._options import Loader, release
from ._probe import Limits, probe, storage
from ._safe_open import safe_open
from ._save import save, save_file
from ._shuffle import Shuffle
from ._slices import Pick, Shard, pick, shard
from ._stream import Stream
from ._table import Extent, from_table
from .errors import HeadraceError

#: The same class as HeadraceError, under the name that the safetensors package has.
SafetensorError = HeadraceError

__all__ = [
    "Beginning",
    "Checkpoint",
    "Extent",
    "HeadraceError",
    "Job",
    "Limits",
    "Loader",
    "Pick",
    "SafetensorError",
    "Shard",
    "Shuffle",
    "Stats",
    "Stream",
    "Tensor",
    "TensorInfo",
    "__version__",
    "begin",
    "errors",
    "from_table",
    "load",
    "open",
    "pick",
    "probe",
    "release",
    "safe_open",
    "save",
    "save_file",
    "shard",
    "start",
    "storage",
    "stream",
    "verify",
]
