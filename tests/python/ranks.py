"""Runs a scene as the ranks of a process group: a process each, with torch.distributed over gloo or NCCL.

A scene is a function of a test module, called as scene(rank, folder, *arguments) on every rank, with NCCL also with its
device=; what it returns, or the exception that it raises, comes back. Processes are forked from one that has imported
PyTorch, which keeps them cheap.
"""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

SECONDS_MAX = 30.0  # within which no rank may be without an end
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch.distributed", "headrace"])


class Outcome:
    """How a rank ended: its value, or its error, or neither when it was killed."""

    def __init__(self, value: Any, kind: str, text: str, seconds: float) -> None:
        self._value, self.kind, self.text, self.seconds = value, kind, text, seconds

    @property
    def value(self) -> Any:
        """What the scene returned; it may not have failed."""
        assert self.kind == "", self
        return self._value

    def __repr__(self) -> str:
        return f"<{self.kind or 'ok'}: {self.text or self._value!r}, {self.seconds:.1f} s>"


def body(pipe: Any, scene: Any, rank: int, world: int, backend: str, store: str, folder: Path,
         arguments: tuple) -> None:
    import torch

    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend, init_method=store, rank=rank, world_size=world)
    begun, value, kind, text = time.monotonic(), None, "", ""
    try:
        value = scene(rank, folder, *arguments, **({"device": f"cuda:{rank}"} if backend == "nccl" else {}))
    except BaseException as error:
        kind, text = type(error).__name__, str(error)
    pipe.send((value, kind, text, time.monotonic() - begun))
    pipe.recv()  # until all ranks are through: torch's own group does not like to lose one
    os._exit(0)


def run(world: int, scene: Any, folder: Path, *arguments: Any, backend: str = "gloo",
        store: str = "", lost: tuple[int, ...] = ()) -> list[Outcome]:
    """The outcomes of all ranks; `lost` ones are killed or stopped by the scene, and have none."""
    path = folder / f"store-{time.monotonic_ns()}"
    processes, pipes = [], []
    for rank in range(world):
        ours, theirs = FORKS.Pipe()
        process = FORKS.Process(target=body, daemon=True, args=(
            theirs, scene, rank, world, backend, store or f"file://{path}", folder, arguments))
        process.start()
        processes.append(process)
        pipes.append(ours)
        theirs.close()
    outcomes = []
    end = time.monotonic() + 2 * SECONDS_MAX
    try:
        for rank, pipe in enumerate(pipes):
            if rank in lost:
                outcomes.append(Outcome(None, "lost", "", 0.0))
                continue
            assert pipe.poll(max(0.0, end - time.monotonic())), f"rank {rank} hangs"
            outcomes.append(Outcome(*pipe.recv()))
        for rank, pipe in enumerate(pipes):
            if rank not in lost:
                pipe.send(None)
    finally:
        for rank, process in enumerate(processes):
            process.join(0.1 if rank in lost else 5)
            process.kill()
    return outcomes


def values(outcomes: list[Outcome]) -> list[Any]:
    """What the ranks returned; none may have failed."""
    assert all(outcome.kind == "" for outcome in outcomes), outcomes  # shows them all
    return [outcome.value for outcome in outcomes]
