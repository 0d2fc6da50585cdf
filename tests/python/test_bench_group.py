"""bench_group.py with gloo and a few MiB: that ranks take turns and that it reports what it measures."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_measures(root, tmp_path):
    make = [sys.executable, root / "bench" / "make_checkpoint.py", tmp_path / "model", "0.005", "2", "--hidden", "128"]
    subprocess.run(make, check=True, capture_output=True)
    out = tmp_path / "out.json"
    command = [sys.executable, root / "bench" / "bench_group.py", tmp_path / "model", "--device", "cpu", "--pairs", "5",
               "--json", out, "--try", "threads=1,group_bytes=100000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(out.read_text())
    total = sum(path.stat().st_size for path in (tmp_path / "model").glob("*.safetensors"))
    assert report["bytes"] == total and report["world"] == 2
    for case, row in report["cases"].items():
        assert len(row["gb_s"]) == 5 and min(row["gb_s"]) > 0
        assert 0.9 < row["read_share"] <= 1, case
        assert all(entry["bytes_spread"] <= entry["bytes"] for entry in row["last"])
    assert result.stdout.count("GB/s") == len(report["cases"]) == 6
    tried = report["cases"]["columns threads=1,group_bytes=100000"]
    assert all(entry["group_bytes"] <= 100000 for entry in tried["last"])
