"""Part of a stand-in; see the README of this folder."""


def __getattr__(name):
    if name == "Engine":
        from sglang.srt.entrypoints.engine import Engine

        return Engine
    raise AttributeError(name)
