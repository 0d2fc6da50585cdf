"""Each call that the extension makes for memory, files or threads fails in turn: what comes is a proper exception or
the right bytes, nothing is left behind, and the next use works. The package is the installed one; a preloaded library
does the failing (tests/environment/fail_nth.c)."""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import ctypes, gc, json, os, struct, sys, time

    import headrace
    import headrace._core

    folder, scenario = sys.argv[1:]
    shim = ctypes.CDLL(None)
    shim.fail_nth_arm.argtypes = [ctypes.c_long]
    for name in ("fail_nth_fired", "fail_nth_live_blocks", "fail_nth_live_pages"):
        getattr(shim, name).restype = ctypes.c_long
    shim.fail_nth_find(headrace._core.__file__.encode())

    SIZES = [150_000, 3, 0, 70_001, 200_000, 64]
    expected = {f"t{i}": bytes((j * 7 + i * 31 + j // 251) % 251 for j in range(size)) for i, size in enumerate(SIZES)}

    def write(path, names):
        header, end = {}, 0
        for name in names:
            size = len(expected[name])
            header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + b"".join(expected[name] for name in names))

    write(f"{folder}/a.safetensors", ["t0", "t1", "t2"])
    write(f"{folder}/b.safetensors", ["t3", "t4", "t5"])
    every = sorted(expected)

    def as_bytes(tensor):
        return bytes(memoryview(tensor)) if tensor.shape != (0,) else b""

    def opened():
        with headrace.open(folder) as checkpoint:
            return {name: checkpoint[name].shape for name in checkpoint} == {n: (len(expected[n]),) for n in every}

    def loaded(**options):
        tensors = headrace.load(folder, **options)
        return {name: as_bytes(tensor) for name, tensor in tensors.items()} == expected

    def sliced():
        tensors = headrace.load(folder, slices={"t0": slice(None, None, 2), "t4": slice(5, 100_000)})
        wanted = expected | {"t0": expected["t0"][::2], "t4": expected["t4"][5:100_000]}
        return {name: as_bytes(tensor) for name, tensor in tensors.items()} == wanted

    def streamed():
        return {n: as_bytes(t) for n, t in headrace.stream(folder, window_bytes=100_000)} == expected

    def waited():
        job = headrace.start(folder)
        try:
            return all(as_bytes(job.get(name)) == expected[name] for name in reversed(every))
        finally:
            job.cancel()

    def safely_opened():
        with headrace.safe_open(f"{folder}/b.safetensors", framework="np") as file:
            return all(file.get_tensor(n).tobytes() == expected[n] for n in file.keys()) \\
                and file.get_slice("t4")[10:20].tobytes() == expected["t4"][10:20]

    def from_table():
        rows, end = [], os.path.getsize(f"{folder}/b.safetensors")
        for name in ("t5", "t4", "t3"):
            end -= len(expected[name])
            rows.append((name, "U8", (len(expected[name]),), 0, end))
        tensors = headrace.from_table(f"{folder}/b.safetensors", rows).load()
        return {name: as_bytes(tensor) for name, tensor in tensors.items()} == {n: expected[n] for n in every[3:]}

    use = {"open": opened, "table": from_table, "load": loaded, "numpy": lambda: loaded(framework="np"),
           "slices": sliced, "stream": streamed, "job": waited, "safe_open": safely_opened}[scenario]

    def left():
        gc.collect()
        headrace.release()
        return (shim.fail_nth_live_blocks(), shim.fail_nth_live_pages(), len(os.listdir("/proc/self/fd")),
                len(os.listdir("/proc/self/task")))

    def expect_nothing_left(when):
        for _ in range(500):
            if (now := left()) == before:
                return
            time.sleep(0.01)
        raise SystemExit(f"{when}: blocks, pages, descriptors, threads are {now}, were {before}")

    for _ in range(3):
        assert use()
    before = left()
    raised = 0
    for n in range(1, 5000):
        shim.fail_nth_arm(n)
        try:
            if not use():
                raise SystemExit(f"call {n}: wrong bytes")
        except headrace.HeadraceError as error:
            raised += 1
            assert isinstance(error, (MemoryError, OSError)), (n, error)
            assert str(error), n
            error = None
        except MemoryError:
            raised += 1
        fired = shim.fail_nth_fired()
        shim.fail_nth_arm(0)
        expect_nothing_left(f"call {n}")
        if not fired:
            break
        assert use(), f"after call {n}"
        expect_nothing_left(f"after call {n}")
    print(n - 1, raised)
"""


@pytest.mark.parametrize("scenario", ["open", "table", "load", "numpy", "slices", "stream", "job", "safe_open"])
def test_every_call_fails_in_turn(tmp_path, build, scenario):
    shim = build / "libfail_nth.so"
    if not shim.exists():
        pytest.skip(f"{shim} is built with the C tests only")
    if scenario in ("numpy", "safe_open"):
        pytest.importorskip("numpy")
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), tmp_path, scenario]
    environment = os.environ | {"LD_PRELOAD": str(shim)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    failed, raised = map(int, result.stdout.split())
    assert failed > 15 and raised > 5
