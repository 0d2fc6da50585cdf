"""Hooks around functions, by their dotted names; names that other modules imported are changed too."""

import enum
import functools
import importlib
import sys


class HookType(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    _hooks = {}

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        assert hook_type is HookType.AROUND and target not in cls._hooks
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks.items():
            owner_name, name = target.rsplit(".", 1)
            try:
                owner = importlib.import_module(owner_name)
            except ModuleNotFoundError:
                module, owner_class = owner_name.rsplit(".", 1)
                owner = getattr(importlib.import_module(module), owner_class)
            original = getattr(owner, name)
            hooked = functools.wraps(original)(functools.partial(hook, original))
            if isinstance(owner, type):
                hooked = cls._method(hook, original)
            setattr(owner, name, hooked)
            for module in list(sys.modules.values()):
                if getattr(module, "__name__", "").startswith("sglang") and getattr(module, name, None) is original:
                    setattr(module, name, hooked)

    @staticmethod
    def _method(hook, original):
        return lambda self, *args, **kwargs: hook(original, self, *args, **kwargs)
