"""bench_cold on files of a few MiB: that it drops, measures and compares what it says, however fast the drive is."""

import json
import os
import pathlib

import command
import pytest

NOT_HERE = 77


def bench_cold(*arguments, settings="memory=2000000000"):
    return command.run_on_fake_gpu("bench_cold", *arguments, settings=settings)


@pytest.fixture
def folder(tmp_path):
    shards = {f"{i}.safetensors": {f"{i}.large": ("F32", [3 << 20], None), f"{i}.odd": ("U8", [77_777], None),
                                   f"{i}.empty": ("U8", [0], None)} for i in range(2)}
    command.write_sharded(tmp_path / "shards", shards)
    return tmp_path / "shards"


def test_measures_all_parts(folder, tmp_path):
    result = bench_cold("--gpu", 0, "--pairs", 3, "--half", "--hot-checks", "--hot-rounds", 3, "--json",
                        tmp_path / "out.json", folder)
    if result.returncode == NOT_HERE:
        pytest.skip(result.stderr)
    assert result.returncode == 0, result
    report = json.loads((tmp_path / "out.json").read_text())
    size = 2 * ((12 << 20) + 77_777)
    files = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert report["bytes"] == report["cold"]["raw"]["bytes"] == files
    assert len(report["raw_settings"]) == 3 and all(row["gb_s"] > 0 for row in report["raw_settings"])
    for part in ("cold", "half"):
        assert report[part]["pairs"] == 3
        assert [row["device"] for row in report[part]["subjects"]] == ["cpu", "cuda:0"]
    for row in report["cold"]["subjects"]:
        assert row["bytes"] == size and len(row["seconds"]) == len(row["ratios"]) == 3
        assert row["ratio_min"] <= row["ratio_median"] <= row["ratio_max"] and row["compared_bytes"] > 6 << 20
        assert row["cpu_seconds_per_gb"] > 0
    for row in report["half"]["subjects"]:
        assert all(0.49 < share < 0.51 for share in row["resident_shares"]) and len(row["hot_seconds"]) == 3
    hot = report["hot"]["subjects"]
    assert [row["route_asked"] for row in hot] == ["pread", "auto", "uring"] * 2
    assert all("missing" in row or row["compared_bytes"] > 6 << 20 for row in hot)
    assert all(ratio == 1 for row in hot if row["route_asked"] == "pread" for ratio in row["ratios"])


def test_no_device(folder):
    assert bench_cold("--gpu", 0, folder, settings="driver=none").returncode == NOT_HERE


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs")
def test_refuses_files_that_stay_in_the_page_cache():
    path = pathlib.Path("/dev/shm") / f"headrace-bench-cold-{os.getpid()}.safetensors"
    try:
        command.write(path, {"one": ("U8", [100_000], None)})
        result = bench_cold(path)
    finally:
        path.unlink(missing_ok=True)
    assert result.returncode == NOT_HERE and "not measured here" in result.stderr


@pytest.mark.parametrize("arguments", [["--pairs", "2"], ["--nothing", "1"], ["--hot-rounds", "1000"]])
def test_wrong_arguments(folder, arguments):
    assert bench_cold(*arguments, folder).returncode == 1
