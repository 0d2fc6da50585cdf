"""Part of a stand-in; see the README of this folder."""


def __getattr__(name):
    if name == "LLM":
        from vllm.entrypoints.llm import LLM

        return LLM
    raise AttributeError(name)
