"""bench_convert: that it measures every pair in both sizes and says so in JSON, however fast."""

import json
import pathlib
import subprocess

import command

PROGRAM = pathlib.Path(command.BINARY).parent / "bench_convert"


def bench_convert(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)


def test_measures_every_pair(tmp_path):
    result = bench_convert("--pairs", 1, "--json", tmp_path / "out.json")
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["trials"] == 1
    assert len(report["pairs"]) == len(result.stdout.splitlines())
    sizes = {(pair["from"], pair["to"]): 0 for pair in report["pairs"]}
    for pair in report["pairs"]:
        sizes[pair["from"], pair["to"]] += 1
        ratio = pair["convert_gb_s"] / pair["memcpy_gb_s"]
        assert ratio > 0 and abs(ratio / pair["ratio_median"] - 1) < 0.05
    assert set(sizes.values()) == {2} and ("F32", "BF16") in sizes and ("F8_E4M3", "BF16") in sizes


def test_refuses_what_it_does_not_know():
    assert bench_convert("--pairs", 0).returncode == 1
    assert bench_convert("--rounds", 3).returncode == 1
