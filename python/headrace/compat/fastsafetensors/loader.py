"""SafeTensorsFileLoader, and fastsafe_open for those who want tensors by name only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from ... import errors
from ..._shuffle import Shuffle
from . import _options
from .common import SafeTensorsMetadata, TensorFrame
from .file_buffer import FilesBufferOnDevice, UnknownTensor
from .frameworks import DTypeLike, TorchProcessGroup, TorchTensor, check_framework, device_of, place_of
from .st_types import DType

Path = Union[str, os.PathLike[str]]
Filter = Callable[[str], bool]


class SafeTensorsFileLoader:
    """Files to ranks, then into memory: add_filenames(), copy_files_to_device(), and tensors from what that returns.

    Args:
        pg: a torch.distributed process group; SingleGroup() or None: this process alone.
        device: "cpu", "cuda", "cuda:N" or a torch.device.
        bbuf_size_kb, max_threads, set_numa: pinned memory for a GPU, reader threads, binding to the GPU's NUMA node, as
            headrace.Loader has them. As by default they are the engine's choice.
        nogds: never GPUDirect Storage, not even with HEADRACE_ROUTE=gds.
        disable_cache: False: what came from other ranks is kept, and can be asked for again without them.
        debug_log: the logger "headrace" tells of each load.
        framework: "pytorch" or "pt".

    Other options of the original are accepted, and named in one warning. Raises Unsupported for other frameworks.
    """

    @classmethod
    def process_extension_config(cls, ext_config: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Arguments of this class from a section of fastsafetensors.json."""
        options = dict(ext_config)
        kind = options.pop("copier_type", "gds")
        return options | {"nogds": kind not in ("gds", "fgds")}

    def __init__(
        self,
        pg: Any,
        device: Any = "cpu",
        bbuf_size_kb: int = _options.BBUF_SIZE_KB,
        max_threads: int = _options.MAX_THREADS,
        nogds: bool = False,
        set_numa: bool = True,
        disable_cache: bool = True,
        debug_log: bool = False,
        framework: str = "pytorch",
        use_fgds: bool = False,
        **kwargs: Any,
    ) -> None:
        check_framework(framework)
        _options.ignored("SafeTensorsFileLoader", kwargs | {"use_fgds": use_fgds}, {"use_fgds": False})
        self.pg = TorchProcessGroup(pg)
        self.device = device_of(device)
        self.meta: dict[str, tuple[SafeTensorsMetadata, int]] = {}
        self.frames: dict[str, TensorFrame] = {}
        self.disable_cache = disable_cache
        self._filter: Filter | None = None
        self._engine = _options.engine(bbuf_size_kb, max_threads, nogds, set_numa, debug_log)

    # ---------------------------------------------------------------------------------------------------------- files

    def add_filenames(self, filenames: Mapping[int, Sequence[Path]]) -> None:
        """Files for ranks: {rank: files}, the same on all ranks. Reads their headers."""
        deepest = max(map(len, filenames.values()), default=0)
        for number in range(deepest):  # first each rank's first one
            for rank, paths in filenames.items():
                if number < len(paths):
                    table = SafeTensorsMetadata.from_file(paths[number])
                    self.meta[table.src] = table, rank
                    self.frames.update(table.tensors)

    def get_keys(self) -> list[str]:
        return [name for name in self.frames if self._keeps(name)]

    def get_shape(self, tensor_name: str) -> list[int]:
        if tensor_name not in self.frames or not self._keeps(tensor_name):
            raise UnknownTensor(f"no file has a tensor named '{tensor_name}', or the filter leaves it out")
        return list(self.frames[tensor_name].shape)

    def set_tensor_filter(self, keep_tensor: Filter | None) -> None:
        """Loads only tensors for whose names the function is true; the same on all ranks. None: all."""
        self._filter = keep_tensor

    def _keeps(self, name: str) -> bool:
        return self._filter is None or self._filter(name)

    # --------------------------------------------------------------------------------------------------------- memory

    def copy_files_to_device(
        self,
        dtype: DTypeLike = DType.AUTO,
        use_buf_register: bool = True,
        max_copy_block_size: int = _options.MAX_COPY_BLOCK_SIZE,
        allow_inflight: bool = False,
        borrowed_tensors: bool = False,
    ) -> FilesBufferOnDevice:
        """Reads this rank's files.

        Args:
            dtype: what all tensors are converted to; AUTO: as stored.
            allow_inflight: return at once; tensors are waited for when they are asked for.
            borrowed_tensors: nothing to gain, since tensors own their memory; with a group it is refused.

        Raises what headrace.Shuffle raises: errors of the files, GroupError.
        """
        if borrowed_tensors and self.pg.size() > 1:
            raise errors.make("InvalidArgument", "borrowed_tensors is for one process")
        given = {"use_buf_register": use_buf_register, "max_copy_block_size": max_copy_block_size,
                 "borrowed_tensors": borrowed_tensors}
        _options.ignored("copy_files_to_device", given, {"use_buf_register": True, "borrowed_tensors": False,
                                                         "max_copy_block_size": _options.MAX_COPY_BLOCK_SIZE})
        files: dict[int, list[SafeTensorsMetadata]] = {rank: [] for rank in range(self.pg.size())}
        for path in sorted(self.meta):
            table, rank = self.meta[path]
            files.setdefault(rank, []).append(table)
        shuffle = Shuffle(
            {rank: [table.src for table in tables] for rank, tables in files.items()}, group=self.pg.real_pg,
            device=place_of(self.device), keep=self.pg.size() > 1, loader=self._engine,
            names=None if self._filter is None else self.get_keys(),
        )
        if not allow_inflight:
            shuffle.wait()
        return FilesBufferOnDevice(shuffle, files, self.pg, dtype, not self.disable_cache)

    copy_file_to_device = copy_files_to_device

    def reset(self) -> None:
        """Forgets the files; buffers stay."""
        self.meta, self.frames = {}, {}

    def close(self) -> None:
        """Gives back what the loader holds; buffers stay. Closing again does nothing."""
        self.reset()
        self._engine.trim()


class fastsafe_open:
    """Files into memory, and tensors by name: a context manager. Tensors outlive it.

    Args:
        filenames: a file, a list of files, or {rank: files}.
        framework, pg, device, nogds, debug_log, max_copy_block_size, use_fgds: as for SafeTensorsFileLoader.
    """

    def __init__(
        self,
        filenames: Path | Sequence[Path] | Mapping[int, Sequence[Path]],
        framework: str = "pt",
        pg: Any = None,
        device: Any = "cpu",
        nogds: bool = False,
        debug_log: bool = False,
        max_copy_block_size: int = _options.MAX_COPY_BLOCK_SIZE,
        use_fgds: bool = False,
    ) -> None:
        self.loader = SafeTensorsFileLoader(pg, device, nogds=nogds, debug_log=debug_log, framework=framework,
                                            use_fgds=use_fgds)
        if isinstance(filenames, (str, os.PathLike)):
            filenames = [filenames]
        self.loader.add_filenames(filenames if isinstance(filenames, Mapping) else {0: filenames})
        self.fb = self.loader.copy_files_to_device(max_copy_block_size=max_copy_block_size)

    def metadata(self) -> dict[str, dict[str, str]]:
        """The metadata of each file."""
        return {path: table.metadata for path, (table, _) in self.loader.meta.items()}

    def keys(self) -> list[str]:
        return list(self.fb.key_to_rank_lidx)

    def get_tensor(self, name: str) -> Any:
        return self.fb.get_tensor(name)

    def get_tensor_wrapped(self, name: str) -> TorchTensor:
        return self.fb.get_tensor_wrapped(name)

    def __enter__(self) -> fastsafe_open:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.fb.close()
        self.loader.close()
