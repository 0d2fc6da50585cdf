"""LoaderConfig: the options of AutoLoader, from fastsafetensors.json or the file that FASTSAFETENSORS_CONFIG names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ... import errors

CONFIG_ENV_VAR = "FASTSAFETENSORS_CONFIG"
DEFAULT_CONFIG_PATH = "fastsafetensors.json"
GROUPS = ("parallel", "debug")  # sections whose entries are options like those outside of them


@dataclass
class LoaderConfig:
    """Options; a section of the file that is none of GROUPS is kept for the loader of its name."""

    loader: str = "base"
    framework: str = "pytorch"
    debug_log: bool = False
    set_numa: bool = True
    disable_cache: bool = True
    use_pipeline: bool = False
    max_concurrent_producers: int = 1
    queue_size: int = 0
    use_tqdm_on_load: bool = True
    max_batch_bytes: int | None = None
    use_chunk_budget_as_allocation_size: bool = False
    device_memory_budget: int | None = None
    _extensions: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_concurrent_producers != 1:
            text = f"max_concurrent_producers is {self.max_concurrent_producers}; it must be 1"
            raise errors.make("InvalidArgument", text)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoaderConfig:
        known = {entry.name for entry in fields(cls) if not entry.name.startswith("_")}
        options: dict[str, Any] = {}
        sections: dict[str, dict[str, Any]] = {}
        for name, value in data.items():
            if not isinstance(value, Mapping):
                options[name] = value
            elif name in GROUPS:
                options |= value
            else:
                sections[name] = dict(value)
        return cls(**{name: value for name, value in options.items() if name in known}, _extensions=sections)

    @classmethod
    def from_file(cls, path: str) -> LoaderConfig:
        with open(path) as file:
            return cls.from_dict(json.load(file))

    def get_extension_config(self, name: str) -> dict[str, Any]:
        """The section of a loader, without what is an option for all of them."""
        common = ("framework", "debug_log", "set_numa", "disable_cache")
        return {key: value for key, value in self._extensions.get(name, {}).items() if key not in common}

    def create_parallel_kwargs(self) -> dict[str, Any]:
        """Arguments of PipelineParallel."""
        names = ["max_batch_bytes", "use_chunk_budget_as_allocation_size", "device_memory_budget"]
        if self.use_pipeline:
            names += ["max_concurrent_producers", "queue_size", "use_tqdm_on_load"]
        return {"queue_size": -1} | {name: getattr(self, name) for name in names}


def load_config() -> LoaderConfig:
    """Of the file that FASTSAFETENSORS_CONFIG names, which must be there; else of fastsafetensors.json in the working
    folder; else the defaults."""
    path = os.environ.get(CONFIG_ENV_VAR)
    if path is not None and not os.path.isfile(path):
        raise FileNotFoundError(f"{CONFIG_ENV_VAR}: there is no file {path}")
    if path is None and os.path.isfile(DEFAULT_CONFIG_PATH):
        path = DEFAULT_CONFIG_PATH
    return LoaderConfig() if path is None else LoaderConfig.from_file(path)
