"""bench_write with a few MiB: that it measures both and leaves nothing, however fast the disk is."""

import json

import command


def bench_write(*arguments):
    return command.run_on_fake_gpu("bench_write", *arguments, settings="")


def test_what_it_says(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    result = bench_write("--gib", 0.01, "--pairs", 3, "--threads", 2, "--tensors", 100, "--json",
                         tmp_path / "r.json", folder)
    assert result.returncode == 0, result.stderr
    said = json.loads((tmp_path / "r.json").read_text())
    assert said["benchmark"] == "write" and said["tensors"] == 100 and said["threads"] == 2
    assert said["bytes"] == int(0.01 * (1 << 30))
    assert len(said["ruler_seconds"]) == len(said["headrace_seconds"]) == len(said["ratios"]) == said["pairs"] == 3
    assert 0 < said["ratio_min"] <= said["ratio_median"] <= said["ratio_max"]
    assert list(folder.iterdir()) == []


def test_usage(tmp_path):
    assert bench_write("--gib", 1).returncode == 1
    assert bench_write("--gib", 0.001, tmp_path / "missing").returncode == 1
