"""Running the plugins, then applying their hooks."""

from sglang.srt.plugins.hook_registry import HookRegistry


def load_plugins(register):
    register()
    HookRegistry.apply_hooks()
