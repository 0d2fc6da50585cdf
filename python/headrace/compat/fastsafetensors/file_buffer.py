"""FilesBufferOnDevice: tensors of loaded files, by name, whole or this rank's block. What SafeTensorsFileLoader makes.

With a group the files stay on the ranks that read them, and each call moves a tensor (headrace.Shuffle), so all ranks
make the same calls in the same order. A tensor's file is given back as soon as all its tensors were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from ... import errors
from ..._shuffle import Shuffle
from .common import SafeTensorsMetadata
from .frameworks import DeviceLike, DTypeLike, TorchProcessGroup, TorchTensor, concatenated, converted
from .st_types import DType


class UnknownTensor(errors.TensorNotFound, ValueError):
    """No file has a tensor of this name. The original raises ValueError."""


class FilesBufferOnDevice:
    """Tensors belong to the caller and outlive this. One thread at a time.

    Without a group a tensor that is asked for again is the same one, as with the original; with a group it is another
    one, and can be had until its file is given back.

    Attributes:
        key_to_rank_lidx: name to the rank that has its file, and the file's number there.
        pg: the group, with size() and rank().
    """

    def __init__(
        self, shuffle: Shuffle, files: Mapping[int, Sequence[SafeTensorsMetadata]], pg: TorchProcessGroup,
        dtype: DTypeLike = DType.AUTO, cache: bool = False,
    ) -> None:
        self.pg = pg
        self.key_to_rank_lidx: dict[str, tuple[int, int]] = {}
        self._shuffle: Shuffle | None = shuffle
        self._files = files
        self._dtype = dtype
        self._cache = cache or pg.size() == 1
        self._cached: dict[tuple[str, int | None], torch.Tensor] = {}
        self._left: dict[tuple[int, int], set[str]] = {}  # of each file: what was not asked for
        wanted = set(shuffle.keys())
        for rank, tables in files.items():
            for number, table in enumerate(tables):
                place = rank, number
                names = [name for name in table.tensors if name in wanted]
                self._left[place] = set(names)
                self.key_to_rank_lidx |= dict.fromkeys(names, place)

    def _table(self, tensor_name: str) -> SafeTensorsMetadata:
        place = self.key_to_rank_lidx.get(tensor_name)
        if place is None:
            text = f"no file has a tensor named '{tensor_name}', or a filter leaves it out"
            error = UnknownTensor(text)
            error.tensor = tensor_name
            raise error
        return self._files[place[0]][place[1]]

    def get_filename(self, tensor_name: str) -> str:
        return self._table(tensor_name).src

    def get_shape(self, tensor_name: str) -> list[int]:
        """The whole tensor's, in elements of the format."""
        return list(self._table(tensor_name).tensors[tensor_name].shape)

    # -------------------------------------------------------------------------------------------------------- tensors

    def get_tensor(self, tensor_name: str, device: DeviceLike = None, dtype: DTypeLike = DType.AUTO) -> torch.Tensor:
        """The tensor on all ranks."""
        return self.get_sharded(tensor_name, -1, device, dtype)

    def get_sharded(
        self, tensor_name: str, dim: int, device: DeviceLike = None, dtype: DTypeLike = DType.AUTO
    ) -> torch.Tensor:
        """This rank's block of a dimension: ceil(extent / world), the last ones shorter. -1: the whole tensor."""
        return converted(self._block(tensor_name, dim), device, dtype)

    def get_tensor_wrapped(
        self, tensor_name: str, device: DeviceLike = None, dtype: DTypeLike = DType.AUTO
    ) -> TorchTensor:
        return TorchTensor.of(self.get_tensor(tensor_name, device, dtype))

    def get_sharded_wrapped(
        self, tensor_name: str, dim: int, device: DeviceLike = None, dtype: DTypeLike = DType.AUTO
    ) -> TorchTensor:
        return TorchTensor.of(self.get_sharded(tensor_name, dim, device, dtype))

    def push_tensor(
        self, tensor_name: str, dst_rank: int, device: DeviceLike = None, dtype: DTypeLike = DType.AUTO
    ) -> torch.Tensor | None:
        """The tensor on one rank; None on the others."""
        self._table(tensor_name)
        if self.pg.size() == 1:
            return self.get_tensor(tensor_name, device, dtype)
        tensor = self._open().push_tensor(tensor_name, dst_rank)
        self._asked(tensor_name)
        return None if tensor is None else converted(converted(tensor, None, self._dtype), device, dtype)

    def get_multi_cols(
        self, tensor_names: Sequence[str], dim: int, device: DeviceLike = None, dtype: DTypeLike = DType.AUTO
    ) -> TorchTensor:
        """This rank's blocks of several tensors, one behind the other in that dimension, in the order of the names."""
        blocks = [self._block(name, dim) for name in tensor_names]
        return TorchTensor.of(converted(concatenated(blocks, dim), device, dtype))

    def as_dict(self, tensor_shard_dim: Mapping[str, int]) -> dict[str, TorchTensor]:
        """{name: wrapped tensor}: of each the block of its dimension, or with -1 all of it."""
        return {name: TorchTensor.of(self._block(name, dim)) for name, dim in tensor_shard_dim.items()}

    def iter_local_tensors(self, tensor_names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor), without a group only."""
        if self.pg.size() > 1:
            raise RuntimeError("iter_local_tensors() is for one process; get_tensor() is for all ranks")
        for name in tensor_names:
            yield name, self.get_tensor(name)

    def close(self) -> None:
        """Gives back what was not handed out. Closing again does nothing."""
        if self._shuffle is not None:
            self._shuffle.close()
        self._shuffle = None
        self._cached.clear()

    # ------------------------------------------------------------------------------------------------------ transfers

    def _open(self) -> Shuffle:
        if self._shuffle is None:
            raise errors.make("InvalidArgument", "the buffer was closed; tensors must be taken before")
        return self._shuffle

    def _block(self, name: str, dim: int) -> torch.Tensor:
        self._table(name)
        shuffle, alone = self._open(), self.pg.size() == 1
        key = name, None if dim == -1 or alone else dim
        tensor = self._cached.get(key)
        if tensor is None:
            found = shuffle.get_tensor(name) if key[1] is None else shuffle.get_sharded(name, dim)
            tensor = converted(found, None, self._dtype)
            self._asked(name)
            if self._cache:
                self._cached[key] = tensor
        return tensor.clone() if self._cache and not alone else tensor

    def _asked(self, name: str) -> None:
        """All ranks ask alike, so all give a file back at the same call."""
        place = self.key_to_rank_lidx[name]
        left = self._left[place]
        left.discard(name)
        if not left:
            self._open().drop(self._files[place[0]][place[1]].tensors)
