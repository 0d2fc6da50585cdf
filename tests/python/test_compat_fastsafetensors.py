"""headrace.compat.fastsafetensors: every method, alone and as ranks of gloo, bit for bit.

What does not depend on headrace is asked of the original as well, where it is installed: the facts are its own.
"""

import importlib
import inspect
import json
import logging
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import conftest
import numpy
import pytest
import reference

torch = pytest.importorskip("torch")
import headrace  # noqa: E402
import ranks  # noqa: E402
from headrace.compat import fastsafetensors as ours  # noqa: E402
from headrace.compat.fastsafetensors import _options  # noqa: E402
from headrace.compat.fastsafetensors.st_types import Device, DeviceType, DType  # noqa: E402
from test_group_bitwise import block, cut, numpy_of, raw  # noqa: E402

DTYPES = ["BOOL", "U8", "I16", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F32", "F64", "I64"]
NOT_GLOO = ["I16", "F8_E4M3", "F8_E5M2"]  # the original hands elements to gloo, not bytes
OURS = "headrace.compat.fastsafetensors"
PACKAGES = [OURS, "fastsafetensors"]
RECORD = conftest.ROOT / "tests" / "support" / "fastsafetensors.json"


def package_of(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture(params=PACKAGES)
def package(request) -> str:
    pytest.importorskip(request.param)
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    random = numpy.random.default_rng(9)
    folder = tmp_path_factory.mktemp("fastsafetensors")
    for number in range(3):
        tensors = {f"{dtype}.{number}": reference.random_tensor(random, dtype, [6, 4, 2]) for dtype in DTYPES}
        tensors[f"BOOL.{number}"] = ("BOOL", [6, 4, 2], bytes(at % 2 for at in range(48)))
        tensors |= {f"wide.{number}": reference.random_tensor(random, "F16", [4, 2 + 2 * number]),
                    f"half.{number}": ("F32", [2, 2], numpy.arange(4, dtype="<f4").tobytes()),
                    f"scalar.{number}": reference.random_tensor(random, "F32", [])}
        reference.write_by_hand(folder / f"{number}.safetensors", tensors, metadata={"number": str(number)})
    return folder


def files_of(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.safetensors")))


def expected_of(folder: Path) -> dict[str, reference.Tensor]:
    """In the order of the headers, which is that of the data."""
    found = {}
    for path in files_of(folder):
        data, tensors = Path(path).read_bytes(), reference.read(Path(path))
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        found |= {name: tensors[name] for name in header if name in tensors}
    return found


def group_of(fst: ModuleType, world: int):
    return torch.distributed.group.WORLD if world > 1 else fst.SingleGroup()


def loaded(name: str, folder: Path, world: int, device: str = "cpu", **options):
    """A loader of a package, with the files given to the ranks in turn."""
    fst = package_of(name)
    loader = fst.SafeTensorsFileLoader(group_of(fst, world), device, nogds=True, **options)
    files = files_of(folder)
    loader.add_filenames({rank: files[rank::world] for rank in range(world)})
    return loader


# ------------------------------------------------------------------------------------------------ what both packages do


def facts(rank: int, folder: Path, name: str, world: int, device: str = "cpu") -> None:
    """Every method of a buffer: the original's behaviour."""
    expected, files = expected_of(folder), files_of(folder)
    loader = loaded(name, folder, world, device)
    assert loader.get_keys() == list(expected)  # the first files of all ranks, then the next ones
    assert loader.get_shape("wide.2") == [4, 6]
    buffer = loader.copy_files_to_device()
    places = {tensor: (int(tensor[-1]) % world, int(tensor[-1]) // world) for tensor in expected}
    assert buffer.key_to_rank_lidx == places
    assert [buffer.get_filename(f"half.{number}") for number in range(3)] == files
    kept = []
    for tensor, (dtype, shape, data) in expected.items():
        assert buffer.get_shape(tensor) == shape
        if tensor.startswith("scalar") or (dtype in NOT_GLOO and world > 1 and name != OURS):
            continue
        for dim in range(len(shape)):
            wanted = cut(expected[tensor], dim if world > 1 else None, rank, world)
            kept.append((buffer.get_sharded(tensor, dim), wanted))
        kept.append((buffer.get_sharded(tensor, -1), data))
    check_several(buffer, expected, rank, world)
    kinds = importlib.import_module(f"{name}.st_types").DType
    half = buffer.get_tensor("half.0", dtype=kinds.F16)
    assert half.dtype == torch.float16 and half.tolist() == [[0, 1], [2, 3]]
    assert buffer.get_tensor_wrapped("half.0").to(dtype=kinds.BF16).get_raw().dtype == torch.bfloat16
    last = {"I64.0": 0, "half.1": -1} | {f"scalar.{number}": -1 for number in range(3)}  # the files are given back
    for tensor, wrapped in buffer.as_dict(last).items():
        assert wrapped.dtype == kinds[expected[tensor][0]]
        kept.append((wrapped.get_raw(), cut(expected[tensor], 0 if tensor == "I64.0" else None, rank, world)))
    assert all(raw(tensor) == data and str(tensor.device) == device for tensor, data in kept)
    if name == OURS:
        buffer.close()
        loader.close()
        assert all(raw(tensor) == data for tensor, data in kept)  # they outlive both


def check_several(buffer, expected, rank: int, world: int) -> None:
    pushed = [buffer.push_tensor("wide.1", target) for target in range(world)]
    assert [tensor is not None for tensor in pushed] == [target == rank or world == 1 for target in range(world)]
    assert raw(pushed[rank]) == expected["wide.1"][2]
    columns = buffer.get_multi_cols(["wide.2", "wide.2"], 1)
    wide = numpy_of(expected["wide.2"])[:, block(6, rank, world)]
    assert raw(columns.get_raw()) == numpy.concatenate([wide, wide], 1).tobytes()
    with pytest.raises(ValueError, match="nothing"):
        buffer.get_tensor("nothing")


def test_facts_alone(package, folder):
    facts(0, folder, package, 1)


def test_facts_of_ranks(package, folder):
    ranks.values(ranks.run(2, facts, folder, package, 2))


def streamed(rank: int, folder: Path, name: str, world: int, device: str = "cpu") -> list[str]:
    fst, expected = package_of(name), expected_of(folder)
    loader = fst.ParallelLoader(pg=group_of(fst, world), hf_weights_files=files_of(folder), queue_size=0,
                                use_tqdm_on_load=False, device=device, nogds=True)
    weights = dict(loader.iterate_weights())
    loader.close()
    assert all(raw(tensor) == expected[tensor_name][2] for tensor_name, tensor in weights.items())
    return list(weights)


def test_stream_alone(package, folder):
    assert streamed(0, folder, package, 1) == list(expected_of(folder))


def test_stream_of_ranks(folder):
    for names in ranks.values(ranks.run(2, streamed, folder, OURS, 2)):
        assert names == list(expected_of(folder))


def test_conversion_of_all(package, tmp_path):
    kinds = importlib.import_module(f"{package}.st_types").DType
    numbers = numpy.arange(-3, 3, dtype="<f4")
    reference.write_by_hand(tmp_path / "0.safetensors", {
        "F32": ("F32", [6], numbers.tobytes()), "I64": ("I64", [6], numbers.astype("<i8").tobytes()),
        "F16": ("F16", [6], numbers.astype("<f2").tobytes())})
    buffer = loaded(package, tmp_path, 1).copy_files_to_device(kinds.BF16)
    for name in ("F32", "I64", "F16"):
        tensor = buffer.get_tensor(name)
        assert tensor.dtype == torch.bfloat16 and tensor.tolist() == numbers.tolist()
    assert buffer.get_tensor("F32", dtype=kinds.F16).dtype == torch.float16


def test_open(package, folder):
    fst, expected = package_of(package), expected_of(folder)
    with fst.fastsafe_open(files_of(folder), device="cpu", nogds=True) as opened:
        assert sorted(opened.keys()) == sorted(expected)
        assert opened.metadata() == {path: {"number": str(number)} for number, path in enumerate(files_of(folder))}
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}
        assert raw(opened.get_tensor_wrapped("wide.0").get_raw()) == expected["wide.0"][2]
    assert all(raw(tensor) == expected[name][2] for name, tensor in tensors.items())


# ------------------------------------------------------------------------------------------------- signatures on record


def callable_of(entry: str):
    found = ours
    for part in entry.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("entry", json.loads(RECORD.read_text())["callables"])
def test_signatures(entry):
    """Every version's calls are understood: names, order and defaults of its parameters."""
    own = inspect.signature(callable_of(entry)).parameters
    for version, parameters in json.loads(RECORD.read_text())["callables"][entry].items():
        for name, default in parameters.items():
            if name in ("args", "kwargs"):
                continue
            assert name in own, f"{version}: {name}"
            found = own[name].default
            assert default == (None if found is inspect.Parameter.empty else repr_of(found)), f"{version}: {name}"
        order = [name for name in own if name in parameters]
        assert order == [name for name in parameters if name in order], version


def repr_of(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, DType) else repr(value)


def test_record_is_of_the_package():
    original = pytest.importorskip("fastsafetensors")
    sys.path.insert(0, str(conftest.ROOT / "tools"))
    try:
        recorder = importlib.import_module("record_fastsafetensors")
    finally:
        sys.path.pop(0)
    record = json.loads(RECORD.read_text())["callables"]
    assert {entry: versions[original.__version__] for entry, versions in record.items()
            if original.__version__ in versions} == recorder.signatures()


# ----------------------------------------------------------------------------------------------------------- ours alone


def uneven(rank: int, folder: Path, world: int) -> None:
    expected = expected_of(folder)
    loader = loaded(OURS, folder, world, disable_cache=False)
    buffer = loader.copy_file_to_device(allow_inflight=True)
    for name in ("odd.0", "odd.1"):
        for dim in (0, 1, -1):
            tensor = buffer.get_sharded(name, dim)
            assert raw(tensor) == cut(expected[name], dim if dim >= 0 else None, rank, world)
            tensor.zero_()  # the caller's own
            assert raw(buffer.get_sharded(name, dim)) == cut(expected[name], dim if dim >= 0 else None, rank, world)
    joined = buffer.get_multi_cols(["odd.1", "odd.0"], 1).get_raw()  # in the order of the names
    parts = [numpy_of(expected[name])[:, block(5, rank, world)] for name in ("odd.1", "odd.0")]
    assert raw(joined) == numpy.concatenate(parts, 1).tobytes()
    buffer.close()


def released(rank: int, folder: Path) -> None:
    """A file is given back when all its tensors were asked for; asking again is an error on all ranks."""
    buffer = loaded(OURS, folder, 2).copy_files_to_device()
    held = buffer._shuffle._held
    buffer.get_tensor("odd.0")
    buffer.get_tensor("odd.0")
    assert ("odd.0" in held) == (rank == 0)
    buffer.get_tensor("even.0")
    assert not held
    buffer.get_tensor("odd.0")


@pytest.fixture(scope="module")
def odd(tmp_path_factory) -> Path:
    random = numpy.random.default_rng(11)
    folder = tmp_path_factory.mktemp("odd")
    for number in range(2):
        reference.write_by_hand(folder / f"{number}.safetensors", {
            f"odd.{number}": reference.random_tensor(random, "F8_E8M0", [3, 5]),
            f"even.{number}": reference.random_tensor(random, "U8", [4])})
    return folder


def test_uneven_blocks(odd):
    ranks.values(ranks.run(2, uneven, odd, 2))


def test_files_given_back(odd):
    outcomes = ranks.run(2, released, odd)
    assert [outcome.kind for outcome in outcomes] == ["InvalidArgument", "GroupError"], outcomes
    assert "handed out before" in outcomes[0].text


def refused(rank: int, folder: Path) -> None:
    world = torch.distributed.group.WORLD
    files = files_of(folder)
    with pytest.raises(ValueError, match="one process"):
        ours.ParallelLoader(world, files, tensor_filter=bool)
    with pytest.raises(ValueError, match="one process"):
        loaded(OURS, folder, 2).copy_files_to_device(borrowed_tensors=True)
    local = ours.ParallelLoader(world, files, all_local=True, use_tqdm_on_load=False,
                                tensor_filter=lambda name: name == f"odd.{rank}")
    assert list(dict(local.iterate_weights())) == [f"odd.{rank}"]


def test_filters_of_ranks(odd):
    ranks.values(ranks.run(2, refused, odd))


def cut_off(rank: int, folder: Path) -> None:
    if rank == 0:
        torch.distributed.barrier()
    loader = loaded(OURS, folder, 2)
    if rank == 1:
        path = folder / "1.safetensors"
        path.write_bytes(path.read_bytes()[:-2])
        torch.distributed.barrier()
    loader.copy_files_to_device().get_tensor("odd.1")


def test_error_of_a_rank(odd, tmp_path):
    for path in odd.glob("*.safetensors"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    outcomes = ranks.run(2, cut_off, tmp_path)
    assert all(outcome.kind in ("MetadataIncompleteBuffer", "GroupError") for outcome in outcomes), outcomes


def test_loader_is_used_again(folder):
    loader = ours.SafeTensorsFileLoader(None, torch.device("cpu"))
    for path in files_of(folder):
        loader.add_filenames({0: [path]})
        assert len(loader.get_keys()) == len(reference.read(Path(path)))
        buffer = loader.copy_files_to_device()
        name = loader.get_keys()[0]
        assert buffer.get_tensor(name) is buffer.get_tensor(name)
        loader.reset()
        assert loader.get_keys() == [] and raw(buffer.get_tensor(name)) == expected_of(folder)[name][2]
        buffer.close()
        with pytest.raises(ValueError, match="closed"):
            buffer.get_tensor(name)
    loader.close()
    loader.close()


def test_filter(folder):
    loader = loaded(OURS, folder, 1)
    loader.set_tensor_filter(lambda name: name.startswith("wide"))
    assert loader.get_keys() == [f"wide.{number}" for number in range(3)]
    buffer = loader.copy_files_to_device()
    assert list(buffer.key_to_rank_lidx) == loader.get_keys()
    assert buffer._shuffle._job.stats().bytes_needed == sum(
        len(data) for name, (_, _, data) in expected_of(folder).items() if name.startswith("wide"))
    for call in (buffer.get_tensor, buffer.get_shape, buffer.get_filename, loader.get_shape):
        with pytest.raises(ValueError, match=r"half\.0"):
            call("half.0")
    assert dict(buffer.iter_local_tensors(["wide.1"]))["wide.1"].shape == (4, 4)


def test_errors_come_at_once(folder, tmp_path, monkeypatch):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(Path(files_of(folder)[0]).read_bytes())
    loader = ours.SafeTensorsFileLoader(None)
    loader.add_filenames({0: [str(path)]})

    def broken(job):
        raise headrace.errors.make("IoError", "the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(headrace.Job, "_ready", broken)
        loader.copy_files_to_device(allow_inflight=True).close()
        with pytest.raises(OSError, match="the disk is gone"):
            loader.copy_files_to_device()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(headrace.HeadraceError, match="cut.safetensors"):
        loader.copy_files_to_device()


@pytest.mark.parametrize(("queue_size", "bounds", "expected"), [(-1, {}, 1), (0, {}, 2), (3, {}, 5),
                                                                (3, {"max_batch_bytes": 100}, 0)])
def test_window(folder, queue_size, bounds, expected):
    """The queue's files are the bound on what is in memory and not taken."""
    loader = ours.ParallelLoader(None, files_of(folder), queue_size=queue_size, use_tqdm_on_load=False, **bounds)
    largest = max(sum(len(data) for _, _, data in reference.read(Path(path)).values()) for path in files_of(folder))
    with headrace.open(files_of(folder)) as checkpoint:
        assert loader._window_bytes(checkpoint) == (expected * largest or 100)
    assert set(dict(loader.iterate_weights())) == set(expected_of(folder))


def test_budget(folder):
    """The tensors that the caller keeps must fit, and the largest one."""
    total = sum(len(data) for _, _, data in expected_of(folder).values())

    def stream(budget, **options):
        loader = ours.ParallelLoader(None, files_of(folder), use_tqdm_on_load=False, device_memory_budget=budget,
                                     **options)
        return len(dict(loader.iterate_weights()))

    assert stream(total) == stream(384, accumulate_resident=False) == len(expected_of(folder))
    assert stream(384, resident_tensor=lambda name: name.startswith("half")) == len(expected_of(folder))
    for budget, options in [(total - 1, {}), (383, {"accumulate_resident": False}),
                            (384, {"resident_tensor": lambda name: name.startswith("F")})]:
        with pytest.raises(ours.BudgetInfeasibleError, match=f"is {budget} bytes"):
            stream(budget, **options)
    with pytest.raises(ValueError, match="resident_tensor"):
        stream(total, accumulate_resident=False, resident_tensor=bool)


def test_stream_that_stops(folder):
    loader = ours.ParallelLoader(None, files_of(folder), use_tqdm_on_load=False)
    weights = loader.iterate_weights()
    name, tensor = next(weights)
    weights.close()
    loader.close()
    assert raw(tensor) == expected_of(folder)[name][2]
    assert list(ours.ParallelLoader(None, []).iterate_weights()) == []


def test_options_that_do_nothing_are_named_once(folder, monkeypatch):
    monkeypatch.setattr(_options, "_named", set())
    with pytest.warns(UserWarning) as found:
        ours.ParallelLoader(None, files_of(folder), overlap_io=False, use_fgds=True, mount_point="/somewhere")
    assert [str(warning.message) for warning in found] == [
        "ParallelLoader: overlap_io, mount_point, use_fgds have no effect with headrace"]
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.ParallelLoader(None, files_of(folder), overlap_io=False)
        loader = loaded(OURS, folder, 1, max_threads=2, bbuf_size_kb=100, set_numa=False)
        loader.copy_files_to_device()
    with pytest.warns(UserWarning, match="copy_files_to_device: use_buf_register, max_copy_block_size have no effect"):
        loader.copy_files_to_device(use_buf_register=False, max_copy_block_size=1 << 20)


def test_options_that_do_something(folder, monkeypatch):
    loader = loaded(OURS, folder, 1, max_threads=3, bbuf_size_kb=32 << 10, set_numa=False)
    reading, sending = loader._engine._reading, loader._engine._sending
    assert reading[1] == 3 and sending[0] == 32 << 20 and sending[2] == 1
    level = logging.getLogger("headrace").level
    try:
        loaded(OURS, folder, 1, debug_log=True)
        assert logging.getLogger("headrace").isEnabledFor(logging.DEBUG)
    finally:
        logging.getLogger("headrace").setLevel(level)
    monkeypatch.setenv("HEADRACE_ROUTE", "gds")
    assert loaded(OURS, folder, 1)._engine._reading[0] == headrace._core.route_find("auto")
    for name in ("pt", "pytorch"):
        loaded(OURS, folder, 1, framework=name)
    with pytest.raises(headrace.errors.Unsupported, match="paddle"):
        ours.fastsafe_open(files_of(folder), framework="paddle")
    with pytest.raises(ValueError, match="pg is"):
        ours.SafeTensorsFileLoader("world")
    with pytest.raises(ValueError, match="meta"):
        ours.SafeTensorsFileLoader(None, "meta")


def test_names_of_devices():
    assert Device.from_str("cuda:1") == Device(DeviceType.CUDA, 1) and Device.from_str("cpu").as_str() == "cpu"
    with pytest.raises(ValueError, match="tpu"):
        Device.from_str("tpu:0")
    assert ours.get_device_numa_node(None) is None


def test_experts():
    owned = [ours.owned_expert_range(7, 3, rank) for rank in range(3)]
    assert owned == [(0, 3), (3, 5), (5, 7)]
    keep = ours.expert_parallel_filter(7, 3, 1)
    names = ["layers.0.experts.2.w1", "layers.0.experts.3.w1", "layers.0.experts.5.w1", "layers.0.q"]
    assert list(filter(keep, names)) == names[1::2]
    with pytest.raises(ValueError, match="3 of 3"):
        ours.owned_expert_range(7, 3, 3)


def test_auto_loader(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loader = ours.AutoLoader(None, files_of(folder))
    assert loader._pipeline.queue_size == -1 and len(dict(loader.iterate_weights())) == len(expected_of(folder))
    loader.close()
    options = {"loader": "base", "set_numa": False, "base": {"copier_type": "nogds", "max_threads": 2},
               "parallel": {"use_pipeline": True, "queue_size": 1, "use_tqdm_on_load": False}}
    (tmp_path / "fastsafetensors.json").write_text(json.dumps(options))
    loader = ours.AutoLoader(None, files_of(folder))
    assert loader.config.use_pipeline and loader._pipeline.queue_size == 1 and loader._loader._engine._reading[1] == 2
    monkeypatch.setenv("FASTSAFETENSORS_CONFIG", str(tmp_path / "nowhere.json"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ours.AutoLoader(None, files_of(folder))
    (tmp_path / "nowhere.json").write_text('{"loader": "3fs"}')
    with pytest.raises(headrace.errors.Unsupported, match="3fs"):
        ours.AutoLoader(None, files_of(folder))


def weights_of_rank(rank: int, folder: Path, world: int) -> None:
    """As a server of text-generation-inference asks for them."""
    expected = expected_of(folder)
    group = torch.distributed.group.WORLD if world > 1 else ours.SingleGroup()
    weights = ours.Weights(files_of(folder), torch.device("cpu"), torch.bfloat16, group,
                           aliases={"lm_head.weight": ["x", "q.weight"]}, prefix="model", nogds=True)
    assert weights.get_shape("q.weight") == torch.Size([4, 4])
    assert weights.get_filename("lm_head.weight") == (files_of(folder)[0], "q.weight")
    assert raw(weights.get_tensor("ids")) == expected["model.ids"][2]  # integers stay
    with pytest.raises(KeyError, match="nothing"):
        weights.get_tensor("nothing")

    def floats(name):
        return torch.frombuffer(bytearray(expected[name][2]), dtype=torch.float32).reshape(expected[name][1])

    mine = block(4, rank, world)
    q, k, packed = floats("q.weight"), floats("k.weight"), floats("qkv.weight")
    pairs = [
        (weights.get_sharded("lm_head.weight"), q[:, mine]),
        (weights.get_partial_sharded("q.weight", 0), q[mine]),
        (weights.get_multi_weights_col(["k", "q"], None, 0), torch.cat([k[mine], q[mine]])),
        (weights.get_multi_weights_row("k", None), k[:, mine]),
        (weights.get_weights_col_packed_qkv("qkv"), torch.cat([part[mine] for part in packed.chunk(3)])),
    ]
    pushed = weights.push_tensor("q.weight", world - 1)
    assert (pushed is None) == (rank != world - 1)
    weights.close()
    for found, wanted in pairs:
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, wanted if world > 1 or wanted.shape == found.shape else None)
    with pytest.raises(NotImplementedError, match="gptq"):
        weights.get_multi_weights_row("k", "gptq")


def test_weights_of_servers(tmp_path):
    values = iter(range(1000))

    def numbers(count):
        return numpy.array([next(values) % 128 for _ in range(count)], "<f4").tobytes()

    reference.write_by_hand(tmp_path / "0.safetensors", {
        "q.weight": ("F32", [4, 4], numbers(16)), "qkv.weight": ("F32", [12, 2], numbers(24)),
        "last.0": ("F32", [1], numbers(1))})
    reference.write_by_hand(tmp_path / "1.safetensors", {
        "k.weight": ("F32", [4, 4], numbers(16)), "model.ids": ("I64", [3], numpy.arange(3, dtype="<i8").tobytes()),
        "last.1": ("F32", [1], numbers(1))})
    weights_of_rank(0, tmp_path, 1)
    ranks.values(ranks.run(2, weights_of_rank, tmp_path, 2))


# ---------------------------------------------------------------------------------------------- programs, as they stand


@pytest.fixture
def enabled():
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "fastsafetensors"}
    ours.enable()
    yield
    ours.disable()
    sys.modules.update(before)


def test_programs_that_import_the_original(enabled, folder):
    expected = expected_of(folder)
    from fastsafetensors import ParallelLoader, SafeTensorsFileLoader, SingleGroup, fastsafe_open
    from fastsafetensors.connectors.tgis_weights import Weights
    from fastsafetensors.frameworks import TensorBase
    from fastsafetensors.st_types import DType as Kinds

    assert SafeTensorsFileLoader is ours.SafeTensorsFileLoader and Weights is ours.Weights and Kinds is DType
    assert issubclass(ours.frameworks.TorchTensor, TensorBase)

    # vLLM and SGLang: a loader for each group of files, or one iterator
    weights = {}
    for path in files_of(folder):
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
        loader.add_filenames({0: [path]})
        try:
            buffer = loader.copy_files_to_device()
            try:
                for name in list(buffer.key_to_rank_lidx.keys()):
                    weights[name] = buffer.get_tensor(name)
            finally:
                buffer.close()
        finally:
            loader.close()
    iterator = ParallelLoader(pg=SingleGroup(), hf_weights_files=files_of(folder), max_concurrent_producers=1,
                              queue_size=0, use_tqdm_on_load=False, device="cpu", bbuf_size_kb=16 * 1024,
                              max_threads=16, nogds=True, debug_log=False)
    iterated = dict(iterator.iterate_weights())
    # ComfyUI: a state dict that outlives what read it
    with fastsafe_open(filenames=[files_of(folder)[1]], nogds=False, device=torch.device("cpu")) as opened:
        state = {name: opened.get_tensor(name) for name in opened.keys()}
    for found in (weights, iterated, state):
        assert all(raw(tensor) == expected[name][2] for name, tensor in found.items())
    assert set(weights) == set(iterated) == set(expected) and len(state) == len(expected) // 3


def test_disable(enabled):
    assert sys.modules["fastsafetensors"] is ours
    ours.disable()
    assert not [name for name in sys.modules if name.split(".")[0] == "fastsafetensors"]


def test_page_names_every_option():
    lines = (conftest.ROOT / "docs" / "fastsafetensors.md").read_text().partition("## Options")[2].splitlines()
    listed = {name for line in lines if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    for call in (ours.SafeTensorsFileLoader, ours.SafeTensorsFileLoader.copy_files_to_device, ours.ParallelLoader):
        assert set(inspect.signature(call).parameters) - {"self", "kwargs"} <= listed


def test_enable_all(monkeypatch):
    """It stands in where the original is installed."""
    before = dict(sys.modules)
    monkeypatch.setattr(headrace.compat._aside, "is_installed", lambda package: package == "torch")
    headrace.compat.enable_all()
    assert sys.modules.get("fastsafetensors") is before.get("fastsafetensors")
    monkeypatch.setattr(headrace.compat._aside, "is_installed", lambda package: package in ("torch", "fastsafetensors"))
    try:
        headrace.compat.enable_all()
        assert sys.modules["fastsafetensors"] is ours
    finally:
        ours.disable()
