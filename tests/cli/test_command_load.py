"""headrace load: figures, slices, devices, signals."""

import os
import pty
import re
import signal
import subprocess
import time

import pytest

from command import BINARY, SMALL, run, run_json, write, write_sharded

ROUTES = ["pread", "uring", "mmap"]


def usable_routes():
    uring = [c for c in run_json("doctor", "--json")["capabilities"] if "uring" in c["name"]]
    return [route for route in ROUTES if route != "uring" or all(c["usable"] for c in uring)]


def test_text(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    result = run("load", "--device", "cpu", "--route", "pread", "--threads=1", path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "device", "tensors", "bytes", "read", "predicted", "seconds", "GB/s", "of", "route", "threads", "bottleneck"]
    assert lines[:5] == ["device      cpu", "tensors     3", "bytes       24", "read        24",
                         "predicted   unknown (never probed: headrace probe PATH)"]
    assert re.fullmatch(r"seconds     \d+\.\d{6}", lines[5])
    assert re.fullmatch(r"GB/s        \d+\.\d{3}", lines[6])
    assert lines[7] == "of ceiling  unknown"
    assert re.fullmatch(r"route       pread( \(.+\))?", lines[8])
    assert lines[9] == "threads     1"


def test_json(tmp_path):
    index = write_sharded(tmp_path / "m", {"1.safetensors": {"a": SMALL["a"]}, "2.safetensors": {"c": SMALL["c"]}})
    report = run_json("load", "--json", "--device", "cpu", "--threads", "2", index)
    assert (report["device"], report["tensors"], report["files"], report["bytes"]) == ("cpu", 2, 2, 12)
    assert report["route"] in ROUTES and report["route_reason"]
    assert report["seconds"] > 0
    assert report["gb_per_second"] == pytest.approx(12 / report["seconds"] / 1e9, abs=1e-6)
    assert len(report["repeats"]) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_routes(tmp_path, route):
    if route not in usable_routes():
        pytest.skip(f"{route} is not usable here")
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [3_000_001], None)})
    report = run_json("load", "--json", "--route", route, path)
    assert (report["route"], report["bytes"]) == (route, 3_000_001)
    assert run_json("load", "--json", path, env={"HEADRACE_ROUTE": route})["route"] == route


def test_repeat(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    report = run_json("load", "--json", "--repeat", "5", path)
    times = sorted(repeat["seconds"] for repeat in report["repeats"])
    assert len(times) == 5
    assert report["seconds"] == times[2]
    assert all(repeat["bytes"] == 24 for repeat in report["repeats"])
    lines = run("load", "--repeat=2", path).stdout.splitlines()
    assert lines[0].startswith("load 1  ") and lines[1].startswith("load 2  ")
    assert "(median)" in lines[7]


def test_match_and_slice(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    count = lambda *options: run_json("load", "--json", *options, path)["bytes"]
    assert count("--match", "b.*") == 12
    assert count("--match", "b.*", "--slice", "b.weight=[1:, ::2]") == 4
    assert count("--slice", "*=[1:2]") == 4 + 6 + 1
    assert count("--slice", "*=[1:2]", "--slice", "a=[0:0]") == 0 + 6 + 1
    assert count("--slice=c=3") == 8 + 12 + 1


def test_a_slice_reads_only_what_it_needs(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [64, 1 << 16], None)})
    report = run_json("load", "--json", "--route", "pread", "--slice", "t=[7:9]", path)
    assert report["bytes"] == 2 << 16
    assert 2 << 16 <= report["bytes_read"] <= (2 << 16) + 8192


def test_a_name_with_an_equals_sign(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a=b": ("U8", [4], None)})
    assert run_json("load", "--json", "--slice", "a=b=[1:2]", path)["bytes"] == 1


@pytest.mark.parametrize("slice, code, kind", [
    ("none=[0:1]", 1, "TensorNotFound"),
    ("a", 2, "InvalidArgument"),
    ("=[0:1]", 2, "InvalidArgument"),
    ("a=[0:1,0:1]", 2, "InvalidArgument"),
    ("a=[x]", 2, "InvalidArgument"),
    ("a=[2]", 2, "InvalidArgument"),
])
def test_wrong_slices(tmp_path, slice, code, kind):
    path = write(tmp_path / "x.safetensors", SMALL)
    assert run_json("load", "--json", "--slice", slice, path, code=code)["error"]["kind"] == kind
    result = run("load", "--slice", slice, path)
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith(f"headrace load: {kind}: ") and result.stderr.count("\n") == 1


def test_a_slice_must_meet_the_selection(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    assert run("load", "--match", "a", "--slice", "c=[0:1]", path).returncode == 1


def test_window(tmp_path):
    path = write(tmp_path / "x.safetensors", {f"t{i:02}": ("U8", [1 << 20], None) for i in range(16)})
    report = run_json("load", "--json", "--window", "2MiB", "--chunk", "64KiB", path)
    assert report["bytes"] == 16 << 20
    assert report["peak_window_bytes"] <= 2 << 20
    variables = {"HEADRACE_WINDOW_BYTES": "4MiB"}
    assert run_json("load", "--json", path, env=variables)["peak_window_bytes"] <= 4 << 20
    assert run_json("load", "--json", "--window=0", path, env=variables)["bytes"] == 16 << 20


def test_an_unknown_device_is_a_fault(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    assert run("load", "--device", "cpu", path).returncode == 0
    error = run_json("load", "--json", "--device", "cuda:0", path, code=3)["error"]
    assert error["kind"] in ("DeviceUnavailable", "Unsupported")


def test_options_out_of_range_are_wrong_usage(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    for option in (["--repeat", "0"], ["--chunk", "1"], ["--queue-depth", "100000"], ["--threads", "100000"]):
        error = run_json("load", "--json", *option, path, code=2)["error"]
        assert error["kind"] == "InvalidArgument", option


def test_a_missing_file(tmp_path):
    error = run_json("load", "--json", tmp_path / "missing.safetensors", code=1)["error"]
    assert error["kind"] == "IoError"


def test_no_bar_without_a_terminal(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [30_000_000], None)})
    assert run("load", path).stderr == ""


def sparse(path, size):
    """A valid file of zeros that takes no space."""
    write(path, {"t": ("U8", [0], None)}, header={"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    os.truncate(path, path.stat().st_size + size)
    return path


def test_a_bar_on_a_terminal_that_is_erased(tmp_path):
    path = sparse(tmp_path / "x.safetensors", 1 << 30)
    ours, theirs = pty.openpty()
    arguments = [BINARY, "load", "--threads", "1", "--repeat", "3", "--window", "64MiB", "--route", "pread", path]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            drawn += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert process.wait() == 0 and b"GB/s" in process.stdout.read()
    process.stdout.close()
    text = drawn.decode()
    assert re.search(r"\r *\d+% \[#* *\] \d+\.\d\d GB/s, \d+:\d\d left", text)
    assert text.endswith("\r") and text.split("\r")[-2].strip() == ""
    assert "\n" not in text and "\x1b" not in text


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_a_load_promptly(tmp_path, number, code):
    path = sparse(tmp_path / "x.safetensors", 1 << 30)
    arguments = [BINARY, "load", "--repeat", "1000", "--window", "64MiB", "--threads", "1", path]
    # what ran this test may ignore the signal, as shells do for background jobs, and would hand that on
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    try:
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(number)
        began = time.monotonic()
        output, errors = process.communicate(timeout=10)
        assert time.monotonic() - began < 1
    finally:
        process.kill()
    assert (process.returncode, output) == (code, "")
    assert errors in ("headrace load: interrupted\n", "")


@pytest.mark.parametrize("attempt", range(8))
def test_a_signal_ends_many_short_loads(tmp_path, attempt):
    path = write(tmp_path / "x.safetensors", {"a": ("U8", [8192], None)})
    process = subprocess.Popen([BINARY, "load", "--repeat", "1000000", path], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        time.sleep(0.2 + attempt / 100)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, output) == (130, "")


def test_a_bare_name_is_said_also_where_the_message_has_that_word(tmp_path):
    for name in ("file", "a"):
        assert f"{name}: IoError: there is no such file" in run("load", name, cwd=tmp_path).stderr


def test_deadline(tmp_path):
    path = sparse(tmp_path / "x.safetensors", 4 << 30)
    arguments = ["load", "--json", "--deadline", "0.02", "--window", "64MiB", "--threads", "1", path]
    assert run_json(*arguments, code=3)["error"]["kind"] == "DeadlineExceeded"


def make_cold(path):
    """Takes the file out of the page cache, as far as the system does that."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def test_what_is_not_cached_is_reported(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a": ("U8", [8 << 20], None)})
    arguments = ["load", "--device", "cpu", path]
    reports = []
    for options, variables in [([], {}), (["--keep-cache"], {}), ([], {"HEADRACE_KEEP_CACHE": "1"}),
                               ([], {"HEADRACE_KEEP_CACHE": "0"})]:
        make_cold(path)
        reports.append(run_json(*arguments, "--json", *options, env=variables))
    if not reports[0]["storage"]:
        pytest.skip("the page cache cannot be emptied here")
    way = run_json("doctor", "--json", path)["storage"]
    for report, is_kept in zip(reports, [False, True, True, False]):
        assert ("since keep_cache is set" in report["storage"]) == is_kept
        assert report["storage"].startswith("buffered by " if is_kept else re.match(r"\w+", way)[0] + " by ")
        assert (report["bytes_direct"] > 0) == (report["storage"].startswith("direct "))
    make_cold(path)
    lines = [line.split(maxsplit=1) for line in run(*arguments).stdout.splitlines()]
    assert ["storage", reports[0]["storage"]] in lines and "past" in [line[0] for line in lines]
