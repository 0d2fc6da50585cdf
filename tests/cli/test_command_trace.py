"""headrace load --trace: a timeline in Chrome's trace format."""

import json
import os
import signal
import subprocess
import time

import pytest

from command import BINARY, SMALL, run, run_json, write, write_sharded


def read(path):
    """The spans of a trace, which are checked to be such."""
    events = json.loads(path.read_text())
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) + len(names) == len(events)
    assert {e["pid"] for e in spans} <= set(names)
    return spans, names


@pytest.mark.parametrize("options", [["--route", "pread"], ["--window", "1MiB"], ["--repeat", "3"], []])
def test_spans_lie_within_the_load_and_bytes_add_up(tmp_path, options):
    shards = {f"{i}.safetensors": {f"t{i}": ("U8", [6 << 20], None)} for i in range(3)}
    index = write_sharded(tmp_path / "m", shards)
    trace = tmp_path / "trace.json"
    report = run_json("load", "--json", "--device", "cpu", "--threads", "2", "--chunk", "256KiB", "--trace", trace,
                      *options, index)
    spans, names = read(trace)
    last = report["repeats"][-1]
    assert report["trace"] == {"path": str(trace), "spans": len(spans), "dropped": 0}
    reads = [e for e in spans if e["name"] == "read"]
    assert sum(e["args"]["bytes"] for e in reads) == last["bytes_read"] >= 18 << 20
    assert len(reads) == last["reads"]
    assert {e["args"]["file"] for e in reads} == {str(index.parent / name) for name in shards}
    for event in spans:
        assert event["ts"] >= 0 and event["dur"] >= 0
    assert all(e["ts"] + e["dur"] <= last["seconds"] * 1e6 + 1 for e in reads)
    assert {names[e["pid"]] for e in reads} <= {"reader 0", "reader 1"}
    assert {e["name"] for e in spans} <= {"read", "copy", "staging", "idle", "allocate"}


def test_spans_of_a_row_do_not_overlap(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [16 << 20], None)})
    trace = tmp_path / "trace.json"
    run_json("load", "--json", "--device", "cpu", "--chunk", "64KiB", "--trace", trace, path)
    rows = {}
    for event in read(trace)[0]:
        rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        assert all(begin >= end - 0.002 for (_, end), (begin, _) in zip(row, row[1:]))


def test_text(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    trace = tmp_path / "trace.json"
    last = run("load", "--device", "cpu", "--trace", trace, path).stdout.splitlines()[-1]
    count = len(read(trace)[0])
    assert last == f"trace       {trace}: {count} span{'' if count == 1 else 's'}" and count > 0
    assert "trace" not in run("load", "--device", "cpu", path).stdout


def test_a_load_that_fails_has_a_trace_too(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [64 << 20], None)})
    trace = tmp_path / "trace.json"
    result = run("load", "--device", "cpu", "--deadline", "0.000001", "--trace", trace, path)
    assert result.returncode == 3 and "DeadlineExceeded" in result.stderr
    read(trace)


def test_a_file_that_cannot_be_written(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    for trace in (tmp_path / "none" / "trace.json", tmp_path):
        error = run_json("load", "--json", "--device", "cpu", "--trace", trace, path, code=3)["error"]
        assert (error["kind"], error["file"]) == ("IoError", str(trace))
        assert error["message"].startswith("the trace cannot be written: ")
    error = run_json("load", "--json", "--device", "cpu", "--trace", "/dev/full", path, code=3)["error"]
    assert (error["file"], error["message"]) == ("/dev/full", "the trace could not be written: No space left on device")


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_a_file_of_the_checkpoint_is_not_overwritten(tmp_path, link):
    index = write_sharded(tmp_path / "m", {f"{i}.safetensors": {f"t{i}": ("U8", [100], None)} for i in range(2)})
    for file in (index.parent / "1.safetensors", index):
        held, trace = file.read_bytes(), file
        if link:
            trace = tmp_path / f"link to {file.name}"
            link(file, trace)
        error = run_json("load", "--json", "--device", "cpu", "--trace", trace, index, code=2)["error"]
        assert (error["kind"], error["file"]) == ("InvalidArgument", str(trace))
        assert "part of the checkpoint" in error["message"] and file.read_bytes() == held


def test_what_the_file_held_goes(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    trace = tmp_path / "trace.json"
    trace.write_text("x" * 100000)
    run_json("load", "--json", "--device", "cpu", "--trace", trace, path)
    read(trace)


@pytest.mark.parametrize("trace", ["", "-"])
def test_what_names_no_file(tmp_path, trace):
    write(tmp_path / "x.safetensors", SMALL)
    arguments = ["load", "--json", "--device", "cpu", "--trace", trace, "x.safetensors"]
    error = run_json(*arguments, code=2, cwd=tmp_path)["error"]
    assert error["kind"] == "InvalidArgument" and error["message"].startswith(f"--trace '{trace}' names no file")
    assert os.listdir(tmp_path) == ["x.safetensors"]


@pytest.mark.parametrize("old", [None, "[]"])
@pytest.mark.parametrize("attempt", range(6))
def test_a_load_that_is_stopped_leaves_no_empty_trace(tmp_path, attempt, old):
    path = write(tmp_path / "x.safetensors", {"a": ("U8", [8192], None)})
    trace = tmp_path / "trace.json"
    if old:
        trace.write_text(old)
    process = subprocess.Popen([BINARY, "load", "--device", "cpu", "--repeat", "1000000", "--trace", trace, path],
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        time.sleep(0.2 + attempt / 100)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
    finally:
        process.kill()
    assert old or not trace.exists() or trace.stat().st_size
    if trace.exists():
        read(trace)
