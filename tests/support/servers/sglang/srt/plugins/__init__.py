"""Running the plugins, which are found by their entry points, then applying their hooks; once in a process."""

import functools
import importlib.metadata

from sglang.srt.plugins.hook_registry import HookRegistry


@functools.cache
def load_plugins():
    for point in importlib.metadata.entry_points(group="sglang.srt.plugins"):
        point.load()()
    HookRegistry.apply_hooks()
