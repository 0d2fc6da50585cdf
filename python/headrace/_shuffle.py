"""Shuffle: every rank loads whole files, and tensors go from rank to rank when they are asked for.

For programs that ask for tensors one by one, on all ranks alike, as with fastsafetensors. Where it is known beforehand
which rank needs what, load(group=, shard=) moves less.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

from . import _dtypes, _group, _hub, _into, _slices, errors
from ._api import open as open_checkpoint
from ._checkpoint import TensorInfo
from ._group_peer import Peer
from ._job import Job
from ._options import Loader

Files = Union[_hub.Source, Mapping[int, Sequence[Any]]]

WORD_BYTES = 16  # what each rank says before a transfer
FAILED = b"\xff" * WORD_BYTES


class Shuffle:
    """Files of a checkpoint, each in the memory of one rank; a context manager.

    Args:
        files: what open() takes, whose files go to the ranks in turn, or {rank: files}. All ranks give the same, and
            all read the headers.
        group: a torch.distributed process group, or True for the default one; None: this process alone.
        device: where tensors go, as for load().
        keep: tensors can be asked for again, until drop() or close(). Otherwise each goes once, and its owner's memory
            with it.
        names: of the tensors that are loaded; None: all.
        loader: a Loader of one's own instead of the process's.

    All ranks call the same methods with the same arguments in the same order; what differs is a GroupError on all
    ranks. Tensors are torch's, belong to the caller, and outlive the Shuffle. One thread at a time.

    Raises what open() and load() raise, and GroupError.
    """

    def __init__(
        self, files: Files, *, group: Any = None, device: Any = None, keep: bool = False, loader: Loader | None = None,
        names: Iterable[str] | None = None,
    ) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._keep = keep
        self._held: dict[str, Any] = {}
        self._job: Job | None = None
        self._session: Peer | None = None
        with _group.attending(group) as peer:
            self._rank, self._world = (0, 1) if peer is None else (peer.member.rank, peer.member.world)
            paths, owners = _assign(files, self._world)
            self._checkpoint = open_checkpoint(paths)
            self._owners = dict(zip(map(str, self._checkpoint.files), owners))
            wanted = self._checkpoint if names is None else names
            owned = {name: self.owner(name) for name in wanted}  # which refuses what is not there
            self._names = [name for name in self._checkpoint if name in owned]
            own = [name for name in self._names if owned[name] == self._rank]
            self._job = self._checkpoint.start(own, framework="torch", device=device, loader=loader)
            self.device: str = self._job._facts["device"]  #: "cpu" or "cuda:N"
            if peer is not None:
                self._meet(peer)

    def _meet(self, peer: Peer) -> None:
        peer.use(self.device)
        digest = hashlib.blake2b(repr([(name, self.owner(name), self._checkpoint[name].dtype,
                                        self._checkpoint[name].shape) for name in self._names]).encode())
        self._session = peer
        said = peer.exchange(digest.digest())
        if said is None:
            raise self._lost()
        size = digest.digest_size
        wrong = [rank for rank in range(self._world) if said[rank * size : (rank + 1) * size] != said[:size]]
        if wrong:
            peer.fail(f"{peer.member.name_of(wrong[0])} has other tensors or owners than "
                         f"{peer.member.name_of(0)}")
        if wrong or peer.failure() is not None:
            raise self._lost()

    # ------------------------------------------------------------------------------------------------------ the table

    def keys(self) -> list[str]:
        """Names of the tensors, in the order of the files."""
        return list(self._names)

    def __getitem__(self, name: str) -> TensorInfo:
        return self._checkpoint[name]

    def __len__(self) -> int:
        return len(self._names)

    def owner(self, name: str) -> int:
        """The rank whose memory the tensor's file is in."""
        return self._owners[self._checkpoint[name].file]

    # -------------------------------------------------------------------------------------------------------- tensors

    def get_tensor(self, name: str) -> Any:
        """A tensor on every rank: a broadcast from its owner."""
        return self._broadcast(name, self._begin("get", name))

    def get_sharded(self, name: str, dim: int) -> Any:
        """This rank's block of a dimension, as of shard(): a scatter from the owner."""
        shapes: list[tuple[int, ...]] = []
        own = self._begin(f"sharded {dim}", name, lambda: shapes.extend(self._block_shapes(name, dim)))
        return self._scatter(name, _slices.dimension(dim, len(self[name].shape)), shapes, own)

    def push_tensor(self, name: str, rank: int) -> Any:
        """A tensor on one rank; None on the others."""
        if not 0 <= rank < self._world:
            raise errors.make("InvalidArgument", f"rank {rank} is not between 0 and {self._world - 1}")
        own, owner = self._begin(f"push {rank}", name), self.owner(name)
        peer = self._session
        if peer is None or owner == rank:
            return own
        if self[name].nbytes == 0:
            return self._empty(name, self[name].shape) if self._rank == rank else None
        if self._rank == owner:
            self._run(lambda link: link.send(self._bytes(own), rank, peer._has_failed))
            return None
        if self._rank != rank:
            return None
        result = self._empty(name, self[name].shape)
        self._run(lambda link: link.receive(self._bytes(result), owner, peer._has_failed))
        return result

    def get_multi_cols(self, names: Iterable[str], dim: int) -> Any:
        """get_sharded() of several tensors, one behind the other in that dimension."""
        return self._torch.cat([self.get_sharded(name, dim) for name in names], dim)

    def as_dict(self, dims: Mapping[str, int | None]) -> dict[str, Any]:
        """{name: tensor}: of each the block of its dimension, or with None all of it."""
        return {name: self.get_tensor(name) if dim is None else self.get_sharded(name, dim)
                for name, dim in dims.items()}

    def wait(self) -> None:
        """Waits until this rank's files are in memory. An error of reading is raised here already, and the other ranks
        get a GroupError."""
        assert self._job is not None
        try:
            for _ in self._job._ready():
                pass
        except errors.HeadraceError as problem:
            if self._session is not None:
                self._session.fail(f"{self._session.member.name_of(self._rank)}: {problem.kind}: {problem}")
            self.close()
            raise

    def drop(self, names: Iterable[str]) -> None:
        """With keep=True: gives back what was asked for already. It cannot be asked for again, on any rank."""
        for name in names:
            self._held.pop(name, None)

    def close(self) -> None:
        """Gives back what was not handed out. Other ranks that ask for tensors afterwards get a GroupError."""
        self._held.clear()
        if self._job is not None:
            self._job.close()
        if self._session is not None:
            self._session.close(False)

    def __enter__(self) -> Shuffle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------ transfers

    def _begin(self, what: str, name: str, prepare: Callable[[], None] | None = None) -> Any:
        """The tensor, where this rank owns it. All ranks mean the same transfer when this returns. What `prepare`
        raises, the others get as a GroupError."""
        own, error = None, None
        try:
            if prepare is not None:
                prepare()
            if self.owner(name) == self._rank:
                own = self._take(name)
        except errors.HeadraceError as problem:
            error = problem
        peer = self._session
        if peer is None:
            if error is not None:
                raise error
            return own
        word = hashlib.blake2b(f"{what} {name}".encode(), digest_size=WORD_BYTES).digest()
        said = self._words(FAILED if error is not None else word)
        if error is not None:
            peer.fail(f"{peer.member.name_of(self._rank)}: {error.kind}: {error}")
            raise error
        for rank, other in enumerate(said):
            if other == FAILED:
                self._await_reason()
            elif other != word:
                peer.fail(f"{peer.member.name_of(rank)} asks for another tensor than "
                             f"{peer.member.name_of(self._rank)}, which asks for '{name}' ({what})")
        if peer.failure() is not None:
            raise self._lost()
        return own

    def _take(self, name: str) -> Any:
        assert self._job is not None
        if not self._keep:
            return self._job.get(name)
        if name not in self._held:
            self._held[name] = self._job.get(name)
        return self._held[name].clone()

    def _words(self, word: bytes) -> list[bytes]:
        """What all ranks say."""
        peer, torch = self._session, self._torch
        assert peer is not None
        own = torch.frombuffer(bytearray(word), dtype=torch.uint8).to(self.device)
        every = torch.empty(WORD_BYTES * self._world, dtype=torch.uint8, device=self.device)
        self._run(lambda link: link.all_gather(own, every, peer._has_failed))
        text = bytes(every.cpu().tolist())
        return [text[at : at + WORD_BYTES] for at in range(0, len(text), WORD_BYTES)]

    def _await_reason(self) -> None:
        """Another rank has failed, and says why."""
        peer, end = self._session, time.monotonic() + 5
        assert peer is not None
        while peer.failure() is None and time.monotonic() < end:
            time.sleep(0.02)
        peer.fail("another rank has failed")

    def _broadcast(self, name: str, own: Any) -> Any:
        peer = self._session
        if peer is None:
            return own
        memory = self._empty(name, self[name].shape) if own is None else own
        if memory.numel():
            root = self.owner(name)
            self._run(lambda link: link.broadcast(self._bytes(memory), root, peer._has_failed))
        return memory

    def _block_shapes(self, name: str, dim: int) -> list[tuple[int, ...]]:
        """The shape of each rank's block."""
        info = self[name]
        blocks = [_slices.whole(info.shape).block(_slices.shard(dim, rank, self._world)) for rank in range(self._world)]
        for block in blocks:
            _into.packed_shape(name, info.dtype, block.shape)  # raises on all ranks alike
        return [block.shape for block in blocks]

    def _scatter(self, name: str, dim: int, shapes: list[tuple[int, ...]], own: Any) -> Any:
        peer = self._session
        if peer is None:
            return own
        result, largest = self._empty(name, shapes[self._rank]), self._empty(name, shapes[0])
        if largest.numel() == 0:
            return result
        send = None if own is None else self._bytes(self._blocks(own, dim, largest))
        fits = result.shape == largest.shape
        memory = self._bytes(result if fits else largest)
        root = self.owner(name)
        self._run(lambda link: link.scatter(send, memory, root, peer._has_failed))
        if not fits:
            data = self._bytes(result)
            data.copy_(memory[: data.numel()])
        return result

    def _blocks(self, own: Any, dim: int, largest: Any) -> Any:
        """The blocks of a tensor one behind the other, in as much memory as the largest one each."""
        extent = largest.shape[dim]
        if dim == 0 and own.shape[0] == extent * self._world:
            return own
        count = largest.numel() * largest.element_size()
        blocks = self._torch.empty(count * self._world, dtype=self._torch.uint8, device=self.device)
        for rank in range(self._world):
            start = min(rank * extent, own.shape[dim])
            block = own.narrow(dim, start, min(extent, own.shape[dim] - start)).contiguous()
            data = self._bytes(block)
            blocks[rank * count : rank * count + data.numel()] = data
        return blocks

    def _empty(self, name: str, shape: tuple[int, ...]) -> Any:
        dtype = self._checkpoint[name].dtype
        return self._torch.empty(_into.packed_shape(name, dtype, shape), device=self.device,
                                 dtype=_dtypes.torch_dtype(self._torch, dtype))

    def _bytes(self, tensor: Any) -> Any:
        """The bytes of a contiguous tensor."""
        size, count = tensor.element_size(), tensor.numel()
        view = self._torch.empty(0, dtype=self._torch.uint8, device=self.device)
        return view.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (count * size,))

    def _run(self, collective: Any) -> None:
        """A transfer, done when this returns. Raises GroupError."""
        peer = self._session
        assert peer is not None and peer._link is not None
        link, torch = peer._link, self._torch
        if link.stream is not None:
            link.stream.wait_stream(torch.cuda.current_stream(self.device))
        with peer.pending():
            if peer._collective(lambda: collective(link)) and link.stream is not None:
                event = link.stream.record_event()
                while not event.query() and peer.failure() is None:
                    time.sleep(2e-5)
        if peer.failure() is not None:
            raise self._lost()

    def _lost(self) -> Exception:
        peer = self._session
        assert peer is not None
        text = peer.failure() or "the group has failed"
        self.close()
        return errors.make("GroupError", text)


def _assign(files: Files, world: int) -> tuple[list[Any], list[int]]:
    """Files, and the rank that has each."""
    if isinstance(files, Mapping):
        wrong = [rank for rank in files if not 0 <= rank < world]
        if wrong:
            raise errors.make("InvalidArgument", f"files for rank {wrong[0]}, which is not between 0 and {world - 1}")
        pairs = [(path, rank) for rank in sorted(files) for path in files[rank]]
        return [path for path, _ in pairs], [rank for _, rank in pairs]
    with contextlib.closing(open_checkpoint(files)) as checkpoint:
        paths = list(checkpoint.files)
    return paths, [number % world for number in range(len(paths))]

