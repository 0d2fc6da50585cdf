"""fastsafetensors, read by headrace: the classes, methods and options of that package.

    from headrace.compat.fastsafetensors import SafeTensorsFileLoader, SingleGroup

Programs that cannot be edited: enable() before they import fastsafetensors. Tensors are torch's, own their memory and
outlive loader and buffer. Ranks that load together make the same calls, as with the original.
"""

from __future__ import annotations

import sys

from . import (
    auto_loader,
    common,
    config,
    ep_slice,
    file_buffer,
    frameworks,
    loader,
    parallel_loader,
    st_types,
    tgis_weights,
)
from .auto_loader import AutoLoader
from .common import SafeTensorsMetadata, SingleGroup, TensorFrame, get_device_numa_node
from .config import LoaderConfig, load_config
from .ep_slice import expert_parallel_filter, owned_expert_range
from .file_buffer import FilesBufferOnDevice
from .loader import SafeTensorsFileLoader, fastsafe_open
from .parallel_loader import BudgetInfeasibleError, ParallelLoader, PipelineParallel
from .tgis_weights import Weights

__version__ = "0.5.0"  #: of the package whose calls these are

ORIGINAL = "fastsafetensors"

_MODULES = {
    f".{module.__name__.rpartition('.')[2]}": module
    for module in (auto_loader, common, config, ep_slice, file_buffer, frameworks, loader, parallel_loader, st_types)
}
_MODULES |= {"": sys.modules[__name__], ".connectors.tgis_weights": tgis_weights}


def enable() -> None:
    """From here on `import fastsafetensors` gives this package, whether that one is installed or not. What a program
    imported from it before stays."""
    if sys.modules.get(ORIGINAL) is not _MODULES[""]:
        disable()  # its modules must not mix with these
    for name, module in _MODULES.items():
        sys.modules[ORIGINAL + name] = module


def disable() -> None:
    """`import fastsafetensors` gives that package again."""
    for name in [name for name in sys.modules if name == ORIGINAL or name.startswith(f"{ORIGINAL}.")]:
        del sys.modules[name]


__all__ = [
    "AutoLoader",
    "BudgetInfeasibleError",
    "FilesBufferOnDevice",
    "LoaderConfig",
    "ParallelLoader",
    "PipelineParallel",
    "SafeTensorsFileLoader",
    "SafeTensorsMetadata",
    "SingleGroup",
    "TensorFrame",
    "Weights",
    "disable",
    "enable",
    "expert_parallel_filter",
    "fastsafe_open",
    "get_device_numa_node",
    "load_config",
    "owned_expert_range",
]
