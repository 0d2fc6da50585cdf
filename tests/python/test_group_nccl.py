"""Process groups over NCCL, on two GPUs: the scenes of the other tests of groups, on devices, and memory there."""

import signal

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_nccl_available() or torch.cuda.device_count() < 2:
    pytest.skip("two GPUs with NCCL are needed", allow_module_level=True)
import headrace  # noqa: E402
import ranks  # noqa: E402
import test_group_bitwise as bitwise  # noqa: E402
import test_group_faults as faults  # noqa: E402
import test_group_shuffle as shuffle  # noqa: E402
from test_group_bitwise import checkpoint  # noqa: E402, F401
from test_group_shuffle import folder  # noqa: E402, F401

MIB = 1 << 20


@pytest.fixture
def rows(tmp_path):
    return faults.write_rows(tmp_path)


def run(scene, path, *arguments, **options):
    return ranks.run(2, scene, path, *arguments, backend="nccl", **options)


def test_every_dtype_and_dimension(checkpoint):  # noqa: F811
    bitwise.check_dims(checkpoint, 2, ranks.values(run(bitwise.load_dims, checkpoint, bitwise.DIMS, {})))


def test_small_windows(checkpoint):  # noqa: F811
    options = {"window_bytes": 5000, "group_bytes": 1 << 16}
    bitwise.check_dims(checkpoint, 2, ranks.values(run(bitwise.load_dims, checkpoint, (None, 1), options)), (None, 1))


def test_shuffle(folder):  # noqa: F811
    ranks.values(run(shuffle.ask_for_all, folder, 2, None))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_rank_is_lost(rows, number):
    kind, text, seconds, again = run(faults.lose_rank, rows, number, 10, lost=(1,))[0].value
    assert kind == "GroupError" and "rank 1 (global 1) does not answer since" in text
    assert seconds < ranks.SECONDS_MAX and again


@pytest.mark.parametrize("how", ["raise", "interrupt"])
def test_rank_stops_early(rows, how):
    kind, text, seconds, again = ranks.values(run(faults.leave_early, rows, how))[0]
    assert kind == "GroupError" and "rank 1" in text and seconds < ranks.SECONDS_MAX and again


@pytest.mark.parametrize("when", ["start", "middle"])
def test_rank_is_late(rows, when):
    assert ranks.values(run(faults.be_late, rows, when)) == [True, True]


@pytest.mark.parametrize("what", ["missing", "truncated", "other"])
def test_one_rank_has_other_files(rows, what):
    for rank, (kind, text, seconds, again) in enumerate(ranks.values(run(faults.own_file, rows, what))):
        assert kind == "GroupError" or (rank == 1 and kind), (rank, kind, text)
        assert seconds < 15 and again


def peak_of_load(rank, path, device):
    torch.cuda.init()
    opened = headrace.open(path)
    opened.load(framework="torch", device=device, group=True, shard=1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    tensors = opened.load(framework="torch", device=device, group=True, shard=1)
    own = sum(-(-tensor.numel() * tensor.element_size() // 512) * 512 for tensor in tensors.values())
    return torch.cuda.max_memory_allocated(device) - before - own


def test_peak_is_the_own_shard_and_64_mib(rows):
    assert max(ranks.values(run(peak_of_load, rows))) <= 64 * MIB
