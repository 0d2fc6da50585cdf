"""The options of a load: formats are a closed list, but a class goes through."""

import enum
from dataclasses import dataclass, field
from typing import Any


class LoadFormat(str, enum.Enum):
    AUTO = "auto"
    SAFETENSORS = "safetensors"


@dataclass
class LoadConfig:
    load_format: Any = LoadFormat.AUTO
    model_loader_extra_config: dict = field(default_factory=dict)

    def __post_init__(self):
        self._verify_load_format()

    def _verify_load_format(self):
        if isinstance(self.load_format, str):
            self.load_format = LoadFormat(self.load_format.lower())
