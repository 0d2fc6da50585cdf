"""The life of loads in Python: the interpreter lock, Ctrl-C, early ends, interpreter exit, forks, memory."""

import functools
import gc
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

import headrace

TICK_STALL_SECONDS_MAX = 0.010


def write_sparse(path, tensors: dict[str, int]):
    """A file of U8 tensors of these sizes, all zero, that takes no room on the disk."""
    entries, end = {}, 0
    for name, size in tensors.items():
        entries[name], end = (end, end + size), end + size
    body = ",".join(
        f'"{name}":{{"dtype":"U8","shape":[{stop - start}],"data_offsets":[{start},{stop}]}}'
        for name, (start, stop) in entries.items()
    )
    header = f"{{{body}}}".encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return path


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """64 tensors of 16 MiB."""
    return write_sparse(tmp_path_factory.mktemp("big") / "big.safetensors", {f"t{i:02}": 1 << 24 for i in range(64)})


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """One tensor; every second byte of it takes seconds to gather."""
    return write_sparse(tmp_path_factory.mktemp("slow") / "slow.safetensors", {"x": 3 << 30})


SLOW = "slices={'x': slice(None, None, 2)}"


def start_python(program: str, *arguments: object, **environment: str) -> subprocess.Popen:
    options = ["-W", "ignore::DeprecationWarning", "-X", "faulthandler"]
    command = [sys.executable, *options, "-c", textwrap.dedent(program), *map(str, arguments)]
    environment = os.environ | environment
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen, seconds: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=seconds)
    finally:
        process.kill()


def run_python(program: str, *arguments: object, seconds: float = 60, **environment: str) -> str:
    process = start_python(program, *arguments, **environment)
    out, err = finish(process, seconds)
    assert process.returncode == 0 and err == "", (process.returncode, out, err)
    return out


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptor_count() -> int:
    return len(os.listdir("/proc/self/fd"))


# ------------------------------------------------------------------------------------------------ interpreter lock


def longest_stall(work) -> float:
    stop, stalls = threading.Event(), [0.0]

    def tick():
        last = time.monotonic()
        while not stop.is_set():
            time.sleep(0.0005)
            now = time.monotonic()
            stalls.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        work()
    finally:
        stop.set()
        thread.join()
    return max(stalls)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """50,000 tensors of 64 bytes: loops over them in C are long."""
    header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [16], "data_offsets": [64 * i, 64 * i + 64]}
              for i in range(50_000)}
    text = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("many") / "many.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64 * len(header)))
    return path


@pytest.fixture
def no_collector():
    """Python's collector stalls all threads over many objects, whoever made them."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("framework", ["numpy", None])
@pytest.mark.parametrize("way", ["load", "stream"])
@pytest.mark.parametrize("what", ["big", "many"])
def test_other_threads_run_while_bytes_move(request, no_collector, what, way, framework):
    big = request.getfixturevalue(what)
    piece = 1 << 24 if what == "big" else 64  # the lock changes hands as often
    loader = headrace.Loader(threads=1)
    kept = []  # freeing a gigabyte stalls too, but is not ours

    def work():
        if way == "load":
            kept.append(headrace.load(big, framework=framework, loader=loader))
        else:
            for _ in headrace.stream(big, framework=framework, loader=loader, window_bytes=1 << 25):
                pass

    stalls = []
    for _ in range(8):  # a busy machine stalls on its own: one quiet run, or one no worse than plain reading, is proof
        begin = time.monotonic()
        stalls.append(longest_stall(work))
        kept.clear()
        seconds = time.monotonic() - begin
        plain = longest_stall(functools.partial(read_plainly, big, seconds, piece))
        if stalls[-1] < max(TICK_STALL_SECONDS_MAX, plain):
            return
    pytest.fail(f"a ticking thread stalled for {min(stalls) * 1000:.1f} ms at best")


def read_plainly(path, seconds, piece):
    """Reads a file, `piece` bytes a call that releases the interpreter lock, again and again for a time."""
    buffer = bytearray(piece)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer) > 0 and time.monotonic() < end:
                pass


# ---------------------------------------------------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize(
    "wait",
    [
        f"headrace.load(path, {SLOW})",
        f"headrace.start(path, {SLOW}).get('x')",
        f"next(headrace.stream(path, {SLOW}))",
        f"job = headrace.start(path, {SLOW}); job.future('x').result()",
        f"headrace.start(path, lazy=True, {SLOW}).get('x')",
        f"headrace.load(path, framework='np', {SLOW})",
    ],
)
def test_ctrl_c_ends_a_wait(slow, wait):
    program = f"""
        import signal, sys, headrace
        path = sys.argv[1]
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        print("ready", flush=True)
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        else:
            print("too fast", flush=True)
    """
    process = start_python(program, slow)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = finish(process, 30)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
    assert time.monotonic() - begin < 2


def test_another_signal_is_handled_during_a_wait_and_the_load_goes_on(big):
    hits = []
    before = signal.signal(signal.SIGALRM, lambda *_: hits.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        loaded = headrace.load(big, loader=headrace.Loader(threads=1, chunk_bytes=1 << 16))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(loaded) == 64 and hits


# ------------------------------------------------------------------------------------------------------- early ends


def quiet(check) -> bool:
    deadline = time.monotonic() + 5
    while not check() and time.monotonic() < deadline:
        time.sleep(0.01)
    return check()


def drop_generator(path):
    stream = headrace.stream(path, framework="np", window_bytes=1 << 25)
    next(stream)
    del stream


def close_generator(path):
    stream = headrace.stream(path, window_bytes=1 << 25)
    next(stream)
    stream.close()


def break_loop(path):
    for _ in headrace.stream(path):
        break


def raise_in_loop(path):
    with pytest.raises(ZeroDivisionError):
        for _ in headrace.stream(path, framework="np"):
            raise ZeroDivisionError


def drop_job(path):
    headrace.start(path)


def cancel_job(path):
    job = headrace.start(path)
    job.cancel()
    with pytest.raises(headrace.errors.Cancelled):
        job.wait()
    job.close()


def close_job_with_futures(path):
    with headrace.start(path) as job:
        futures = [job.future(name) for name in job.names()]
    assert all(future.done() or future.exception(10) or future.result() is not None for future in futures)


def drop_job_with_futures(path):
    job = headrace.start(path)
    futures = [job.future(name) for name in job.names()[-4:]]
    del job
    assert all(future.result(10).nbytes == 1 << 24 for future in futures)


def close_while_others_wait(path):
    job = headrace.start(path, window_bytes=1)
    outcomes = []

    def take(name):
        try:
            outcomes.append(job.get(name))
        except headrace.errors.Cancelled as error:
            outcomes.append(error)

    threads = [threading.Thread(target=take, args=(name,)) for name in job.names()[-8:]]
    for thread in threads:
        thread.start()
    job.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(outcomes) == 8


@pytest.mark.parametrize(
    "end",
    [
        drop_generator, close_generator, break_loop, raise_in_loop, drop_job, cancel_job, close_job_with_futures,
        drop_job_with_futures, close_while_others_wait,
    ],
)
def test_an_early_end_is_prompt_and_leaves_nothing(big, end):
    headrace.load(big, "t00", framework="np")  # numpy has threads of its own
    gc.collect()
    threads, descriptors = thread_count(), descriptor_count()
    begin = time.monotonic()
    end(big)
    assert time.monotonic() - begin < 3
    gc.collect()
    assert quiet(lambda: thread_count() <= threads), "threads are left"
    assert quiet(lambda: descriptor_count() <= descriptors), "descriptors are left"


def test_a_file_cut_short_is_an_error_and_the_next_load_works(tmp_path):
    path = write_sparse(tmp_path / "x.safetensors", {"a": 1 << 20, "b": 1 << 22})
    with headrace.open(path) as checkpoint:
        os.truncate(path, os.path.getsize(path) - 1)
        for framework in (None, "np"):
            with pytest.raises((headrace.errors.FileChanged, headrace.errors.ShortRead)) as caught:
                checkpoint.load(framework=framework)
            assert caught.value.file == str(path)
        os.truncate(path, os.path.getsize(path) + 1)
    assert len(headrace.load(path)) == 2


def test_a_deadline_ends_a_load(slow):
    begin = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        headrace.load(slow, slices={"x": slice(None, None, 2)}, deadline=0.1)
    assert isinstance(caught.value, headrace.errors.DeadlineExceeded) and time.monotonic() - begin < 2


# ------------------------------------------------------------------------------------------------- interpreter exit


EXITS = {
    "a job is running": "job = headrace.start(path)",
    "in frameworks' memory": "job = headrace.start(path, framework='np')",
    "a suspended generator": "s = headrace.stream(path, window_bytes=1 << 25); next(s)",
    "futures are waited for": "job = headrace.start(path); f = [job.future(n) for n in job.names()]",
    "a daemon thread waits": "import contextlib, threading; job = headrace.start(path, window_bytes=1)\n"
    "def take():\n with contextlib.suppress(headrace.HeadraceError): dict(job)\n"
    "threading.Thread(target=take, daemon=True).start()",
    "begun": "headrace.begin(path)",
    "a cycle": "l = []; l.append((headrace.start(path), l)); del l",
    "exit inside a loop": "for _ in headrace.stream(path): sys.exit(0)",
    "a slow gather": f"job = headrace.start(sys.argv[2], {SLOW})",
}


@pytest.mark.parametrize("state", EXITS)
def test_the_interpreter_exits_at_once(big, slow, state):
    begin = time.monotonic()
    run_python(f"import sys, headrace\npath = sys.argv[1]\n{EXITS[state]}\n", big, slow, seconds=20)
    assert time.monotonic() - begin < 4


# ------------------------------------------------------------------------------------------------------------ forks


def test_fork(big):
    program = """
        import os, sys, headrace
        path = sys.argv[1]
        job, mine = headrace.start(path, window_bytes=1 << 25), headrace.Loader()
        job.get("t00")
        beginning = headrace.begin(path)
        checkpoint = headrace.open(path)
        child = os.fork()
        if child == 0:
            for call in (lambda: job.get("t01"), lambda: next(iter(job)), job.wait,
                         lambda: headrace.load(path, loader=mine)):
                try:
                    call()
                except headrace.errors.Forked:
                    continue
                os._exit(1)
            assert len(headrace.load(path, "t0*", framework="np")) == 10
            assert len(checkpoint.load("t0*")) == 10
            del job, mine, checkpoint
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(dict(job)) == 63
    """
    run_python(program, big)


def test_multiprocessing_by_fork(big):
    run_python(
        """
        import multiprocessing, sys, headrace
        path = sys.argv[1]
        headrace.load(path, "t0*")
        def work(number):
            return len(headrace.load(path, f"t{number}*", framework="np"))
        with multiprocessing.get_context("fork").Pool(3) as pool:
            assert pool.map(work, range(6)) == [10] * 6
        """,
        big,
    )


# ----------------------------------------------------------------------------------------------------------- memory


MEMORY = """
    import ctypes, gc, os, sys
    import headrace
    def status(field):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))
"""


@pytest.mark.parametrize("framework", ["pt", "np", None])
@pytest.mark.parametrize("order", ["ready", "file", "reverse"])
def test_a_window_bounds_the_memory_of_a_stream(big, framework, order):
    pytest.importorskip("torch" if framework == "pt" else "numpy")
    program = MEMORY + """
    path, framework, order = sys.argv[1], sys.argv[2], sys.argv[3]
    options = {"framework": None if framework == "None" else framework, "window_bytes": 1 << 25}
    headrace.load(path, "t00", **options)
    before = status("VmRSS")
    checkpoint = headrace.open(path)
    if order == "reverse":
        with checkpoint.start(**options) as job:
            for name in reversed(job.names()):
                job.get(name)
    else:
        for name, tensor in checkpoint.stream(order=order, **options):
            del tensor
    print(status("VmHWM") - before, checkpoint.last_stats.peak_window_bytes)
    """
    # Without this glibc raises its threshold and fragments its heap, with torch.empty alone just as much.
    out = run_python(program, big, framework, order, MALLOC_MMAP_THRESHOLD_=str(1 << 20))
    grown, window = map(int, out.split())
    # In reverse order the window is full of what is wanted last; each tensor that is waited for comes on top.
    bound = (1 << 25) + (1 << 24) * (order == "reverse")
    assert window <= bound
    assert grown < bound + (1 << 24) + (16 << 20), f"1 GiB streamed grew the process by {grown >> 20} MiB"


@pytest.mark.parametrize("framework", ["pt", "np", None])
def test_100000_tensors_leave_nothing(tmp_path, framework):
    pytest.importorskip("torch" if framework == "pt" else "numpy")
    path = write_sparse(tmp_path / "many.safetensors", {f"model.layers.{i}.weight": 64 for i in range(100_000)})
    program = MEMORY + """
    path, framework = sys.argv[1], None if sys.argv[2] == "None" else sys.argv[2]
    class MallocInfo(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in
                    "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocInfo
    def in_use():  # the resident size would also count what malloc keeps and fragments
        gc.collect()
        info = mallinfo2()
        return info.uordblks + info.hblkhd, sys.getallocatedblocks()
    def rounds(count):
        for _ in range(count):
            assert len(headrace.load(path, framework=framework)) == 100_000
            assert sum(1 for _ in headrace.stream(path, framework=framework, window_bytes=1 << 20)) == 100_000
    rounds(1)
    before, blocks_before = in_use()
    rounds(3)
    after, blocks_after = in_use()
    print(after - before, blocks_after - blocks_before)
    """
    grown, blocks = map(int, run_python(program, path, framework, seconds=300).split())
    assert grown < 100_000 and blocks < 1000, f"grown by {grown} bytes and {blocks} Python blocks"


def test_tensors_outlive_everything():
    program = """
        import gc, sys, headrace, numpy
        data = numpy.arange(1000, dtype=numpy.int32)
        header = b'{"x":{"dtype":"I32","shape":[10,100],"data_offsets":[0,4000]}}'
        import tempfile, os
        path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + data.tobytes())
        tensor = headrace.load(path)["x"]
        array, view = numpy.from_dlpack(tensor), memoryview(tensor)
        capsule = tensor.__dlpack__(max_version=(1, 0))
        del tensor
        headrace.release()
        os.remove(path)
        gc.collect()
        assert (array == data.reshape(10, 100)).all() and view.tobytes() == data.tobytes()
        del array, view, capsule
    """
    run_python(program)


def test_small_tensors_do_not_wait_for_a_busy_thread(tmp_path):
    """Another thread that never sleeps holds the interpreter lock for a switch interval at a time."""
    path = write_sparse(tmp_path / "many.safetensors", {f"t{i}": 64 for i in range(5000)})
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        begin = time.monotonic()
        headrace.load(path, framework="np")
        seconds = time.monotonic() - begin
    finally:
        stop.set()
        thread.join()
    assert seconds < 5000 * sys.getswitchinterval() / 10


def test_a_future_that_failed_keeps_no_load(tmp_path):
    path = write_sparse(tmp_path / "short.safetensors", {"a": 1 << 20})
    with headrace.open(path) as checkpoint:
        os.truncate(path, os.path.getsize(path) - 100)
        gc.disable()
        try:
            job = checkpoint.start()
            future = job.future("a")
            with pytest.raises(headrace.HeadraceError):
                future.result()
            alive = weakref.ref(job._load)
            job.close()
            del job, future
            deadline = time.monotonic() + 5  # the thread of futures ends by itself
            while alive() is not None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert alive() is None
        finally:
            gc.enable()
