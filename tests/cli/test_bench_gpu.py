"""bench_gpu on the fake driver with a few MiB: that it measures what it says and compares all bytes, however fast."""

import json

import command
import pytest

SUBJECTS = ["arena,kept", "arena,new,3", "each,kept", "into,new"]


def bench_gpu(*arguments, settings="memory=2000000000"):
    return command.run_on_fake_gpu("bench_gpu", *arguments, settings=settings)


@pytest.fixture
def files(tmp_path):
    shards = {f"{i}.safetensors": {f"{i}.large": ("F32", [1 << 18], None), f"{i}.odd": ("U8", [77_777], None),
                                   f"{i}.empty": ("U8", [0], None)} for i in range(3)}
    command.write_sharded(tmp_path / "shards", shards)
    return [tmp_path / "shards", command.write(tmp_path / "one.safetensors", {"one": ("I16", [1_000_001], None)})]


def test_measures_and_compares(files, tmp_path):
    options = [word for subject in SUBJECTS for word in ("--subject", subject)]
    result = bench_gpu("--pairs", "5", "--verify", "--limits", "--json", tmp_path / "out.json", *options, *files)
    assert result.returncode == 0, result
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["pairs"] == 5 and len(report["ruler"]["seconds"]) == 5 and report["ruler"]["gb_s"] > 0
    assert report["limits"]["pinned_copy_gb_s"] > 0 and report["limits"]["page_cache"]["gb_s"] > 0
    sizes = [3 * ((1 << 20) + 77_777), 2_000_002]
    asked = [(*subject.split(","), "0")[:3] for subject in SUBJECTS]
    for at, row in enumerate(report["subjects"]):
        assert (row["memory"], row["loader"], str(row["threads_asked"])) == asked[at % len(asked)]
        assert row["bytes"] == row["verified_bytes"] == row["sent_bytes"] == sizes[at // len(asked)]
        assert len(row["seconds"]) == 5 and row["ratio_min"] <= row["ratio_median"] <= row["ratio_max"]
        assert row["pinned_bytes"] > 0
    assert len(report["subjects"]) == 2 * len(SUBJECTS)


def test_no_device(files):
    result = bench_gpu(files[0], settings="driver=none")
    assert result.returncode == 77 and "no device" in result.stderr


@pytest.mark.parametrize("arguments", [["--subject", "arena"], ["--subject", "heap,kept"], ["--cpus", "0-"],
                                       ["--pairs", "4"], ["--nothing", "1"]])
def test_wrong_arguments(files, arguments):
    assert bench_gpu(*arguments, files[0]).returncode == 1


def test_conversions_are_compared_with_the_plain_load(files, tmp_path):
    result = bench_gpu("--pairs", "5", "--verify", "--json", tmp_path / "out.json", "--subject", "arena,kept,2",
                       "--subject", "arena,kept,2,BF16", "--subject", "arena,new,0,F64", files[0])
    assert result.returncode == 0, result
    plain, narrow, wide = json.loads((tmp_path / "out.json").read_text())["subjects"]
    assert "dtype" not in plain and (narrow["dtype"], wide["dtype"]) == ("BF16", "F64")
    assert narrow["conversion"] == "GPU" and narrow["converted_bytes"] == 3 * ((1 << 20) + 77_777)
    assert narrow["plain_ratio_min"] <= narrow["plain_ratio_median"] <= narrow["plain_ratio_max"]
    assert "plain_ratio_median" not in wide  # nothing like it was measured
    assert plain["bytes"] == narrow["bytes"] == narrow["verified_bytes"] == wide["verified_bytes"]
    assert narrow["allocated_bytes"] < plain["allocated_bytes"] + 6 * 256 + 3 * 77_777
