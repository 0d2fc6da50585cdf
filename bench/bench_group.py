#!/usr/bin/env python3
"""A page-cache-hot checkpoint into several GPUs by a process group, against bare programs on all of them at once.

usage: bench_group.py CHECKPOINT_FOLDER [--build DIR] [--world N] [--pairs N] [--device cuda|cpu] [--json FILE]
                      [--try NAME=N[,NAME=N...]]...

rows         every matrix cut along its first dimension: what a rank needs lies in one piece
columns      along its second: read once in all, and scattered
replicated   whole on every rank: read once in all, and gathered

--try has each of these take turns also with other options, of headrace.Loader or `group_bytes`: "rows chunk_bytes=...".

The ruler (bench/ruler.h) runs on all GPUs at once and takes turns with the cases, in every other round in reverse. Each
of its processes sends all bytes, so its rate is the sum of them; the rate of a case is the checkpoint's bytes, each
counted once, by the time of the slowest rank. Times begin at a barrier. "device_above_bytes" is what a rank's load had
on the device at most, above what PyTorch takes there for such tensors alone, in one more load that is watched; what
NCCL took when it was made is "communicator_bytes". Exit status 77: there are not so many devices. With --device cpu
there is no ruler.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NO_DEVICE = 77
CASES = {"rows": 0, "columns": 1, "replicated": None}
PAIRS_MIN = 5
WATCH_SECONDS = 0.002


# ------------------------------------------------------------------------------------------------------------ a rank


class Watch:
    """The most memory of a device that was in use meanwhile."""

    def __init__(self, torch, device: str) -> None:
        self.read = lambda: torch.cuda.mem_get_info(device)[0]
        self.least = self.before = self.read()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stop.wait(WATCH_SECONDS):
            self.least = min(self.least, self.read())

    def most(self) -> int:
        self.stop.set()
        self.thread.join()
        return self.before - min(self.least, self.read())


class Rank:
    def __init__(self, rank: int, world: int, device: str, store: str, folder: str) -> None:
        import torch

        import headrace

        self.torch, self.headrace = torch, headrace
        self.device = device if device == "cpu" else f"cuda:{rank}"
        self.is_cuda = device != "cpu"
        if self.is_cuda:
            torch.cuda.set_device(self.device)
        torch.distributed.init_process_group("nccl" if self.is_cuda else "gloo", init_method=f"file://{store}",
                                             rank=rank, world_size=world)
        self.barrier()
        self.checkpoint = headrace.open(folder)
        self.options: dict[str, dict] = {"": {}}

    def barrier(self) -> None:
        torch = self.torch
        torch.distributed.all_reduce(torch.zeros(1, device=self.device))
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def options_of(self, text: str) -> dict:
        """Of a load. A loader with its pinned memory is kept."""
        if text not in self.options:
            given = {name: int(value) for name, value in (part.split("=") for part in text.split(","))}
            group_bytes = given.pop("group_bytes", None)
            self.options[text] = {"group_bytes": group_bytes, "loader": self.headrace.Loader(**given)}
        return self.options[text]

    def load(self, case: str) -> tuple[dict, float]:
        name, _, text = case.partition(" ")
        dim, options = CASES[name], self.options_of(text)
        shard = {} if dim is None else {"shard": dim}
        self.barrier()
        begun = time.perf_counter()
        tensors = self.checkpoint.load(framework="torch", device=self.device, group=True, **shard, **options)
        if self.is_cuda:
            self.torch.cuda.synchronize(self.device)
        return tensors, time.perf_counter() - begun

    def trial(self, case: str) -> dict:
        tensors, seconds = self.load(case)
        stats = self.checkpoint.last_stats
        del tensors
        return {"seconds": seconds, "bytes_read": stats.bytes_read, "bytes_spread": stats.bytes_spread,
                "bytes": stats.bytes_ready, "collectives": stats.collective_count, "group_bytes": stats.group_bytes}

    def watch(self, case: str) -> dict:
        if not self.is_cuda:
            return {"device_above_bytes": None, "communicator_bytes": None}
        cuda = self.torch.cuda
        self.headrace.release()
        cuda.empty_cache()
        before = cuda.mem_get_info(self.device)[0]
        self.load(case)  # makes the communicator again
        cuda.empty_cache()
        communicator = before - cuda.mem_get_info(self.device)[0]
        watch = Watch(self.torch, self.device)
        tensors, _ = self.load(case)
        most, sizes = watch.most(), [tensor.shape for tensor in tensors.values()]
        dtypes = [tensor.dtype for tensor in tensors.values()]
        del tensors
        own = self.bare(sizes, dtypes)
        return {"device_above_bytes": most - own, "own_bytes": own, "communicator_bytes": communicator}

    def bare(self, sizes: list, dtypes: list) -> int:
        """What such tensors take on the device without anything else."""
        cuda = self.torch.cuda
        cuda.empty_cache()
        before = cuda.mem_get_info(self.device)[0]
        tensors = [self.torch.empty(size, dtype=dtype, device=self.device) for size, dtype in zip(sizes, dtypes)]
        after = cuda.mem_get_info(self.device)[0]
        del tensors
        return before - after


def serve(arguments: list[str]) -> None:
    rank, world, device, store, folder = arguments
    subject = Rank(int(rank), int(world), device, store, folder)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        verb, _, case = line.strip().partition(" ")
        print(json.dumps(getattr(subject, verb)(case)), flush=True)
    subject.headrace.release()
    subject.torch.distributed.destroy_process_group()


# --------------------------------------------------------------------------------------------------------- the parent


class Team:
    """Processes that are told the same and answer with a line each."""

    def __init__(self, commands: list[list[object]]) -> None:
        self.processes = [subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           text=True) for command in commands]

    def answers(self) -> list[str]:
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            raise SystemExit(max(process.wait() for process in self.processes) or 1)
        return [line.strip() for line in lines]

    def ask(self, text: str) -> list[str]:
        for process in self.processes:
            process.stdin.write(text + "\n")
            process.stdin.flush()
        return self.answers()

    def end(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


def make_teams(options: argparse.Namespace, folder: Path) -> tuple[Team, Team | None]:
    store = folder / "store"
    ranks = Team([[sys.executable, __file__, "--rank", rank, options.world, options.device, store,
                   options.checkpoint] for rank in range(options.world)])
    rulers = None
    if options.device != "cpu":
        cores = max(1, len(os.sched_getaffinity(0)) // options.world)
        threads = ",".join(map(str, sorted({max(1, cores // 2), max(1, cores * 3 // 4), cores})))
        rulers = Team([[options.build / "bench_ruler", rank, threads, options.checkpoint]
                       for rank in range(options.world)])
        print("; ".join(rulers.answers()), flush=True)
    ranks.answers()
    return ranks, rulers


def ruler_trial(rulers: Team) -> float:
    """Bytes a second of all together, by the slowest."""
    rows = [line.split() for line in rulers.ask("trial")]
    return sum(int(count) for count, _ in rows) / max(float(seconds) for _, seconds in rows)


def measure(options: argparse.Namespace, ranks: Team, rulers: Team | None, total: int) -> dict:
    cases = [f"{case} {text}".strip() for text in ["", *options.tries] for case in CASES]
    result = {case: {"gb_s": [], "ratio": []} for case in cases}
    setting = None if rulers is None else rulers.ask("sweep")
    ruler_rates = []
    for case in cases:
        ranks.ask(f"trial {case}")  # warms up
    for number in range(options.pairs):
        order = cases if number % 2 == 0 else cases[::-1]
        ruler = ruler_trial(rulers) if rulers is not None and number % 2 == 0 else None
        rates = {}
        for case in order:
            rows = [json.loads(line) for line in ranks.ask(f"trial {case}")]
            rates[case] = total / max(row["seconds"] for row in rows)
            result[case]["last"] = rows
        if rulers is not None and ruler is None:
            ruler = ruler_trial(rulers)
        ruler_rates.append(ruler)
        for case, rate in rates.items():
            result[case]["gb_s"].append(rate / 1e9)
            if ruler is not None:
                result[case]["ratio"].append(rate / ruler)
    for case in cases:
        summarize(result[case], [json.loads(line) for line in ranks.ask(f"watch {case}")], total)
    return {"ruler": {"settings": setting, "gb_s": [rate and rate / 1e9 for rate in ruler_rates]}, "cases": result}


def summarize(row: dict, watched: list[dict], total: int) -> None:
    row["gb_s_median"] = statistics.median(row["gb_s"])
    if row["ratio"]:
        row |= {"ratio_median": statistics.median(row["ratio"]), "ratio_min": min(row["ratio"]),
                "ratio_max": max(row["ratio"])}
    row["bytes_read_in_all"] = sum(rank["bytes_read"] for rank in row["last"])
    row["read_share"] = row["bytes_read_in_all"] / total
    row["memory"] = watched


def report(result: dict) -> None:
    for case, row in result["cases"].items():
        share = f", {row['ratio_median']:.2f} of the ruler ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})" \
            if row["ratio"] else ""
        above = [entry["device_above_bytes"] for entry in row["memory"]]
        memory = "" if above[0] is None else f", at most {max(above) / 2**20:.0f} MiB above the tensors"
        print(f"{case:10} {row['gb_s_median']:6.2f} GB/s{share}, {row['read_share']:.3f} of the bytes read{memory}")


def device_count() -> int:
    import torch

    return torch.cuda.device_count()


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        serve(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parent.parent / "build")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--try", dest="tries", action="append", default=[])
    options = parser.parse_args()
    if options.pairs < PAIRS_MIN:
        parser.error(f"--pairs is {PAIRS_MIN} at least")
    if options.device == "cuda" and device_count() < options.world:
        print(f"bench_group: there are not {options.world} devices", file=sys.stderr)
        return NO_DEVICE
    total = sum(path.stat().st_size for path in options.checkpoint.glob("*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        ranks, rulers = make_teams(options, Path(folder))
        result = {"world": options.world, "pairs": options.pairs, "bytes": total,
                  **measure(options, ranks, rulers, total)}
        for team in filter(None, (ranks, rulers)):
            team.end()
    report(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
