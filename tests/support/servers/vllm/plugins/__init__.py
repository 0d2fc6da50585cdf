"""Running the plugins, which are found by their entry points."""

import importlib.metadata


def load_general_plugins():
    for point in importlib.metadata.entry_points(group="vllm.general_plugins"):
        point.load()()
