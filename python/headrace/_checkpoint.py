"""Checkpoint: the table of tensors of one or many safetensors files, and the ways to load from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import _core, _devices, _frameworks, _hub, _options, _request, _warm_up, errors
from ._job import Job, Progress, Stats
from ._options import Loader
from ._request import Names

logger = logging.getLogger("headrace")


class TensorInfo(NamedTuple):
    """One tensor of a checkpoint."""

    name: str
    dtype: str  #: as the format names it: "BF16", "F8_E4M3", ...
    shape: tuple[int, ...]  #: in elements; F4 and F6 count logical ones
    file: str  #: path of its file
    offset: int  #: of its first byte, from the start of that file
    nbytes: int


class Checkpoint(Mapping[str, TensorInfo]):
    """An open checkpoint: a mapping of names to TensorInfo, in file order. Made by open().

    Immutable and usable from any thread. It holds no file open and no tensor; closing it leaves loads that run, and
    tensors that were loaded, as they are.

    Attributes:
        label: what was opened, for messages.
        last_stats: the Stats of the load that ended last, or None.
    """

    def __init__(self, core: _core.Checkpoint, label: str) -> None:
        self._handle: _core.Checkpoint | None = core
        self._files = core.files()
        self._nbytes = core.nbytes()
        self.label = label
        self.last_stats: Stats | None = None

    @property
    def _core(self) -> _core.Checkpoint:
        if self._handle is None:
            raise errors.make("InvalidArgument", f"{self.label}: the checkpoint was closed")
        return self._handle

    # ------------------------------------------------------------------------------------------------ the table

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[str]:
        return iter(self._core.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._core.find(name) >= 0

    def __getitem__(self, name: str) -> TensorInfo:
        index = self._core.find(name)
        if index < 0:
            raise errors.make("TensorNotFound", f"{self.label}: no tensor is named '{name}'", tensor=name)
        return self._info(index)

    def _info(self, index: int) -> TensorInfo:
        name, dtype, shape, file_index, offset, nbytes = self._core.info(index)
        return TensorInfo(name, dtype, shape, self._files[file_index][0], offset, nbytes)

    def match(self, pattern: str) -> list[TensorInfo]:
        """The tensors whose names a shell pattern matches, in file order; `*` matches dots too."""
        return [self._info(index) for index in self._core.match(pattern)]

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files."""
        return tuple(row[0] for row in self._files)

    @property
    def metadata(self) -> dict[str, str]:
        """The `__metadata__` of all files; where they disagree, the first file has its way."""
        merged: dict[str, str] = {}
        for index in reversed(range(len(self._files))):
            merged |= self._core.metadata(index)
        return merged

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self._nbytes

    @property
    def warnings(self) -> list[str]:
        """What is odd but allowed, a sentence each."""
        return self._core.warnings()

    def __repr__(self) -> str:
        if self._handle is None:
            return f"<headrace.Checkpoint {self.label!r}, closed>"
        return f"<headrace.Checkpoint {self.label!r}: {len(self)} tensors in {len(self._files)} files>"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def close(self) -> None:
        """Gives the table back; loads that run keep it until they end."""
        self._handle = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------- loading

    def start(
        self,
        names: Names = None,
        *,
        framework: str | None = None,
        device: Any = None,
        slices: Mapping[str, Any] | None = None,
        dtype: Any = None,
        into: Mapping[str, Any] | None = None,
        window_bytes: int | None = None,
        order: str = "ready",
        lazy: bool = False,
        deadline: float | None = None,
        progress: Progress = False,
        warm_up: bool = False,
        loader: Loader | None = None,
    ) -> Job:
        """Starts loading and returns a Job at once.

        Args:
            names: a name or shell pattern, or several; None: all tensors. What matches nothing is an error.
            framework: "torch" ("pt"), "numpy" ("np"), "jax" ("flax") or "cupy"; None gives headrace.Tensor objects,
                which speak DLPack and, in host memory, the buffer protocol.
            device: "cpu", "cuda" (the first GPU), "cuda:N", N, a torch.device, a PCI address, a UUID, or "auto": the
                first GPU if there is one. None: where the memory of `into` is, else the loader's, else "cpu" (with
                framework "cupy" its current device).
            slices: {name or pattern: index}: an index as numpy takes it (integers, slices of positive step, ...),
                or shard(dim, rank, world). Only the needed bytes are read. An exact name goes before patterns, and
                earlier patterns before later ones.
            dtype: a dtype, or {name or pattern: dtype}; must be the stored one in this version.
            into: {name: tensor, array or writable buffer} to load into; selects the tensors of these names. Shapes
                and dtypes must be equal; strides are free. All on one device: a load for each, where there are more.
            window_bytes: most bytes of tensors that exist and were not handed out; one tensor always fits.
                None: HEADRACE_WINDOW_BYTES, else no bound.
            order: of iteration: "ready" (as they come), "file" or "name". get() is free of it.
            lazy: start no thread and read nothing ahead: each tensor is read by the thread that asks for it.
            deadline: seconds from now, after which waiting raises DeadlineExceeded.
            progress: True for a bar (when tqdm is installed), or a function of (bytes done, bytes in all, tensors
                done, tensors in all), called on threads that wait.
            warm_up: PyTorch on a GPU: first let its allocator take what the load needs in one piece, as
                headrace.torch.warm_up() does; else nothing.
            loader: a Loader of one's own instead of the process's.

        Raises TensorNotFound, InvalidArgument, Unsupported (a dtype that the framework cannot hold, a conversion),
        DeviceUnavailable, OutOfMemory; errors of reading come from the calls that wait.
        """
        loader = loader or _options.shared_loader()
        place = None if device is None else _devices.name_of(device)
        request = _request.make(self._core, names, slices, dtype, into, place)
        place = place or request.device or loader.device or _frameworks.default_device(framework)
        core = loader._core_of(place)
        if into is None:
            chosen = _frameworks.find(framework, place)
        else:  # nothing is made
            _frameworks.canonical(framework)
            chosen = _frameworks.NONE
        if chosen.reason is not None:
            self._check_dtypes(request, chosen)
        if warm_up and chosen.name == "torch" and place != "cpu":
            _warm_up.take(place, _warm_up.sizes(self._core, request))
        return Job(
            self,
            core,
            request,
            chosen,
            window_bytes=_options.number_option("window_bytes", window_bytes),
            deadline=deadline,
            lazy=lazy,
            order=order,
            progress=progress,
        )

    def load(self, names: Names = None, **options: Any) -> dict[str, Any]:
        """Loads tensors and returns {name: tensor}, in file order. Arguments and errors are those of start()."""
        with self.start(names, **options) as job:
            return job.wait()

    def stream(self, names: Names = None, **options: Any) -> Iterator[tuple[str, Any]]:
        """Yields (name, tensor) as they come, or in `order=`. Arguments and errors are those of start(), which this
        call does at once; closing or dropping the iterator ends the load."""
        return iter(self.start(names, **options))

    def _check_dtypes(self, request: _request.Request, framework: _frameworks.Framework) -> None:
        for index in range(len(self)) if request.indices is None else request.indices:
            name, dtype, *_ = self._core.info(index)
            reason = framework.reason(dtype) if framework.reason is not None else None
            if reason is not None:
                raise errors.make("Unsupported", f"tensor '{name}': {reason}", tensor=name)


def open_core(
    source: _hub.Source, revision: str | None, strict: bool, allow_trailing: bool, threads: int
) -> tuple[_core.Checkpoint, str]:
    """The library's checkpoint and the label of a source."""
    paths = _hub.resolve(source, revision)
    core = _core.open([os.fsencode(path) for path in paths], 0 if strict else 1, int(allow_trailing), threads)
    label = os.fspath(source) if isinstance(source, (str, os.PathLike)) else f"{paths[0]} and {len(paths) - 1} more"
    for warning in core.warnings():
        logger.warning("%s", warning)
    return core, label
