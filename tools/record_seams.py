#!/usr/bin/env python3
"""Records what the plugins touch of vLLM and SGLang: signatures of the installed package, without running it.

    record_seams.py vllm|sglang [FOLDER]      writes FOLDER/NAME.json (tests/python/seams)

The package's sources are parsed, not imported, so no GPU and none of its dependencies are needed: an installed package,
or one that was only unpacked and is in PYTHONPATH.
"""

import ast
import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

SEAMS = {
    "vllm": {
        "model_executor/model_loader/__init__.py": ["register_model_loader", "get_model_loader"],
        "model_executor/model_loader/default_loader.py": [
            "DefaultModelLoader.__init__", "DefaultModelLoader._get_weights_iterator",
            "DefaultModelLoader.get_all_weights", "DefaultModelLoader.load_weights",
        ],
        "model_executor/model_loader/ep_weight_filter.py": ["should_skip_weight"],
        "model_executor/model_loader/sharded_state_loader.py": [
            "ShardedStateLoader.__init__", "ShardedStateLoader.load_weights", "ShardedStateLoader.iterate_over_files",
        ],
        "model_executor/model_loader/weight_utils.py": ["safetensors_weights_iterator"],
    },
    "sglang": {
        "srt/plugins/hook_registry.py": ["HookRegistry.register", "HookRegistry.apply_hooks"],
        "srt/configs/load_config.py": ["LoadConfig._verify_load_format"],
        "srt/model_loader/loader.py": [
            "DefaultModelLoader.__init__", "DefaultModelLoader._get_weights_iterator", "get_model_loader",
        ],
        "srt/model_loader/weight_utils.py": [
            "safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator",
        ],
    },
}


def find(tree: ast.AST, name: str) -> ast.FunctionDef | None:
    """The function of a dotted name."""
    for part in name.split("."):
        tree = next((node for node in getattr(tree, "body", []) if getattr(node, "name", None) == part), None)
    return tree


def describe(function: ast.FunctionDef) -> dict[str, object]:
    """Names of its parameters, those that need a value, and whether it is a generator."""
    arguments = function.args
    positional = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    needed = positional[: len(positional) - len(arguments.defaults)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults)
    needed += [argument.arg for argument, default in keywords if default is None]
    own = [node for statement in function.body for node in ast.walk(statement)]
    return {
        "parameters": positional + [argument.arg for argument in arguments.kwonlyargs],
        "needed": needed,
        "generator": any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own),
    }


def record(package: str, folder: Path) -> dict[str, dict[str, object]]:
    """{file: {function: description}} of the package in `folder`; what is not there is missing."""
    result = {}
    for file, names in SEAMS[package].items():
        path = folder / file
        tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
        found = {name: function for name in names if (function := find(tree, name)) is not None}
        result[file] = {name: describe(function) for name, function in found.items()}
    return result


def main() -> None:
    package = sys.argv[1]
    target = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parents[1] / "tests" / "python" / "seams")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    data = {"version": importlib.metadata.version(package), "seams": record(package, folder)}
    (target / f"{package}.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
