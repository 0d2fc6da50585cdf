"""What the plugins for servers (headrace.vllm, headrace.sglang) share: their options, and an iterator over the weights
of a model's files, of (name, tensor).

Tensors come in file order, read ahead under a window. With several ranks a rank keeps but a part of most tensors: then
all but small ones are lazy (_lazy.py) and read as far as they are copied, ahead where that can be foreseen (_ahead.py).
A tensor that does not fit into the window is lazy in any case.

The plugins step into the server's own loader by its function that iterates over safetensors files, and only while
one of their loaders asks for it (`active`): which files those are, which tensors go by which names, and what happens
to files of other formats, stays the server's business.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Union

import torch

from . import _ahead, _api, _checks, _dtypes, _lazy, errors
from ._checkpoint import Checkpoint, TensorInfo
from ._job import Job
from ._options import Loader

LOADER_KEYS = ("threads", "route", "chunk_bytes", "queue_depth", "staging_bytes", "lanes", "keep_cache", "numa")
OWN_KEYS = ("device", "window_bytes", "lazy_bytes")
KEYS = (*LOADER_KEYS, *OWN_KEYS)

WINDOW_BYTES = 1 << 30
LAZY_BYTES = 1 << 18  # smaller ones cost more to read apart than they have bytes to save

Weights = Iterator[tuple[str, torch.Tensor]]


class Reader:
    """Reads the weights of files as the options say. Kept by a server's loader from its start to its end."""

    def __init__(self, options: Mapping[str, Any], logger: logging.Logger, also: Sequence[str] = ()) -> None:
        """Raises InvalidArgument for a key that is none of KEYS, naming them and `also`, and for wrong values."""
        unknown = [key for key in options if key not in KEYS]
        if unknown:
            known = ", ".join((*KEYS, *also))
            raise errors.make("InvalidArgument", f"model_loader_extra_config: unknown key '{unknown[0]}'; load format "
                                                 f"headrace takes {known}")
        self.logger = logger
        self._loader = Loader(**{key: options[key] for key in LOADER_KEYS if key in options})
        self._device = options.get("device")
        self._window_bytes = _bytes_option(options, "window_bytes") or WINDOW_BYTES
        self._lazy_bytes = _bytes_option(options, "lazy_bytes")
        self.bytes_read = 0  # of all files so far, as is what follows
        self.bytes_wanted = 0
        self.load_count = 0

    def weights(self, files: Sequence[str], keep: Callable[[str], bool], progress: bool = False) -> Weights:
        """An iterator over the tensors of `files` whose names `keep` accepts. What it cannot do it says at once, by a
        HeadraceError, and not when the first tensor is asked for."""
        checkpoint = _api.open(sorted(files), strict=False)
        infos = [info for info in checkpoint.values() if keep(info.name)]
        for info in infos:
            if _dtypes.torch_dtype(torch, info.dtype) is None:
                raise errors.make("Unsupported", f"tensor '{info.name}': torch has no dtype for {info.dtype}")
        lazy = [info for info in infos if self._is_lazy(info)]
        names = {info.name for info in lazy}
        rest = [info.name for info in infos if info.name not in names]
        window_bytes = self._window_bytes // 2 if lazy and rest else self._window_bytes
        job = checkpoint.start(
            rest, framework="torch", device=self._place(), window_bytes=window_bytes, order="file", loader=self._loader
        )
        job._quiet = True  # _report() says it
        ahead = _ahead.Ahead(checkpoint, self._loader, lazy, window_bytes)
        source = _lazy.Source(checkpoint, self._loader, ahead=ahead)
        return self._iterate(source, checkpoint, infos, names, job, progress)

    def sharded(self, files: Sequence[str]) -> Weights:
        """As weights(), of files of one rank: all are lazy, and what is copied of them is read in one load, after the
        last one was handed out. For a caller that does nothing but copy."""
        checkpoint = _api.open(sorted(files), strict=False)
        source = _lazy.Source(checkpoint, self._loader, together=True)
        return self._iterate(source, checkpoint, list(checkpoint.values()), set(checkpoint), None, False)

    def _is_lazy(self, info: TensorInfo) -> bool:
        if info.dtype == "F4":  # its pairs of elements are no elements of a view
            return False
        least = self._lazy_bytes
        if least is None:
            least = LAZY_BYTES if _rank_count() > 1 else self._window_bytes + 1
        return info.nbytes >= least

    def _place(self) -> Any:
        if self._device is not None:
            return self._device
        return torch.device("cuda") if torch.version.cuda and torch.cuda.is_available() else "cpu"

    def _iterate(
        self, source: _lazy.Source, checkpoint: Checkpoint, infos: list[TensorInfo], lazy: set[str], job: Job | None,
        progress: bool,
    ) -> Weights:
        started = time.perf_counter()
        bar = _bar(sum(info.nbytes for info in infos)) if progress else None
        try:
            for info in infos:
                if job is None or info.name in lazy:
                    yield info.name, source.tensor(info, _dtypes.torch_dtype(torch, info.dtype))
                else:
                    yield info.name, job.get(info.name)
                if bar is not None:
                    bar.update(info.nbytes)
            source.flush()
            source.settle()
            source.close()
            self._report(checkpoint, infos, source, job, time.perf_counter() - started)
        finally:
            source.close()
            if job is not None:
                job.close()
            if bar is not None:
                bar.close()
            self._loader.trim()

    def _report(
        self, checkpoint: Checkpoint, infos: list[TensorInfo], source: _lazy.Source, job: Job | None, seconds: float
    ) -> None:
        ahead, read = 0, source.bytes_read
        stats = job.stats() if job is not None else None
        if stats is not None:
            ahead, read = stats.bytes_ready, read + stats.bytes_read
        wanted = ahead + source.bytes_copied
        self.bytes_read += read
        self.bytes_wanted += wanted
        self.load_count += source.load_count
        total = sum(info.nbytes for info in infos)
        self.logger.info(
            "headrace: %.3f GB of %.3f GB in %d files for this rank, %.3f GB read, lazy tensors by %d loads, %.2f s",
            wanted / 1e9, total / 1e9, len(checkpoint.files), read / 1e9, source.load_count, seconds,
        )


def _bytes_option(options: Mapping[str, Any], key: str) -> Union[int, None]:
    value = options.get(key)
    return None if value is None else _checks.number(key, value, 2**63 - 1)


def _rank_count() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def is_first_rank() -> bool:
    """Whether this process is the one that shows progress."""
    return _rank_count() == 1 or torch.distributed.get_rank() == 0


def _bar(total: int) -> Any:
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit="B", unit_scale=True, desc="Loading safetensors with headrace")


# ----------------------------------------------------------------------------------------------- stepping in, and aside

_active: ContextVar[Union[Reader, None]] = ContextVar("headrace_reader", default=None)


@contextlib.contextmanager
def active(reader: Reader) -> Iterator[None]:
    """Within it, this thread's calls of a function that stepping_in() made go to `reader`."""
    token = _active.set(reader)
    try:
        yield
    finally:
        _active.reset(token)


def current() -> Reader | None:
    return _active.get()


def stepping_in(original: Callable[..., Any], begin: Callable[[Reader, Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """A server's function that iterates over files, made to call step_in() where a reader is active."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        reader = current()
        if reader is None:
            return original(*args, **kwargs)
        return step_in(reader, signature, begin, functools.partial(original, *args, **kwargs))

    return function


def step_in(
    reader: Reader,
    signature: inspect.Signature,
    begin: Callable[[Reader, Mapping[str, Any]], Any],
    original: functools.partial[Any],
) -> Any:
    """begin(reader, arguments of `original`). Where that fails, or the arguments are not those that are known here,
    one line says why, and the original is called."""
    try:
        bound = signature.bind(*original.args, **original.keywords)
        bound.apply_defaults()
        return begin(reader, bound.arguments)
    except (errors.HeadraceError, KeyError, TypeError) as error:
        reader.logger.warning("headrace steps aside, the server's own loader goes on: %s", error)
    return original()
