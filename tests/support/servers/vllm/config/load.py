"""The options of a load."""

import dataclasses


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    safetensors_load_strategy: str | None = None
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    use_tqdm_on_load: bool = False
