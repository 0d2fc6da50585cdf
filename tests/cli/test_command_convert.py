"""headrace convert: what is written, what is kept, what stands in the way, and that nothing partial is left."""

import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest

from command import BINARY, SMALL, data_offset, run, run_json, write, write_sharded
from test_command_gpu import DRIVER, gpu
from test_command_load import sparse

TENSORS = {"w": ("F32", [100, 33], None), "h": ("F16", [7], None), "ids": ("I64", [3], None),
           "z": ("F32", [0, 4], None), "packed": ("F4", [2, 3], None), "page": ("U8", [8192], None)}


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "in" / "model.safetensors", TENSORS, metadata={"format": "pt", "note": "a\nb"}, padding=3)


def header(path):
    return json.loads(path.read_bytes()[8 : data_offset(path)])


def tensors_of(path):
    """{name: (dtype, shape, bytes)} by other means than the command."""
    data = path.read_bytes()[data_offset(path) :]
    return {name: (tensor["dtype"], tensor["shape"], data[slice(*tensor["data_offsets"])])
            for name, tensor in header(path).items() if name != "__metadata__"}


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def refused(*arguments, code=2):
    """The error, with JSON too; what it says goes to the other stream as well."""
    error = run_json("convert", "--json", *arguments, code=code)["error"]
    return error["kind"], error["message"], error["file"] or ""


# ------------------------------------------------------------------------------------------------ what is written


def test_as_it_is(model, tmp_path):
    report = run_json("convert", "--json", "--check", model, tmp_path / "out.safetensors")
    assert tensors_of(tmp_path / "out.safetensors") == tensors_of(model)
    assert header(tmp_path / "out.safetensors")["__metadata__"] == {"format": "pt", "note": "a\nb"}
    assert report["files"] == [report["path"]] == [str(tmp_path / "out.safetensors")]
    assert report["tensors"] == len(TENSORS) and report["bytes"] == model.stat().st_size - data_offset(model)
    assert report["bytes_converted"] == 0 and report["device"] == "cpu" and report["seconds"] > 0
    assert report["check"] == {"same": True, "same_count": len(TENSORS), "different_count": 0, "differences": []}
    assert run("diff", model, tmp_path / "out.safetensors").returncode == 0


def test_text(model, tmp_path):
    said = run("convert", model, tmp_path / "o.safetensors", "--dtype", "w=f64", "--check").stdout.splitlines()
    assert said[0].split() == ["written", str(tmp_path / "o.safetensors")]
    assert said[4] == "converted  12.9 KiB of what was read" and said[-1] == "6 tensors the same, 0 different"
    assert "converted" not in run("convert", model, tmp_path / "o.safetensors").stdout


def test_dtypes(model, tmp_path):
    out = tmp_path / "out.safetensors"
    report = run_json("convert", "--json", "--check", "--dtype", "F32", "--dtype", "ids=i32", model, out)
    found, stored = tensors_of(out), tensors_of(model)
    assert report["check"]["same"] and report["bytes_converted"] == 14 + 24
    assert {name: tensor[0] for name, tensor in found.items()} == {
        "w": "F32", "h": "F32", "ids": "I32", "z": "F32", "packed": "F4", "page": "U8"}
    assert found["h"][2] == struct.pack("<7f", *struct.unpack("<7e", stored["h"][2]))
    assert found["ids"][2] == b"".join(struct.pack("<q", value)[:4] for value in struct.unpack("<3q", stored["ids"][2]))
    assert {name: found[name] for name in ("w", "packed", "page")} == {
        name: stored[name] for name in ("w", "packed", "page")}


def test_aligned(model, tmp_path):
    out = tmp_path / "out.safetensors"
    assert run_json("convert", "--json", "--align", "4KiB", "--check", model, out)["check"]["same"]
    assert data_offset(out) == 4096 and header(out)["page"]["data_offsets"] == [0, 8192]
    assert tensors_of(out) == tensors_of(model)


def test_shards_and_back(model, tmp_path):
    (tmp_path / "out").mkdir()
    report = run_json("convert", "--json", "--shard-size", "8200", "--check", model, tmp_path / "out")
    files = [f"model-{i:05d}-of-00003.safetensors" for i in range(1, 4)]
    assert names(tmp_path / "out") == [*files, "model.safetensors.index.json"]
    assert report["files"] == [str(tmp_path / "out" / name) for name in files] and report["check"]["same"]
    assert report["path"] == str(tmp_path / "out" / "model.safetensors.index.json")
    assert [set(tensors_of(tmp_path / "out" / name)) for name in files] == [
        {"w"}, {"h", "ids", "z", "packed"}, {"page"}]
    assert all(header(tmp_path / "out" / name)["__metadata__"]["format"] == "pt" for name in files)
    assert run("convert", "--check", tmp_path / "out", tmp_path / "back.safetensors").returncode == 0
    assert tensors_of(tmp_path / "back.safetensors") == tensors_of(model)
    assert run("convert", tmp_path / "out" / "model.safetensors.index.json", tmp_path / "b.safetensors").returncode == 0
    listed = [tmp_path / "out" / name for name in files]
    assert run("convert", *listed, tmp_path / "c.safetensors").returncode == 0
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes() == (
        tmp_path / "back.safetensors").read_bytes()


def test_what_fits_one_file_is_one(model, tmp_path):
    assert run_json("convert", "--json", "--shard-size", "1GB", model, tmp_path / "o.safetensors")["files"] == [
        str(tmp_path / "o.safetensors")]
    assert names(tmp_path) == ["in", "o.safetensors"]


def test_some_tensors(model, tmp_path):
    out = tmp_path / "o.safetensors"
    assert run_json("convert", "--json", "--match", "w", "--match", "p*", "--check", model, out)["check"]["same"]
    assert set(tensors_of(out)) == {"w", "packed", "page"}


def test_an_empty_checkpoint(tmp_path):
    path = write(tmp_path / "x.safetensors", {}, metadata={"a": "b"})
    assert run("convert", "--check", path, tmp_path / "o.safetensors").returncode == 0
    assert header(tmp_path / "o.safetensors") == {"__metadata__": {"a": "b"}}


@pytest.mark.parametrize("window", ["1", "20KiB", "0"])
def test_windows(tmp_path, window):
    """More tensors than are in hand at once, some larger than the window."""
    path = write(tmp_path / "x.safetensors", {f"t{i}": ("U8", [i * 97], None) for i in range(200)})
    assert run("convert", "--window", window, "--check", path, tmp_path / "o.safetensors").returncode == 0
    assert tensors_of(tmp_path / "o.safetensors") == tensors_of(path)


def test_metadata_is_merged(tmp_path):
    first = write(tmp_path / "a.safetensors", {"a": ("U8", [2], None)}, metadata={"format": "pt", "of": "a"})
    second = write(tmp_path / "b.safetensors", {"b": ("U8", [2], None)}, metadata={"format": "pt", "of": "b", "x": "y"})
    out = tmp_path / "o.safetensors"
    kind, message, file = refused(first, second, out)
    assert kind == "InvalidArgument" and "'of'" in message and "--metadata" in message and file == str(second)
    assert names(tmp_path) == ["a.safetensors", "b.safetensors"]
    assert run("convert", "--metadata", "of=both=2", "--metadata", "new=", first, second, out).returncode == 0
    assert header(out)["__metadata__"] == {"format": "pt", "of": "both=2", "x": "y", "new": ""}
    for text in ("nothing", "=value"):
        assert "KEY=VALUE" in refused("--metadata", text, first, tmp_path / "p.safetensors")[1]


def test_metadata_of_no_file_is_none(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    assert run("convert", path, tmp_path / "o.safetensors").returncode == 0
    assert "__metadata__" not in header(tmp_path / "o.safetensors")


MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_bytes(*arguments):
    """Most memory that the command has had. What its parent has counts as well until it starts: so a small one."""
    command = [sys.executable, "-c", MEASURED, BINARY, "convert", *map(str, arguments)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024


@pytest.mark.parametrize("options", [[], ["--dtype", "BF16"], ["--check"]])
def test_memory_is_that_of_the_window(tmp_path, options):
    peaks = []
    for count in (8, 48):
        size = 4 << 20
        table = {f"t{i}": {"dtype": "F32", "shape": [size // 4], "data_offsets": [i * size, (i + 1) * size]}
                 for i in range(count)}
        path = write(tmp_path / f"{count}.safetensors", {}, header=table)
        os.truncate(path, path.stat().st_size + count * size)
        peaks.append(peak_bytes("--window", "16MiB", "--threads", "2", "--no-sync", *options, path,
                                tmp_path / "o.safetensors"))
        (tmp_path / "o.safetensors").unlink()
    assert peaks[1] < peaks[0] + (24 << 20), peaks  # of 160 MiB that it reads more; readers come and go
    assert peaks[1] < 80 << 20, "the model has 192 MiB"


def test_progress(tmp_path):
    table = {f"t{i}": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [i << 20, (i + 1) << 20]} for i in range(512)}
    path = write(tmp_path / "x.safetensors", {}, header=table)
    os.truncate(path, path.stat().st_size + (512 << 20))
    ours, theirs = pty.openpty()
    process = subprocess.Popen([BINARY, "convert", "--window", "8MiB", "--no-sync", path, tmp_path / "o.safetensors"],
                               stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            drawn += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert process.wait() == 0
    text = drawn.decode()
    assert re.search(r"\r *\d+% \[#* *\] \d+\.\d\d GB/s, \d+:\d\d left", text)
    assert text.split("\r")[-2].strip() == "" and "\n" not in text


@pytest.mark.skipif(not (DRIVER / "libcuda.so.1").exists(), reason="the fake driver is not built")
def test_by_way_of_a_gpu(model, tmp_path):
    options = ["--dtype", "BF16", "--align", "4096", model]
    report = run_json("convert", "--json", "--device", "cuda:1", "--check", *options, tmp_path / "g", env=gpu())
    assert report["device"] == "cuda:1" and report["check"]["same"]
    assert run_json("convert", "--json", *options, tmp_path / "c", env=gpu())["device"] == "cpu", "the default"
    assert (tmp_path / "g").read_bytes() == (tmp_path / "c").read_bytes()


# ------------------------------------------------------------------------------------------- what stands in the way


def test_in_place(model):
    before = tensors_of(model)
    assert run("convert", "--align", "4096", model, model).returncode == 0
    assert tensors_of(model) == before and data_offset(model) == 4096
    assert run("convert", model.parent, model.parent).returncode == 0, "the folder of the one file"
    assert tensors_of(model) == before and names(model.parent) == ["model.safetensors"]


@pytest.mark.parametrize("options", [["--dtype", "F64"], ["--match", "w"], ["--shard-size", "10kB"], ["--check"]])
def test_in_place_only_without_loss(model, options):
    before = model.read_bytes()
    assert refused(*options, model, model)[0] == "InvalidArgument"
    assert refused(*options, model.parent, model.parent)[0] == "InvalidArgument"
    (model.parent.parent / "link").symlink_to(model)
    assert refused(*options, model.parent.parent / "link", model)[0] == "InvalidArgument"
    assert model.read_bytes() == before and names(model.parent) == ["model.safetensors"]


def test_shards_are_not_replaced(tmp_path):
    folder = tmp_path / "m"
    shards = {f"model-{i:05d}-of-00002.safetensors": {f"t{i}": ("U8", [100], None)} for i in (1, 2)}
    index = write_sharded(folder, shards)
    before = {name: (folder / name).read_bytes() for name in names(folder)}
    for source in (folder, index):
        for options in (["--shard-size", "100"], []):
            for out in (folder, folder / "model.safetensors"):
                assert refused(*options, source, out)[0] == "InvalidArgument"
    assert "folder that is converted" in refused(folder, folder / "new.safetensors")[1]
    assert refused(*(folder / name for name in shards), folder / next(iter(shards)))[0] == "InvalidArgument"
    assert {name: (folder / name).read_bytes() for name in names(folder)} == before
    assert run("convert", index, folder / "new.safetensors").returncode == 0, "beside a checkpoint with an index"


@pytest.mark.parametrize("old, options", [
    ("model.safetensors.index.json", []), ("other.safetensors", []), ("model-00001-of-00009.safetensors", []),
    ("model.safetensors", ["--shard-size", "10kB"])])
def test_what_would_be_opened_instead(model, tmp_path, old, options):
    out = tmp_path / "out"
    out.mkdir()
    (out / old).write_text("old")
    (out / "config.json").write_text("{}")
    kind, message, file = refused(*options, model, out)
    assert kind == "InvalidArgument" and "stands beside" in message and file == str(out / old)
    assert names(out) == sorted([old, "config.json"])
    (out / old).unlink()
    assert run("convert", *options, model, out).returncode == 0
    assert run("check", out).returncode == 0


def test_an_old_file_is_replaced(model, tmp_path):
    out = write(tmp_path / "out.safetensors", SMALL)
    (tmp_path / "other.safetensors").write_text("of somebody else")
    assert run("convert", "--check", model, out).returncode == 0
    assert tensors_of(out) == tensors_of(model)
    (tmp_path / "out.safetensors.index.json").write_text("old")
    assert "stands beside" in refused(model, out)[1]


# ------------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("arguments, code, part", [
    (["--dtype", "F33", "OUT"], 2, "'F33' is no dtype"), (["--dtype", "packed=F32", "OUT"], 2, "stored as F4"),
    (["--align", "5", "OUT"], 2, "power of two"), (["--shard-size", "x", "OUT"], 2, "is not a size"),
    (["--match", "nobody", "OUT"], 1, "no tensor of 6 matches"), (["DIR/missing/x.safetensors"], 1, "No such file"),
    (["DIR/x.json"], 2, "is an index"), ([""], 2, "empty"), ([], 2, "an argument is missing"),
    (["/dev/null"], 1, "not a regular file"), (["--metadata", "a=\udcff", "OUT"], 2, "UTF-8")])
def test_refused(model, tmp_path, arguments, code, part):
    out = [argument.replace("OUT", str(tmp_path / "o.safetensors")).replace("DIR", str(tmp_path))
           for argument in arguments]
    result = run("convert", model, *out)
    assert (result.returncode, result.stdout) == (code, ""), result
    assert part in result.stderr
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize("size", [20, 900, -1])
def test_a_cut_file_leaves_nothing(model, tmp_path, size):
    os.truncate(model, size if size > 0 else model.stat().st_size + size)
    assert refused(model, tmp_path / "o.safetensors", code=1)[2] == str(model)
    assert names(tmp_path) == ["in"]


def test_a_file_that_shrinks_meanwhile_leaves_nothing(tmp_path):
    path = sparse(tmp_path / "x.safetensors", 1 << 30)
    (tmp_path / "out").mkdir()
    process = subprocess.Popen([BINARY, "convert", "--no-sync", "--json", path, tmp_path / "out"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(0.05)
    os.truncate(path, 1 << 20)
    output = process.communicate(timeout=60)[0]
    assert json.loads(output)["error"]["kind"] in ("FileChanged", "ShortRead", "MetadataIncompleteBuffer")
    assert process.returncode in (1, 3) and names(tmp_path / "out") == []


def mounted(folder, options, *arguments):
    """In a namespace of its own, with a filesystem in memory at `folder`; says what is left in it."""
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("nothing can be mounted here")
    script = ('mount -t tmpfs -o "$1" none "$2" || exit 77; "$3" convert --json "${@:5}" "$2/o.safetensors"; code=$?; '
              'ls -A "$2" > "$4"; exit $code')
    result = subprocess.run(["unshare", "-m", "bash", "-c", script, "bash", options, folder, BINARY,
                             folder.parent / "left", *arguments], capture_output=True, text=True, timeout=60,
                            check=False)
    if result.returncode == 77 or "unshare:" in result.stderr:
        pytest.skip("nothing can be mounted here")
    return result.returncode, json.loads(result.stdout)["error"], (folder.parent / "left").read_text()


def test_a_full_disk_and_one_that_is_read_only(tmp_path):
    path = write(tmp_path / "x.safetensors", {f"t{i}": ("U8", [300000], None) for i in range(8)})
    (tmp_path / "disk").mkdir()
    for options in ([], ["--shard-size", "500kB"]):
        code, error, left = mounted(tmp_path / "disk", "size=1m", *options, path)
        assert (code, error["kind"], left) == (3, "IoError", "") and "full" in error["message"]
    code, error, left = mounted(tmp_path / "disk", "size=4m,ro", path)
    assert (code, error["kind"], left) == (3, "IoError", "") and "read-only" in error["message"]


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("delay", [0.02, 0.2])
def test_signals_leave_nothing(tmp_path, number, code, delay):
    path = sparse(tmp_path / "x.safetensors", 4 << 30)
    (tmp_path / "out").mkdir()
    process = subprocess.Popen([BINARY, "convert", "--threads", "1", "--window", "64MiB", "--shard-size", "1MB", path,
                                tmp_path / "out"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    try:
        time.sleep(delay)
        assert process.poll() is None
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, output) == (code, "")
    assert errors in ("headrace convert: interrupted\n", "")
    assert names(tmp_path / "out") == []
