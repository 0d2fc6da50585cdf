"""The command on GPUs: with the fake driver of the build, whose devices, memory and failures the environment sets."""

import json
import pathlib

import pytest

from command import BINARY, pattern, run, run_json, write, write_sharded
from test_command_trace import read

DRIVER = pathlib.Path(BINARY).parent / "fake_cuda"
pytestmark = pytest.mark.skipif(not (DRIVER / "libcuda.so.1").exists(), reason="the fake driver is not built")
LARGE = (17 << 20) + 3  # reads back in several pieces, the last of an odd size
TENSORS = {
    "large": ("U8", [LARGE], None), "matrix": ("F32", [300, 500], None), "odd": ("BF16", [7, 13], None),
    "scalar": ("F32", [], None), "empty": ("F32", [0, 3], None), "sub-byte": ("F4", [6, 10], None),
} | {f"small.{i}": ("I16", [i + 1], None) for i in range(40)}


def gpu(settings="", **variables):
    """The environment with the fake driver."""
    driver = {"LD_LIBRARY_PATH": str(DRIVER), "FAKE_CUDA": settings or "devices=2", "CUDA_VISIBLE_DEVICES": "0,1"}
    return driver | variables


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "x.safetensors", TENSORS, padding=3)


def test_names_of_devices(model):
    devices = run_json("doctor", "--json", env=gpu())["devices"]
    assert [d["device"] for d in devices] == ["cuda:0", "cuda:1"]
    for names, device in [(["cuda", "cuda:0", "auto", devices[0]["pci"], devices[0]["uuid"]], "cuda:0"),
                          (["cuda:1", devices[1]["pci"], devices[1]["uuid"]], "cuda:1"), (["cpu"], "cpu")]:
        for name in names:
            report = run_json("load", "--json", "--device", name, "--match", "matrix", model, env=gpu())
            assert report["device"] == device, name
    assert report["device_name"] == "cpu"
    assert "cuda:1      yes  " in run("doctor", env=gpu()).stdout


@pytest.mark.parametrize("verb", ["load", "hash"])
def test_the_default_is_the_first_gpu_else_the_cpu(model, verb):
    assert run_json(verb, "--json", model, env=gpu())["device"] == "cuda:0"
    assert run_json(verb, "--json", model, env=gpu("driver=none"))["device"] == "cpu"
    assert run_json(verb, "--json", model)["device"] == "cpu"
    assert run_json(verb, "--json", "--device", "cpu", model, env=gpu())["device"] == "cpu"


@pytest.mark.parametrize("verb", ["load", "hash", "plan"])
def test_the_mmap_route_means_the_cpu(model, verb):
    expected = run_json(verb, "--json", "--device", "cpu", "--route", "mmap", model, env=gpu())
    for options, variables in [(["--route", "mmap"], {}), ([], {"HEADRACE_ROUTE": "mmap"})]:
        found = run_json(verb, "--json", *options, model, env=gpu(**variables))
        assert found.get("device") == expected.get("device") and found.get("route") == expected.get("route")
    error = run_json(verb, "--json", "--device", "cuda", "--route", "mmap", model, env=gpu(), code=2)["error"]
    assert error["kind"] == "Unsupported"


def test_the_report_of_a_load(model):
    result = run("load", "--threads", "2", model, env=gpu())
    assert (result.returncode, result.stderr) == (0, "")
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert list(lines) == ["device", "tensors", "bytes", "read", "predicted", "seconds", "GB/s", "of ceiling",
                           "route", "threads", "bottleneck", "sent", "staging", "numa", "copy wait", "reader cpu",
                           "window", "allocated"]
    assert lines["device"].strip().startswith("cuda:0 (")
    report = run_json("load", "--json", "--threads", "2", model, env=gpu())
    assert report["bytes_sent"] >= report["bytes"] > LARGE
    assert report["copies"] + report["kernels"] > 0
    assert report["bytes"] <= report["bytes_allocated"]
    assert report["cpu_seconds"] > 0 and report["staging"] and report["placement"]
    report = run_json("load", "--json", "--no-numa", model, env=gpu())
    assert report["placement"] == "not bound: switched off"


def test_staging_and_lanes_are_set(model):
    for options, env in [(["--staging-bytes", "1MiB", "--chunk", "256KiB", "--lanes", "1"], {}),
                         ([], {"HEADRACE_STAGING_BYTES": "1MiB", "HEADRACE_CHUNK_BYTES": "256KiB"})]:
        report = run_json("load", "--json", "--threads", "2", *options, model, env=gpu(**env))
        assert 0 < report["staging_bytes"] <= 1 << 20
    for options in (["--lanes", "100"], ["--staging-bytes", "1"]):
        assert run_json("load", "--json", *options, model, env=gpu(), code=2)["error"]["kind"] == "InvalidArgument"


CALLS = [[], ["--window", "1MiB"], ["--window", "0", "--threads", "1"],
         ["--chunk", "64KiB", "--staging-bytes", "256KiB"],
         ["--slice", "matrix=[::7, 3:400:5]", "--slice", "large=[1:]", "--slice", "odd=[2]"], ["--match", "small.*"]]


@pytest.mark.parametrize("settings", ["devices=2", "no_kernel=1", "no_kernel=1,no_batch=1", "confidential=1",
                                      "register=refuse", "delay_us=300"])
@pytest.mark.parametrize("options", CALLS)
def test_hashes_are_those_of_the_cpu(model, settings, options):
    result = run("hash", *options, model, env=gpu(settings))
    assert result.returncode == 0
    assert result.stdout == run("hash", "--device", "cpu", *options, model).stdout
    assert result.stderr.startswith("headrace hash: read back from cuda:0 (")


def test_hashes_are_read_back_from_the_device(model):
    for settings in ("fail_call=cuMemcpyDtoHAsync:1:1", "fail_call=cuMemcpyDtoHAsync:3:700"):
        error = run_json("hash", "--json", model, env=gpu(settings), code=3)["error"]
        assert error["kind"] == "DeviceError"
        assert run("hash", "--device", "cpu", model, env=gpu(settings)).returncode == 0


def test_diff(tmp_path, model):
    data = bytearray(pattern(LARGE, 0))
    for index in (9 << 20, LARGE - 1):  # in the second and the last piece
        data[index] ^= 1
    other = write(tmp_path / "y.safetensors", TENSORS | {"large": ("U8", [LARGE], bytes(data))})
    result = run("diff", model, other, env=gpu())
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr, len(lines)) == (1, "", 2)
    assert lines[0] == (f"large: bytes differ, first at element {9 << 20} [{9 << 20}]; 2 of {LARGE} bytes")
    assert lines[1].startswith(f"{len(TENSORS) - 1} tensors the same, 1 different, on cuda:0 (")
    assert run_json("diff", "--json", "--device", "cuda:1", model, model, env=gpu())["device"] == "cuda:1"
    error = run_json("diff", "--json", model, other, env=gpu("fail_call=cuMemcpyDtoHAsync:2:1"), code=3)["error"]
    assert error["kind"] == "DeviceError"


def test_plan(model):
    plan = run("plan", model, env=gpu())
    assert plan.returncode == 0
    assert plan.stdout != run("plan", "--device", "cpu", model, env=gpu()).stdout


@pytest.mark.parametrize("verb", ["load", "hash", "diff", "plan", "probe"])
def test_devices_that_are_not_there(model, verb):
    operands = [model, model] if verb == "diff" else [model]
    for name, settings in [("cuda:9", ""), ("cuda", "driver=none"), ("0000:77:00.0", ""), ("GPU-none", "")]:
        error = run_json(verb, "--json", "--device", name, *operands, env=gpu(settings), code=3)["error"]
        assert error["kind"] == "DeviceUnavailable" and error["message"], name
    error = run_json(verb, "--json", "--device", "gpu", *operands, env=gpu(), code=2)["error"]
    assert error["kind"] == "InvalidArgument"


def test_too_little_memory_on_the_device(model):
    error = run_json("load", "--json", model, env=gpu("memory=8388608"), code=3)["error"]
    assert error["kind"] == "OutOfMemory"
    assert run_json("load", "--json", "--match", "matrix", model, env=gpu("memory=8388608"))["device"] == "cuda:0"


def test_a_call_that_fails_ends_the_load(model):
    for call in ("cuMemcpyHtoDAsync", "cuStreamCreate", "cuMemAlloc", "cuEventRecord"):
        for options in ([], ["--trace", "/dev/null"]):
            env = gpu(f"no_kernel=1,no_batch=1,fail_call={call}:1:1")
            error = run_json("load", "--json", *options, model, env=env, code=3)["error"]
            assert error["kind"] == "DeviceError" and "cuda:0" in error["message"], call


def test_a_trace_shows_reads_and_copies(tmp_path):
    index = write_sharded(tmp_path / "m", {f"{i}.safetensors": {f"t{i}": ("U8", [6 << 20], None)} for i in range(3)})
    trace = tmp_path / "trace.json"
    report = run_json("load", "--json", "--threads", "2", "--trace", trace, index, env=gpu())
    spans, _ = read(trace)
    by_name = {name: [e for e in spans if e["name"] == name] for name in ("read", "copy", "staging", "allocate")}
    assert sum(e["args"]["bytes"] for e in by_name["read"]) == report["bytes_read"]
    assert sum(e["args"]["bytes"] for e in by_name["copy"]) == 18 << 20
    assert all(e["args"]["file"].startswith(str(index.parent)) for e in by_name["copy"])
    assert by_name["staging"] and by_name["allocate"]
    assert all(e["ts"] + e["dur"] <= report["seconds"] * 1e6 + 1 for e in by_name["read"] + by_name["copy"])


def test_probe_and_what_a_load_says_of_it(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    model = write(tmp_path / "large.safetensors", {"t": ("U8", [80 << 20], None)})
    probe = ["probe", "--json", "--budget", "0.5", "--threads", "2"]
    limits = run_json(*probe, model, env=gpu(**cache))["limits"]
    assert (limits["device_type"], limits["device_ordinal"]) == (2, 0) and limits["device_uuid"].startswith("GPU-")
    assert limits["to_device_sizes"] == [1 << 20, 4 << 20, 16 << 20, 64 << 20]
    assert all(limits["to_device"]) and limits["from_device"] and limits["page_cache_to_device"] and limits["pin"]
    found = run_json("load", "--json", model, env=gpu(**cache))["prediction"]
    ceilings = {"page_cache": limits["page_cache"], "page_cache_to_device": limits["page_cache_to_device"],
                "to_device": max(limits["to_device"])}
    assert found["ceiling_bytes_per_second"] == ceilings[found["ceiling"]] == min(ceilings.values())
    assert found["share"] > 0 and found["age_days"] == 0
    assert run_json("load", "--json", "--device", "cuda:1", model, env=gpu(**cache))["prediction"]["seconds"] is None
    run_json(*probe, "--device", "cuda:1", env=gpu(**cache))
    kept = json.loads((tmp_path / "cache" / "headrace" / "limits.json").read_text())["limits"]
    assert [entry["device_ordinal"] for entry in kept] == [0, 1]
    without_path = run_json("load", "--json", "--device", "cuda:1", model, env=gpu(**cache))["prediction"]
    assert without_path["seconds"] is None or without_path["ceiling"] == "to_device"
    text = run("probe", "--budget", "0.5", "--no-save", env=gpu(**cache)).stdout
    assert "to_device 16.0 MiB" in text and "page_cache_to_device" in text and "kept in" not in text


# ---------------------------------------------------------------------------------------------------- device maps

LAYERS = {f"model.{i}.w": ("F32", [700, 40], None) for i in range(12)} | {"head": ("U8", [999], None)}


def device_map(*entries):
    return [word for entry in entries for word in ("--device-map", entry)]


def test_a_map_spreads_tensors_over_devices(tmp_path):
    """The bytes by device are those of the names that the entries mean; the hashes are those of host memory."""
    model = write(tmp_path / "x.safetensors", LAYERS, padding=7)
    size = 700 * 40 * 4
    entries = device_map("=cpu", "model=cuda:0", "model.1=cuda:1", "model.1?.*=cuda:1", "model.11.w=cpu")
    plan = run_json("plan", "--json", *entries, model, env=gpu())
    assert {d["device"]: d["bytes"] for d in plan["devices"]} == {"cuda:0": 9 * size, "cuda:1": 2 * size,
                                                                 "cpu": size + 999}
    names = [d["device"] for d in plan["devices"]]
    for chunk in plan["chunks"]:
        device = names[plan["groups"][chunk["group"]]["device"]]
        assert (chunk["way"] == "direct") == (device == "cpu")
        for piece in chunk["pieces"]:
            wanted = {"head": "cpu", "model.1.w": "cuda:1", "model.10.w": "cuda:1", "model.11.w": "cpu"}
            assert device == wanted.get(piece["tensor"], "cuda:0"), piece["tensor"]
    for settings in ("devices=2", "devices=2,no_kernel=1,no_batch=1,delay_us=500"):
        hashes = run_json("hash", "--json", *entries, model, env=gpu(settings))
        assert hashes["device"] == ",".join(names)
        assert hashes["tensors"] == run_json("hash", "--json", "--device", "cpu", model)["tensors"]
    report = run_json("load", "--json", *entries, "--repeat", "2", model, env=gpu())
    assert report["device"] == ",".join(names) and report["device_name"].count("cpu") == 1
    assert report["bytes_sent"] >= 11 * size and report["prediction"]["seconds"] is None
    text = run("load", *entries, model, env=gpu()).stdout
    assert "cuda:1 (" in text and "one by one" in text
    assert "read back from" in run("hash", *entries, model, env=gpu()).stderr
    assert f"devices   {names[0]} " in run("plan", *entries, model, env=gpu()).stdout


def test_device_is_for_what_the_map_leaves(tmp_path):
    model = write(tmp_path / "x.safetensors", LAYERS)
    plan = run_json("plan", "--json", *device_map("head=cuda:1"), "--device", "cuda:0", model, env=gpu())
    assert {d["device"]: d["bytes"] > 999 for d in plan["devices"]} == {"cuda:0": True, "cuda:1": False}
    report = run_json("load", "--json", *device_map("=cpu", "head=cpu"), "--route", "mmap", model)
    assert (report["device"], report["route"]) == ("cpu", "mmap")
    report = run_json("hash", "--json", *device_map("head=cuda:1"), "--match", "head", model, env=gpu())
    assert report["device"] == "cuda:1"
    report = run_json("hash", "--json", *device_map("*.w=cpu", "head=cuda:1"), "--match", "head", model, env=gpu())
    assert report["device"] == "cuda:1"


def test_modules_without_tensors_are_no_error(tmp_path):
    model = write(tmp_path / "x.safetensors", LAYERS)
    entries = device_map("model=cpu", "head=cpu", "model.rotary_emb=cuda:0", "act=cuda:1")
    for verb in ("load", "hash", "plan"):
        assert run(verb, *entries, model, env=gpu()).returncode == 0
    report = run_json("hash", "--json", *entries, model, env=gpu())
    assert report["device"] == "cpu"


@pytest.mark.parametrize(("entries", "kind", "text"), [
    (["head=cpu"], "InvalidArgument", "'model.0.w' and 11 more"),
    (["model=cpu"], "InvalidArgument", "covers tensor 'head'; add"),
    (["=cpu", "*.scale=cpu"], "TensorNotFound", "no tensor's name matches '*.scale'"),
    (["=disk"], "InvalidArgument", "--device-map '=disk': 'disk'"),
    (["=cuda:7"], "DeviceUnavailable", "--device-map '=cuda:7'"),
    (["head"], "InvalidArgument", "KEY=DEVICE"),
])
@pytest.mark.parametrize("verb", ["load", "hash", "plan"])
def test_maps_that_are_refused(tmp_path, verb, entries, kind, text):
    model = write(tmp_path / "x.safetensors", LAYERS)
    result = run(verb, "--json", *device_map(*entries), model, env=gpu())
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], text in error["message"]) == (kind, True), error


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync:1", "cuMemcpyHtoDAsync:2", "cuStreamCreate:1", "cuStreamCreate:3",
                                  "cuMemAlloc:1", "cuMemAlloc:2"])
def test_a_failing_call_with_two_devices(tmp_path, call):
    model = write(tmp_path / "x.safetensors", LAYERS)
    env = gpu(f"devices=2,no_kernel=1,no_batch=1,fail_call={call}:1")
    error = run_json("load", "--json", *device_map("=cuda:0", "model=cuda:1"), model, env=env, code=3)["error"]
    assert error["kind"] == "DeviceError" and "cuda:" in error["message"]
