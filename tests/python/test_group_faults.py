"""Process groups when a rank dies, stops, is late, leaves early, or has other files: every rank that lives ends with a
named error, or completes, and can load again."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest
import reference

torch = pytest.importorskip("torch")
import headrace  # noqa: E402
import ranks  # noqa: E402
from headrace import _group_link, _group_peer, _group_store  # noqa: E402

COUNT = 12


def data_of(number: int) -> bytes:
    return numpy.random.default_rng(number).bytes(40000)


def write_rows(folder: Path) -> Path:
    tensors = {f"t{i:02}": ("U8", [200, 200], data_of(i)) for i in range(COUNT)}
    (folder / "model").mkdir()
    reference.write_by_hand(folder / "model" / "m.safetensors", tensors)
    return folder / "model"


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    return write_rows(tmp_path)


def is_right(tensors: dict) -> bool:
    return len(tensors) == COUNT and all(bytes(tensors[f"t{i:02}"].cpu().numpy()) == data_of(i) for i in range(COUNT))


def load(folder, group=True, **options) -> bool:
    return is_right(headrace.load(folder, framework="torch", group=group, **options))


def after(folder: Path, group=None, **options) -> bool:
    """What a rank can still do: load alone, and in a fresh group of those that live."""
    assert load(folder, group=None, **options)
    return group is None or load(folder, group=group, **options)


def stream_until(folder, act, **options):
    """Loads in small windows; after a few tensors `act` is called."""
    tensors = {}
    with headrace.open(folder) as opened:
        for name, tensor in opened.stream(framework="torch", group=True, window_bytes=90000, group_bytes=1 << 18,
                                          order="file", **options):
            tensors[name] = tensor
            if len(tensors) == 3:
                act()
    return is_right(tensors)


def failure_of(call) -> tuple[str, str, float]:
    begun = time.monotonic()
    try:
        call()
    except headrace.HeadraceError as error:
        return error.kind, str(error), time.monotonic() - begun
    return "", "", time.monotonic() - begun


def living_group(living):
    return torch.distributed.new_group(living, use_local_synchronization=True)


# ----------------------------------------------------------------------------------------------- a rank that is gone


def lose_rank(rank, folder, number, silence, **options):
    _group_store.SILENCE_SECONDS = silence

    def act():
        if rank == 1:
            os.kill(os.getpid(), number)
    found = failure_of(lambda: stream_until(folder, act, **options))
    living = [member for member in range(torch.distributed.get_world_size()) if member != 1]
    return *found, after(folder, living_group(living), **options)


@pytest.mark.parametrize(("number", "silence"), [(signal.SIGKILL, 3), (signal.SIGSTOP, 10)])
def test_rank_is_lost(checkpoint, number, silence):
    outcomes = ranks.run(3, lose_rank, checkpoint, number, silence, lost=(1,))
    for rank in (0, 2):
        kind, text, seconds, again = outcomes[rank].value
        assert kind == "GroupError" and "rank 1 (global 1) does not answer since" in text, outcomes
        assert seconds < ranks.SECONDS_MAX and again, outcomes


def lose_host_of_store(rank, folder):
    _group_store.SILENCE_SECONDS = 3

    def act():
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return *failure_of(lambda: stream_until(folder, act)), after(folder)


def test_host_of_the_store_is_lost(checkpoint, unused_port):
    outcomes = ranks.run(2, lose_host_of_store, checkpoint, store=f"tcp://127.0.0.1:{unused_port}", lost=(0,))
    kind, text, seconds, again = outcomes[1].value
    assert kind == "GroupError" and ("store" in text or "rank 0" in text), outcomes
    assert seconds < ranks.SECONDS_MAX and again


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def load_after_loss(rank, folder):
    """The same group again, without its lost rank: it is not waited for as one that is only late."""
    _group_store.SILENCE_SECONDS = 2

    def act():
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    first = failure_of(lambda: stream_until(folder, act))
    return first, failure_of(lambda: load(folder))


def test_lost_rank_in_the_next_load(checkpoint):
    first, second = ranks.run(2, load_after_loss, checkpoint, lost=(1,))[0].value
    assert first[0] == second[0] == "GroupError"
    assert "rank 1 (global 1) was lost in an earlier load" in second[1] and second[2] < 10


def die_at(rank, folder, moment):
    """Rank 1 dies before it makes its link, as soon as that is made (those of the others may not be yet), or in its
    first collective."""
    os.environ["HEADRACE_GROUP_TIMEOUT"], _group_store.SILENCE_SECONDS = "600", 3
    make = _group_link.make

    def die(*arguments):
        if moment == "has a link":
            make(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and moment == "collects":
        _group_peer.Peer._collective = die
    elif rank == 1:
        _group_link.make = die
    return failure_of(lambda: load(folder))


@pytest.mark.parametrize("moment", ["has no link", "has a link", "collects"])
def test_rank_dies_while_the_load_begins(checkpoint, moment):
    outcomes = ranks.run(3, die_at, checkpoint, moment, lost=(1,))
    for rank in (0, 2):
        kind, text, seconds = outcomes[rank].value
        assert kind == "GroupError" and "rank 1 (global 1) does not answer since" in text, outcomes
        assert seconds < ranks.SECONDS_MAX, outcomes


def drop_in_a_cycle(rank, folder):
    """A load whose group has failed, that only the garbage collector finds. Rank 1 dies in its first collective, when
    rank 0's load has begun."""
    _group_store.SILENCE_SECONDS = 2
    complaints, has_begun = [], folder.parent / "has-begun"

    def die(*_):
        while not has_begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        _group_peer.Peer._collective = die
    sys.unraisablehook = lambda info: complaints.append(str(info.exc_value))
    job = headrace.start(folder, framework="torch", group=True, window_bytes=90000, group_bytes=1 << 18)
    has_begun.touch()
    found = failure_of(job.wait)
    job.itself = job
    time.sleep(1)
    del job
    gc.collect()
    return found, complaints


def test_garbage_of_a_load_that_failed(checkpoint):
    found, complaints = ranks.run(2, drop_in_a_cycle, checkpoint, lost=(1,))[0].value
    assert found[0] == "GroupError" and complaints == []


def never_begin(rank, folder):
    os.environ["HEADRACE_GROUP_TIMEOUT"] = "2"
    if rank == 1:
        time.sleep(4)
        return None
    return failure_of(lambda: load(folder))


def test_rank_never_begins(checkpoint):
    kind, text, seconds = ranks.values(ranks.run(2, never_begin, checkpoint))[0]
    assert kind == "GroupError" and "rank 1 (global 1) has not begun this load within 2 s" in text and seconds < 8


def leave_one_out(rank, folder, how):
    """Rank 1 does not begin the first load, or after rank 0 gave up; then all load as before."""
    os.environ["HEADRACE_GROUP_TIMEOUT"], _group_store.SILENCE_SECONDS = "2" if rank == 0 else "20", 3
    results = []
    if rank == 0:
        results.append(failure_of(lambda: load(folder))[:2])
    elif how != "left out":
        time.sleep(3)
        results.append(failure_of(lambda: load(folder))[:2])
    if how == "late, and tried again" and rank == 0:
        results.append(failure_of(lambda: load(folder))[:2])
    torch.distributed.barrier()
    os.environ["HEADRACE_GROUP_TIMEOUT"] = "20"
    for _ in range(3):
        results.append(failure_of(lambda: load(folder))[:2])
        torch.distributed.barrier()
    return results


@pytest.mark.parametrize("how", ["left out", "late", "late, and tried again"])
def test_ranks_find_each_other_after_a_load_that_one_left_out(checkpoint, how):
    first, second = ranks.values(ranks.run(2, leave_one_out, checkpoint, how))
    assert first[0][0] == "GroupError" and "rank 1 (global 1) has not begun this load" in first[0][1]
    assert first[-3:] == second[-3:] == [("", "")] * 3, (first, second)
    if how == "late":
        assert second[0][0] == "GroupError" and "the others gave up waiting for this rank" in second[0][1]
    if how == "late, and tried again":
        assert first[1] == second[0] == ("", ""), (first, second)


# ----------------------------------------------------------------------------------- a rank that ends, or is only late


def leave_early(rank, folder, how, **options):
    def act():
        if rank == 1 and how == "interrupt":
            signal.raise_signal(signal.SIGINT)
        if rank == 1 and how == "raise":
            raise ZeroDivisionError
    if how == "interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    try:
        found = failure_of(lambda: stream_until(folder, act, **options))
    except (ZeroDivisionError, KeyboardInterrupt) as error:
        found = type(error).__name__, "", time.monotonic() - begun
    return *found, after(folder, True, **options)


@pytest.mark.parametrize(("how", "own"), [("raise", "ZeroDivisionError"), ("interrupt", "KeyboardInterrupt")])
def test_rank_stops_early(checkpoint, how, own):
    loaded = ranks.values(ranks.run(3, leave_early, checkpoint, how))
    assert loaded[1][0] == own
    for rank in (0, 2):
        kind, text, seconds, again = loaded[rank]
        assert kind == "GroupError" and "rank 1" in text, loaded
        assert seconds < ranks.SECONDS_MAX and again


def leave_with_the_stream_in_a_variable(rank, folder, how):
    """The exception is kept, and with it the frame whose variable has the stream."""
    def use():
        stream = headrace.stream(folder, framework="torch", group=True, window_bytes=90000, group_bytes=1 << 18)
        try:
            with stream if how == "with" else contextlib.nullcontext():
                for count, _ in enumerate(stream):
                    if rank == 1 and count == 2:
                        raise ZeroDivisionError
        finally:
            if how == "close":
                stream.close()
    begun, kept = time.monotonic(), None
    try:
        found = failure_of(use)
    except ZeroDivisionError as error:
        kept = error
        found = "ZeroDivisionError", "", time.monotonic() - begun
    again = after(folder, True)
    assert kept is None or kept.__traceback__ is not None
    return *found, again


@pytest.mark.parametrize("how", ["with", "close"])
def test_with_and_close_end_a_stream_that_a_variable_holds(checkpoint, how):
    loaded = ranks.values(ranks.run(2, leave_with_the_stream_in_a_variable, checkpoint, how))
    assert loaded[1][0] == "ZeroDivisionError" and loaded[1][3]
    kind, text, seconds, again = loaded[0]
    assert kind == "GroupError" and "rank 1" in text and seconds < ranks.SECONDS_MAX and again, loaded


def interrupt_meeting(rank, folder):
    """Ctrl-C while a rank waits for the others to begin."""
    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main = threading.main_thread().ident
        threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    else:
        time.sleep(1)
    try:
        return *failure_of(lambda: load(folder)), after(folder, True)
    except KeyboardInterrupt:
        return "KeyboardInterrupt", "", 0.0, after(folder, True)


def test_interrupted_before_the_others_begin(checkpoint):
    loaded = ranks.values(ranks.run(2, interrupt_meeting, checkpoint))
    assert loaded[1][0] == "KeyboardInterrupt"
    assert loaded[0][0] == "GroupError" and "rank 1 (global 1) was stopped: KeyboardInterrupt" in loaded[0][1]
    assert loaded[0][2] < 5 and all(entry[3] for entry in loaded)


def interrupt_serving(rank, folder, path):
    """Ctrl-C in a rank that has all its tensors and reads on for the others, which take their time."""
    begun = time.monotonic()
    if rank == 2:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main = threading.main_thread().ident
        threading.Timer(1, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    options = {"framework": "torch", "group": True, "shard": {"kv": 1}, "group_bytes": 1 << 20}
    try:
        if rank == 2:
            headrace.load(path, **options)
        else:
            with headrace.start(path, window_bytes=1, **options) as job:
                time.sleep(3)  # nobody makes room for "kv" meanwhile
                job.wait()
    except (KeyboardInterrupt, headrace.HeadraceError) as error:
        return type(error).__name__, str(error), time.monotonic() - begun
    return "", "", time.monotonic() - begun


def test_interrupted_while_it_reads_for_others(tmp_path):
    tensors = {"all": ("U8", [3_000_000], bytes(3_000_000)), "kv": ("U8", [200_000, 2, 8], bytes(3_200_000))}
    path = reference.write_by_hand(tmp_path / "heads.safetensors", tensors)
    loaded = ranks.values(ranks.run(3, interrupt_serving, tmp_path, path))
    assert loaded[2][0] == "KeyboardInterrupt" and loaded[2][2] < 5, loaded  # the collective that runs ends first
    assert all(kind == "GroupError" and "rank 2" in text for kind, text, _ in loaded[:2]), loaded


def be_late(rank, folder, when, **options):
    _group_store.SILENCE_SECONDS = 3  # the heartbeat goes on
    if rank == 1 and when == "start":
        time.sleep(5)
    return stream_until(folder, lambda: time.sleep(5 if rank == 1 and when == "middle" else 0), **options)


@pytest.mark.parametrize("when", ["start", "middle"])
def test_rank_is_late(checkpoint, when):
    assert ranks.values(ranks.run(2, be_late, checkpoint, when)) == [True, True]


def exit_in_the_middle(rank, folder):
    if rank == 1:
        code = ("import sys, os; sys.path[:0] = sys.argv[4:]; import torch.distributed as d, headrace; "
                "d.init_process_group('gloo', init_method=sys.argv[2], rank=1, world_size=2); "
                "s = headrace.stream(sys.argv[1], framework='torch', group=True, window_bytes=90000, "
                "group_bytes=1 << 18); next(s)")
        store = f"file://{folder}/../other-store"
        done = subprocess.run([sys.executable, "-c", code, folder, store, "1", *sys.path], timeout=25, check=False)
        return done.returncode
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/../other-store", rank=0, world_size=2)
    return failure_of(lambda: load(folder, window_bytes=90000, group_bytes=1 << 18))


def test_interpreter_ends_in_the_middle(checkpoint):
    (kind, text, seconds), _ = ranks.values(ranks.run(2, exit_in_the_middle, checkpoint))
    assert kind == "GroupError" and "rank 1" in text and seconds < ranks.SECONDS_MAX


# ------------------------------------------------------------------------------------------------------- bad files


def own_file(rank, folder, what, **more):
    path = folder
    if rank == 1 and what == "missing":
        path = folder / "nowhere"
    if rank == 1 and what == "truncated":
        data = (folder / "m.safetensors").read_bytes()
        path = folder.parent / "cut.safetensors"
        path.write_bytes(data)
        opened = headrace.open(path)
        os.truncate(path, len(data) - 200000)
        return *failure_of(lambda: opened.load(framework="torch", group=True, **more)), after(folder, True, **more)
    if rank == 1 and what == "other":
        path = folder.parent / "other.safetensors"
        reference.write_by_hand(path, {f"t{i:02}": ("U8", [200, 200 + i], bytes(200 * (200 + i)))
                                       for i in range(COUNT)})
    options = {}
    if rank == 1 and what == "shard":
        options["shard"] = {"t03": 0}
    if rank == 1 and what == "argument":
        options["names"] = "no such tensor"
    if rank == 1 and what == "memory":
        options["into"] = {"t00": torch.empty(3)}
    return *failure_of(lambda: load(path, **options, **more)), after(folder, True, **more)


@pytest.mark.parametrize(("what", "own", "texts"), [
    ("missing", "IoError", ["rank 1", "nowhere"]),
    ("truncated", "FileChanged", ["rank 1"]),
    ("other", "GroupError", ["rank 1"]),
    ("shard", "GroupError", ["rank 1"]),
    ("argument", "TensorNotFound", ["rank 1", "no such tensor"]),
    ("memory", "InvalidArgument", ["rank 1", "t00"]),
])
def test_one_rank_has_other_files_or_wishes(checkpoint, what, own, texts):
    loaded = ranks.values(ranks.run(3, own_file, checkpoint, what))
    for rank, (kind, text, seconds, again) in enumerate(loaded):
        assert kind == (own if rank == 1 else "GroupError"), loaded
        assert own == "GroupError" or rank == 1 or all(part in text for part in texts), loaded
        assert seconds < 15 and again


# ------------------------------------------------------------------------------------------------- what is left behind


def count_threads_and_keys(rank, folder):
    for _ in range(4):
        assert load(folder)
    store = torch.distributed.distributed_c10d._get_default_store()
    group = torch.distributed.group.WORLD
    member = headrace._group._members[group]
    kept = [link.number for link in member.links], len(member.stores)
    headrace.release()
    time.sleep(0.3)
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]
    keys = store.num_keys() if hasattr(store, "num_keys") else None
    return kept, len(member.links) + len(member.stores), names, keys


def test_one_link_and_one_connection_serve_all_loads_and_nothing_stays(checkpoint):
    for kept, left, names, keys in ranks.values(ranks.run(2, count_threads_and_keys, checkpoint)):
        assert kept == ([1], 1) and left == 0 and names == []
        assert keys is None or keys < 60


def concurrent(rank, folder):
    """Two loads of one group at once, begun in the same order, each with a link of its own."""
    with headrace.open(folder) as opened:
        jobs = [opened.start(framework="torch", group=True) for _ in range(2)]
        return [is_right(job.wait()) for job in reversed(jobs)]


def test_two_loads_at_once(checkpoint):
    assert ranks.values(ranks.run(2, concurrent, checkpoint)) == [[True, True]] * 2
