"""Checkpoint: the table of tensors of one or many safetensors files, and the ways to load from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import _checks, _core, _devices, _frameworks, _group, _hub, _options, _request, _warm_up, errors
from ._group_peer import Peer
from ._job import Job, Progress, Stats
from ._options import Loader
from ._request import Names
from ._stream import Stream

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
        index = self._core.find(name) if isinstance(name, str) else -1
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
        device_map: Mapping[str, Any] | None = None,
        slices: Mapping[str, Any] | None = None,
        shard: Mapping[str, Any] | int | None = None,
        rank: int | None = None,
        world: int | None = None,
        dtype: Any = None,
        into: Mapping[str, Any] | None = None,
        window_bytes: int | None = None,
        order: str = "ready",
        lazy: bool = False,
        deadline: float | None = None,
        progress: Progress = False,
        warm_up: bool = False,
        loader: Loader | None = None,
        group: Any = None,
        group_bytes: int | None = None,
        group_timeout: int | None = None,
    ) -> Job:
        """Starts loading and returns a Job at once.

        Args:
            names: a name or shell pattern, or several; None: all tensors. What matches nothing is an error.
            framework: "torch" ("pt"), "numpy" ("np"), "jax" ("flax") or "cupy"; None gives headrace.Tensor objects,
                which speak DLPack and, in host memory, the buffer protocol.
            device: "cpu", "cuda" (the first GPU), "cuda:N", N, a torch.device, a PCI address, a UUID, or "auto": the
                first GPU if there is one. None: where the memory of `into` is, else the loader's, else "cpu" (with
                framework "cupy" its current device).
            device_map: {name, pattern or module: device}, as of accelerate: "layers.0" covers "layers.0.*", "" covers
                everything. Exact names go first, then patterns in their order, then the longest module. What no key
                covers goes to `device`; without that it is an error. A module need not have tensors; a pattern that
                matches nothing is an error. One plan and one set of readers fill all of them.
            slices: {name or pattern: index}: an index as numpy takes it (integers, slices of positive step, ...),
                or shard() or pick(). Only the needed bytes are read. An exact name goes before patterns, and earlier
                patterns before later ones. What comes in several parts is made when the load starts, outside of any
                window, and wants framework "torch" or "numpy", or `into`.
            shard: {name or pattern: dimension}: only the block of this dimension that belongs to `rank` of `world`, of
                what `slices` leaves; (dimension, sizes) for the block of each section, as shard() takes it. Negative
                dimensions count from the last. What a pattern matches and lacks the dimension is whole, as is what
                nothing matches. A dimension alone is for all tensors that have it.
            rank, world: whose block `shard` means; None: those of `group`.
            dtype: what the tensors become: "auto" or None: as they are stored; a dtype ("bfloat16", "BF16",
                torch.bfloat16, ...): tensors of floats are converted to it on their way, others (integers, BOOL, and
                F4, F6, C64, which do not convert) stay as they are; {name or pattern: any of these}: what an entry
                names or matches is converted, integers too, but for "*", which is as a single dtype. A name goes
                before patterns and "*" after them: {"*": "bfloat16", "*.scale": "auto"}.
            into: {name: tensor, array or writable buffer} to load into; selects the tensors of these names. Shapes
                must be equal; strides are free; another dtype than the stored one is converted to. Several tensors may
                go to views of one, and several ranges of a tensor each to its own memory: {name: [(index, memory),
                ...]}, but no two to the same. All of it may lie on several devices. Memory that is not there or too
                small, and lazily conjugated or negated views, are an error.
            window_bytes: most bytes of tensors that exist and were not handed out; one tensor always fits.
                None: HEADRACE_WINDOW_BYTES, else no bound.
            order: of iteration: "ready" (as they come), "file" or "name". get() is free of it.
            lazy: start no thread and read nothing ahead: each tensor is read by the thread that asks for it.
            deadline: seconds from now, after which waiting raises DeadlineExceeded.
            progress: True for a bar (when tqdm is installed), or a function of (bytes done, bytes in all, tensors
                done, tensors in all), called on threads that wait. Parts of a tensor count like tensors.
            warm_up: PyTorch on GPUs: first let its allocator take what the load needs of each in one piece, as
                headrace.torch.warm_up() does; else nothing.
            loader: a Loader of one's own instead of the process's.
            group: a torch.distributed process group (True: the default one) whose ranks all do this same load: the same
                tensors, slices and shards, in the same order of loads. What several ranks need is read once in all and
                spread by collectives, NCCL or gloo by the device. See docs/distributed.md.
            group_bytes: most memory for the collectives; None: HEADRACE_GROUP_BYTES, else 56 MiB.
            group_timeout: seconds for other ranks to begin this load; None: HEADRACE_GROUP_TIMEOUT, else 600.

        Raises TensorNotFound, InvalidArgument, Unsupported (a dtype that the framework cannot hold, a pair that
        does not convert), DeviceUnavailable, OutOfMemory, GroupError; errors of reading come from the calls that wait.
        """
        with _group.attending(group) as peer:
            if peer is not None:
                peer.start_seconds = group_timeout
            return self._start(
                names, framework, device, device_map, slices, shard, rank, world, dtype, into, window_bytes, order,
                lazy, deadline, progress, warm_up, loader, peer, None if group is None else _group.ranks_of(group),
                group_bytes,
            )

    def _start(
        self, names: Names, framework: str | None, device: Any, device_map: Mapping[str, Any] | None,
        slices: Mapping[str, Any] | None, shard: Mapping[str, Any] | int | None, rank: int | None, world: int | None,
        dtype: Any, into: Mapping[str, Any] | None, window_bytes: int | None, order: str, lazy: bool,
        deadline: float | None,
        progress: Progress, warm_up: bool, loader: Loader | None, peer: Peer | None,
        ranks: tuple[int, int] | None, group_bytes: int | None,
    ) -> Job:
        loader = _options.checked_loader(loader)
        place = None if device is None else _devices.name_of(device)
        request = _request.make(self._core, names, slices, dtype, into, place, device_map, shard, rank, world, ranks)
        if not request.devices:
            request.devices = (loader.device or _frameworks.default_device(framework),)
        is_whole = names is None and slices is None and shard is None and into is None and not device_map
        core = loader._core_for(self._core, request.devices) if is_whole else loader._core_of(request.devices)
        if into is None:
            chosen = _frameworks.find_all(framework, request.devices)
        else:  # nothing is made
            _frameworks.canonical(framework)
            chosen = [_frameworks.NONE] * len(request.devices)
        if chosen[0].reason is not None:
            self._check_dtypes(request, chosen[0])
        if _checks.flag("warm_up", warm_up) and chosen[0].name == "torch":
            _warm_up.take_all(self._core, request)
        _request.make_parted(request, chosen)
        return Job(
            self,
            core,
            request,
            chosen,
            window_bytes=_options.number_option("window_bytes", window_bytes),
            deadline=deadline,
            lazy=_checks.flag("lazy", lazy),
            order=order,
            progress=progress,
            group=peer,
            group_bytes=_options.number_option("group_bytes", group_bytes),
        )

    def load(self, names: Names = None, **options: Any) -> dict[str, Any]:
        """Loads tensors and returns {name: tensor}, in file order. Arguments and errors are those of start()."""
        with self.start(names, **options) as job:
            return job.wait()

    def stream(self, names: Names = None, **options: Any) -> Stream:
        """(name, tensor) as they come, or in `order=`. Arguments and errors are those of start(), which this call does
        at once; `with`, closing or dropping the stream ends the load."""
        return Stream(self.start(names, **options))

    def _check_dtypes(self, request: _request.Request, framework: _frameworks.Framework) -> None:
        for position in range(len(request)):
            reason = framework.reason(request.dtype_of(position)) if framework.reason is not None else None
            if reason is not None:
                name = self._core.info(request.index_of(position))[0]
                raise errors.make("Unsupported", f"tensor '{name}': {reason}", tensor=name)


def open_core(
    source: _hub.Source, revision: str | None, strict: bool, allow_trailing: bool, threads: int
) -> tuple[_core.Checkpoint, str]:
    """The library's checkpoint and the label of a source."""
    paths = _hub.resolve(source, revision)
    core = _core.open([os.fsencode(path) for path in paths], 0 if strict else 1, int(allow_trailing), threads)
    label = _hub.path_of(source) if _hub.is_path(source) else f"{paths[0]} and {len(paths) - 1} more"
    for warning in core.warnings():
        logger.warning("%s", warning)
    return core, label
