"""Writes the signatures of the installed fastsafetensors into tests/support/fastsafetensors.json, beside those of other
versions: what headrace.compat.fastsafetensors must understand.

    PYTHONPATH=folder-with-fastsafetensors .venv/bin/python tools/record_fastsafetensors.py
"""

import importlib
import inspect
import json
from pathlib import Path

RECORD = Path(__file__).resolve().parents[1] / "tests" / "support" / "fastsafetensors.json"
FUNCTIONS = ["get_device_numa_node", "load_config", "expert_parallel_filter", "owned_expert_range"]
CLASSES = {
    "SafeTensorsFileLoader": ["__init__", "add_filenames", "copy_files_to_device", "get_keys", "get_shape", "reset",
                              "close", "set_tensor_filter", "process_extension_config"],
    "FilesBufferOnDevice": ["get_tensor", "get_tensor_wrapped", "get_sharded", "get_sharded_wrapped", "push_tensor",
                            "get_multi_cols", "as_dict", "get_filename", "get_shape", "iter_local_tensors", "close"],
    "fastsafe_open": ["__init__", "metadata", "keys", "get_tensor", "get_tensor_wrapped"],
    "PipelineParallel": ["__init__", "iterate_weights", "close"],
    "ParallelLoader": ["__init__", "iterate_weights", "close"],
    "AutoLoader": ["__init__", "iterate_weights", "close"],
    "LoaderConfig": ["__init__", "from_dict", "from_file", "get_extension_config", "create_parallel_kwargs"],
    "SingleGroup": ["size", "rank"],
}


def signature_of(function: object) -> dict[str, str | None]:
    """Parameter -> its default as text; None: it has none."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: None if parameter.default is parameter.empty else text_of(parameter.default)
            for parameter in parameters}


def text_of(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if type(value).__name__ == "DType" else repr(value)


def signatures() -> dict[str, dict[str, str | None]]:
    package = importlib.import_module("fastsafetensors")
    more = importlib.import_module("fastsafetensors.parallel_loader")
    found = {name: signature_of(getattr(package, name)) for name in FUNCTIONS if hasattr(package, name)}
    for name, methods in CLASSES.items():
        owner = getattr(package, name, None) or getattr(more, name)
        found |= {f"{name}.{method}": signature_of(getattr(owner, method)) for method in methods
                  if hasattr(owner, method)}
    return found


def main() -> None:
    version = importlib.import_module("fastsafetensors").__version__
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"callables": {}}
    for name, parameters in signatures().items():
        record["callables"].setdefault(name, {})[version] = parameters
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=False) + "\n")


if __name__ == "__main__":
    main()
