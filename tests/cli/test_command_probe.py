"""headrace probe on the CPU, the file it keeps, and what load makes of it."""

import errno
import json
import os
import socket
import time

import pytest

from command import run, run_json, write, write_sharded

QUICK = ["--device", "cpu", "--budget", "0.2", "--threads", "2"]
SPEEDS = ["memory_copy", "page_cache", "page_cache_fresh"]


@pytest.fixture
def cache(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def kept(cache_folder):
    return json.loads((cache_folder / "headrace" / "limits.json").read_text())


def entry(**changes):
    """An entry of this host's CPU."""
    return {"host": socket.gethostname(), "time": int(time.time()) - 3 * 86400 - 60, "device_type": 1,
            "device_uuid": None, "page_cache": 10**9, "page_cache_fresh": 10**10} | changes


def keep(tmp_path, *entries):
    """Writes a limits file; returns the environment with it."""
    path = tmp_path / "cache" / "headrace" / "limits.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "limits": list(entries)}))
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "x.safetensors", {"t": ("U8", [32 << 20], None)})


@pytest.fixture
def large(tmp_path):
    """As much as the page cache is measured with, or more."""
    return write(tmp_path / "large.safetensors", {"t": ("U8", [80 << 20], None)})


def test_json(tmp_path, cache, large):
    began = int(time.time())
    report = run_json("probe", "--json", *QUICK, large, env=cache)
    limits = report["limits"]
    assert (limits["device_type"], limits["device_name"], limits["device_uuid"]) == (1, "cpu", None)
    assert (limits["host"], limits["path"]) == (socket.gethostname(), str(large.resolve()))
    assert began <= limits["time"] <= time.time()
    assert all(1e8 < limits[name] < 1e12 for name in SPEEDS), limits
    assert limits["page_cache_threads"] in (1, 2)
    assert limits["storage"] > 0 or limits["storage_detail"]
    assert limits["page_cache_to_device"] == limits["pin"] == limits["from_device"] == 0
    assert report["saved"] == str(tmp_path / "cache" / "headrace" / "limits.json")
    assert kept(tmp_path / "cache") == {"version": 1, "limits": [limits]}


def test_text(tmp_path, cache, model):
    result = run("probe", *QUICK, model, env=cache)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("device cpu, ") and lines[0].endswith(f"file {model.resolve()}")
    assert lines[1].split() == "ceiling GB/s what it is how it was measured".split()
    assert [line.split()[0] for line in lines[2:-1]] == ["memory_copy", "page_cache", "page_cache_fresh", "storage"]
    assert lines[-1] == f"kept in {tmp_path}/cache/headrace/limits.json"


def test_without_a_file_nothing_is_read(cache):
    limits = run_json("probe", "--json", *QUICK, env=cache)["limits"]
    assert limits["memory_copy"] > 0 and limits["path"] is None
    assert limits["page_cache"] == limits["page_cache_fresh"] == limits["storage"] == 0


def test_of_a_checkpoint_the_largest_file_is_read(tmp_path, cache):
    index = write_sharded(tmp_path / "m", {"1.safetensors": {"a": ("U8", [5 << 20], None)},
                                           "2.safetensors": {"b": ("U8", [9 << 20], None)}})
    for path in (index, index.parent):
        limits = run_json("probe", "--json", "--no-save", *QUICK, path, env=cache)["limits"]
        assert limits["path"] == str((index.parent / "2.safetensors").resolve())
    assert run_json("probe", "--json", *QUICK, tmp_path, env=cache, code=1)["error"]["kind"]


def test_no_save(tmp_path, cache):
    assert run_json("probe", "--json", "--no-save", *QUICK, env=cache)["saved"] is None
    assert not (tmp_path / "cache").exists()


def test_other_entries_stay_and_the_own_one_is_replaced(tmp_path, large):
    others = [entry(host="elsewhere"), entry(device_type=2, device_uuid="GPU-1"),
              entry(host="later", unknown=[{"a": 1}])]
    env = keep(tmp_path, others[0], entry(), *others[1:])
    run_json("probe", "--json", *QUICK, large, env=env)
    entries = kept(tmp_path / "cache")["limits"]
    assert [(e["host"], e["device_type"]) for e in entries[:-1]] == [(e["host"], e["device_type"]) for e in others]
    assert entries[-1]["host"] == socket.gethostname() and entries[-1]["time"] > others[0]["time"]
    assert [p.name for p in (tmp_path / "cache" / "headrace").iterdir()] == ["limits.json"]


def test_a_result_without_the_page_cache_does_not_replace_one_with_it(tmp_path):
    env = keep(tmp_path, entry())
    result = run("probe", "--json", *QUICK, env=env)
    assert result.returncode == 0 and json.loads(result.stdout)["saved"] is None
    assert result.stderr.startswith("headrace probe: not kept: ") and "give PATH" in result.stderr
    assert [e["page_cache"] for e in kept(tmp_path / "cache")["limits"]] == [10**9]
    for others in ([entry(page_cache=0, page_cache_fresh=0)], [entry(host="elsewhere")], [entry(device_type=2)]):
        keep(tmp_path, *others)
        assert run_json("probe", "--json", *QUICK, env=env)["saved"]
        assert kept(tmp_path / "cache")["limits"][-1]["memory_copy"] > 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":2,"limits":[]}', '{"version":1,"limits":[{}]}',
                                  '{"version":1,"limits":[{"host":"a","time":-1}]}', "\0\0", "{" * 1000])
def test_a_broken_file_is_said_and_replaced(tmp_path, text, model):
    env = keep(tmp_path)
    path = tmp_path / "cache" / "headrace" / "limits.json"
    path.write_text(text)
    line = run("load", "--device", "cpu", model, env=env).stdout.splitlines()[4]
    assert line.startswith(f"predicted   unknown ({path}: the limits file is broken at byte ")
    result = run("probe", *QUICK, env=env)
    assert result.returncode == 0
    assert result.stderr.startswith(f"headrace probe: {path}: the limits file is broken at byte ")
    assert result.stderr.endswith("; it is replaced\n") and result.stderr.count("\n") == 1
    assert len(kept(tmp_path / "cache")["limits"]) == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_limits_file_that_is_no_regular_file(tmp_path, model, make):
    env = keep(tmp_path)
    path = tmp_path / "cache" / "headrace" / "limits.json"
    path.unlink()
    make(path)
    reason = f"{path}: the limits file cannot be read: it is no regular file"
    line = run("load", "--device", "cpu", model, env=env, timeout=20).stdout.splitlines()[4]
    assert line == f"predicted   unknown ({reason})"
    result = run("probe", *QUICK, env=env, timeout=20)
    assert (result.returncode, result.stderr) == (3, f"headrace probe: the result is not kept: {reason}\n")
    assert not path.is_file()


def test_a_limits_file_that_may_not_be_read(tmp_path, model):
    env = keep(tmp_path)
    path = tmp_path / "cache" / "headrace" / "limits.json"
    path.unlink()
    path.symlink_to(path)  # as good as no permission, which root always has
    line = run("load", "--device", "cpu", model, env=env).stdout.splitlines()[4]
    assert line == f"predicted   unknown ({path}: the limits file cannot be read: {os.strerror(errno.ELOOP)})"


def test_where_nothing_can_be_kept(tmp_path):
    (tmp_path / "cache").write_text("a file, no folder")
    for env, message in [({"XDG_CACHE_HOME": str(tmp_path / "cache")}, "the folder of the limits file cannot be made"),
                         ({"XDG_CACHE_HOME": "relative", "HOME": ""}, "set XDG_CACHE_HOME or HOME")]:
        result = run("probe", "--json", *QUICK, env=env)
        assert result.returncode == 3
        assert result.stderr.startswith("headrace probe: the result is not kept: ") and message in result.stderr
        report = json.loads(result.stdout)
        assert report["saved"] is None and report["limits"]["memory_copy"] > 0


def test_the_home_folder_serves_without_a_cache_folder(tmp_path):
    env = {"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path)}
    saved = run_json("probe", "--json", *QUICK, env=env)["saved"]
    assert saved == str(tmp_path / ".cache" / "headrace" / "limits.json")


@pytest.mark.parametrize("options, code, kind", [
    (["--device", "gpu"], 2, "InvalidArgument"),
    (["--device", "cuda:0"], 3, "DeviceUnavailable"),
    (["--device", "cpu", "nowhere"], 1, "IoError"),
    (["--device", "cpu", "--threads", "100000"], 2, "InvalidArgument"),
])
def test_errors(tmp_path, cache, options, code, kind):
    error = run_json("probe", "--json", *options, env=cache, code=code, cwd=tmp_path)["error"]
    assert error["kind"] == kind
    assert not (tmp_path / "cache").exists()


# ---------------------------------------------------------------------------------- what load makes of it


def prediction(model, env, *options):
    report = run_json("load", "--json", "--device", "cpu", *options, model, env=env)
    return report["prediction"], report["seconds"]


def test_load_names_the_slowest_ceiling(tmp_path, model):
    found, seconds = prediction(model, keep(tmp_path, entry()))
    assert (found["ceiling"], found["ceiling_bytes_per_second"], found["age_days"]) == ("page_cache", 10**9, 3)
    assert found["seconds"] == pytest.approx((32 << 20) / 10**9)
    assert found["share"] == pytest.approx(found["seconds"] / seconds, abs=1e-5)
    assert found["date"] == time.strftime("%Y-%m-%d", time.gmtime(entry()["time"]))
    env = keep(tmp_path, entry(page_cache_fresh=5 * 10**8, storage=1))
    assert prediction(model, env)[0]["ceiling"] == "page_cache_fresh"
    lines = run("load", "--device", "cpu", model, env=env).stdout.splitlines()
    assert lines[4] == (f"predicted   0.067109 s by page_cache_fresh, 0.500 GB/s, measured {found['date']}, 3 days ago")
    assert lines[7].startswith("of ceiling  ") and lines[7].endswith(" %")


def test_a_window_and_slices_need_less(tmp_path, model):
    found, _ = prediction(model, keep(tmp_path, entry()), "--slice", "t=[:1000]")
    assert found["seconds"] == pytest.approx(1000 / 10**9)


@pytest.mark.parametrize("entries, reason", [
    ([entry(host="elsewhere")], "never probed"),
    ([entry(page_cache=0, page_cache_fresh=0)], "the page cache was not measured"),
])
def test_what_was_not_measured_is_unknown(tmp_path, model, entries, reason):
    found, _ = prediction(model, keep(tmp_path, *entries))
    assert found["seconds"] is None and found["share"] is None and found["reason"].startswith(reason)


def test_mappings_are_not_predicted(tmp_path, model):
    assert prediction(model, keep(tmp_path, entry()), "--route", "mmap")[0]["seconds"] is None


def test_another_device_of_the_host_knows_its_page_cache(tmp_path, model):
    env = keep(tmp_path, entry(device_type=2, device_uuid="GPU-1", time=1), entry(device_type=2, device_uuid="GPU-2"))
    assert prediction(model, env)[0]["age_days"] == 3


def test_cold_files_cross_storage_where_it_was_measured(tmp_path):
    path = tmp_path / "x.safetensors"
    size = 64 << 20
    header = {"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    write(path, {"t": ("U8", [0], None)}, header=header)
    os.truncate(path, path.stat().st_size + size)  # pages of a hole are in no page cache
    found, _ = prediction(path, keep(tmp_path, entry(storage=10**8, path="/dev/null")))
    assert found["reason"].startswith("the page cache does not hold all")
    os.truncate(path, path.stat().st_size - size)
    os.truncate(path, path.stat().st_size + size)
    found, _ = prediction(path, keep(tmp_path, entry(storage=10**8, path=str(path))))
    assert found["ceiling"] == "storage" and found["seconds"] == pytest.approx(size / 10**8, rel=0.05)
