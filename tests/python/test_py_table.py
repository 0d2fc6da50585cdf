"""The table of a checkpoint, paths and hub ids, begin(), and the tree of exceptions."""

import os
import pickle
import threading
import time

import numpy
import page_cache
import pytest
import reference
from fake_gpu import wait_until

import headrace

DATA = numpy.arange(24, dtype=numpy.float32)
TENSORS = {
    "b": ("F32", [2, 3, 4], DATA.tobytes()),
    "a.weight": ("BF16", [3], b"abcdef"),
    "Ω": ("U8", [0, 2], b""),
    "s": ("I64", [], bytes(8)),
}


@pytest.fixture
def path(tmp_path):
    return reference.write_by_hand(tmp_path / "x.safetensors", TENSORS, 0, {"format": "pt", "k": "v"})


def test_a_checkpoint_is_a_mapping(path):
    with headrace.open(path) as checkpoint:
        assert len(checkpoint) == 4 and list(checkpoint) == list(TENSORS) and "b" in checkpoint and 3 not in checkpoint
        info = checkpoint["b"]
        assert (info.name, info.dtype, info.shape, info.file, info.nbytes) == ("b", "F32", (2, 3, 4), str(path), 96)
        assert path.read_bytes()[info.offset :][:96] == DATA.tobytes()
        assert checkpoint["Ω"].shape == (0, 2) and checkpoint["s"].shape == ()
        assert checkpoint.metadata == {"format": "pt", "k": "v"} and checkpoint.files == (str(path),)
        assert checkpoint.nbytes == 96 + 6 + 8 and checkpoint.warnings == []
        assert [tensor.name for tensor in checkpoint.match("?")] == ["b", "Ω", "s"]
        assert dict(checkpoint.items())["s"].dtype == "I64" and checkpoint.get("nobody") is None
        assert {checkpoint: 1}[checkpoint] == 1 and "4 tensors" in repr(checkpoint)
        for name in ["nobody", "\ud800", "b\0"]:
            assert name not in checkpoint
            with pytest.raises(KeyError):
                checkpoint[name]
    with pytest.raises(ValueError, match="closed"):
        checkpoint["b"]


def test_closing_leaves_running_loads_alone(path):
    with headrace.open(path) as checkpoint:
        job = checkpoint.start(framework="np")
    assert len(dict(job)) == 4


def test_a_tensor_of_ones_own(path):
    loaded = headrace.load(path)
    tensor = loaded["b"]
    assert tensor.shape == (2, 3, 4) and tensor.dtype == "F32" and tensor.nbytes == 96
    assert tensor.data_ptr() % 256 == 0 and "F32" in repr(tensor)
    view = memoryview(tensor)
    assert view.format == "f" and view.shape == (2, 3, 4) and view.tolist() == DATA.reshape(2, 3, 4).tolist()
    view[0, 0, 0] = 5.0  # writable
    assert numpy.asarray(tensor)[0, 0, 0] == 5
    raw = memoryview(loaded["a.weight"])
    assert raw.format == "B" and raw.tobytes() == b"abcdef"
    assert memoryview(loaded["s"]).tolist() == 0 and bytes(loaded["Ω"]) == b""
    with pytest.raises(TypeError):
        headrace.Tensor()


def test_folders_lists_and_indices(tmp_path):
    shards = {f"{i}.safetensors": {f"t{i}": ("U8", [i + 1], bytes([i] * (i + 1)))} for i in range(3)}
    for file, tensors in shards.items():
        reference.write_by_hand(tmp_path / file, tensors)
    files = sorted(tmp_path / file for file in shards)
    assert list(headrace.open(tmp_path)) == list(headrace.open(files)) == ["t0", "t1", "t2"]
    assert list(headrace.open(map(str, files[:2]))) == ["t0", "t1"]
    (tmp_path / "m.safetensors.index.json").write_text('{"weight_map": {"t1": "1.safetensors", "t2": "2.safetensors"}}')
    assert list(headrace.open(tmp_path)) == list(headrace.open(tmp_path / "m.safetensors.index.json")) == ["t1", "t2"]
    loaded = headrace.load(tmp_path)
    assert bytes(loaded["t2"]) == bytes([2, 2, 2])
    os.remove(files[2])
    with pytest.raises(headrace.errors.ShardMissing) as caught:
        headrace.open(tmp_path)
    assert "2.safetensors" in str(caught.value)
    with pytest.raises(ValueError):
        headrace.open([])


# ------------------------------------------------------------------------------------------------------- hub cache

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    model = tmp_path / "hub" / "models--some--model"
    for folder in ("blobs", "refs/pr", f"snapshots/{COMMIT}"):
        (model / folder).mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    (model / "refs" / "pr" / "1").write_text(COMMIT)
    reference.write_by_hand(model / "blobs" / "hash", TENSORS)
    (model / "snapshots" / COMMIT / "model.safetensors").symlink_to("../../blobs/hash")
    monkeypatch.chdir(tmp_path)
    return model


@pytest.mark.parametrize("revision", [None, "main", "pr/1", COMMIT])
def test_a_hub_id_is_found_in_the_cache(cache, revision):
    assert list(headrace.open("some/model", revision=revision)) == list(TENSORS)
    assert len(headrace.load("some/model", revision=revision)) == 4


PLACES = [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]


@pytest.mark.parametrize("variable, below", PLACES)
def test_where_the_cache_lies(cache, monkeypatch, tmp_path, variable, below):
    monkeypatch.delenv("HF_HUB_CACHE")
    (tmp_path / "elsewhere" / below).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "hub").rename(tmp_path / "elsewhere" / below)
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert len(headrace.open("some/model")) == 4


def test_what_is_not_in_the_cache_says_where_it_was_looked_for(cache):
    with pytest.raises(FileNotFoundError, match=r"models--no--model"):
        headrace.open("no/model")
    with pytest.raises(FileNotFoundError, match=r"no revision 'v9'.*there: main, pr/1"):
        headrace.open("some/model", revision="v9")
    (cache / "snapshots" / COMMIT / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no .safetensors file"):
        headrace.open("some/model")
    (cache / "snapshots" / COMMIT / "model.safetensors.index.json").write_text('{"weight_map": {"b": "1.safetensors"}}')
    with pytest.raises(headrace.errors.ShardMissing, match=r"1.safetensors"):
        headrace.open("some/model")
    with pytest.raises(FileNotFoundError):
        headrace.open("some/where/else.safetensors")
    for revision in ["../../x", "/etc", "a\0b"]:
        with pytest.raises(ValueError):
            headrace.open("some/model", revision=revision)


def test_a_path_wins(cache, tmp_path):
    (tmp_path / "some" / "model").mkdir(parents=True)
    reference.write_by_hand(tmp_path / "some" / "model" / "x.safetensors", {"mine": ("U8", [1], b"x")})
    assert list(headrace.open("some/model")) == ["mine"]
    with pytest.raises(ValueError, match="revision"):
        headrace.open("some/model", revision="main")


# ------------------------------------------------------------------------------------------------------------ begin


def test_begin_is_taken_over(path, monkeypatch):
    beginning = headrace.begin(path)
    core, _ = beginning.result()
    assert headrace.open(path)._core is core
    assert headrace.open(path)._core is not core  # once
    assert len(beginning.checkpoint()) == 4


def test_begun_twice_is_begun_once(path, tmp_path):
    assert headrace.begin(path) is headrace.begin(path)
    core, _ = headrace.begin(path).result()
    assert headrace.open(path)._core is core
    missing = tmp_path / "later.safetensors"
    failed = headrace.begin(missing)
    with pytest.raises(FileNotFoundError):
        failed.result()
    reference.write_by_hand(missing, TENSORS)
    assert headrace.begin(missing) is not failed and len(headrace.open(missing)) == 4


def test_begin_is_not_taken_over_when_the_file_changed_or_the_arguments_differ(path):
    headrace.begin(path)
    assert len(headrace.open(path, strict=False)) == 4
    headrace.begin(path).result()
    os.replace(reference.write_by_hand(path.parent / "new", {"new": ("U8", [1], b"x")}), path)
    assert list(headrace.open(path)) == ["new"]


def test_errors_of_begin_come_when_it_is_taken_over(tmp_path):
    beginning = headrace.begin(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError):
        beginning.checkpoint()
    with pytest.raises(FileNotFoundError):
        headrace.open(tmp_path / "none.safetensors")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("ahead") / "large.safetensors"
    tensors = {f"t{i}": ("U8", [4 << 20], bytes([i]) * (4 << 20)) for i in range(12)}
    return reference.write_by_hand(path, tensors), {name: data for name, (_, _, data) in tensors.items()}


def need_cold(path):
    if not page_cache.empty(path):
        pytest.skip("the page cache cannot be emptied here")


def test_begin_reads_ahead_and_the_load_leaves_the_page_cache_as_it_was(large):
    path, tensors = large
    need_cold(path)
    headrace.begin(path)
    wait_until(lambda: page_cache.resident(path) >= 47 << 20)
    with headrace.open(path) as checkpoint:
        loaded = checkpoint.load()
        assert "MiB were read ahead" in checkpoint.last_stats.route_reason
        assert all(bytes(loaded[name]) == data for name, data in tensors.items())
        assert page_cache.resident(path) <= 9 << 20  # what the kernel reads ahead by itself is up to 8 MiB
        checkpoint.load()
        assert "read ahead" not in checkpoint.last_stats.route_reason


def test_begin_reads_as_much_as_it_is_told(large):
    path, _ = large
    for wanted in (0, 8 << 20):
        need_cold(path)
        headrace.begin(path, read_ahead_bytes=wanted).result()
        wait_until(lambda: page_cache.resident(path) >= wanted)  # noqa: B023, at once
        time.sleep(0.05)
        assert page_cache.resident(path) <= wanted + (9 << 20)
        headrace.open(path)
    for wrong in (-1, 0.5, "1", 2**64):
        with pytest.raises(headrace.errors.InvalidArgument, match="read_ahead_bytes="):
            headrace.begin(path, read_ahead_bytes=wrong)


def test_begin_imports_no_framework():
    import subprocess
    import sys

    program = "import sys, headrace; print([m for m in ('torch', 'numpy', 'jax', 'tqdm') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_open_from_many_threads(path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(list(headrace.open(path)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(TENSORS)] * 8


# ----------------------------------------------------------------------------------------------------------- errors


def test_the_tree_of_exceptions_is_the_librarys_list():
    from headrace import _core, errors

    for code, kind, text in _core.error_list():
        if kind == "End":
            continue
        cls = getattr(errors, kind)
        assert issubclass(cls, headrace.HeadraceError) and cls.code == code and cls.kind == kind == cls.__name__
        assert text[1:] in cls.__doc__ and kind in errors.__all__
    assert headrace.SafetensorError is headrace.HeadraceError and issubclass(headrace.HeadraceError, Exception)
    for kind, base in {"TensorNotFound": KeyError, "IoError": OSError, "InvalidArgument": ValueError,
                       "OutOfMemory": MemoryError, "Unsupported": NotImplementedError}.items():
        assert issubclass(getattr(errors, kind), base)


def test_an_error_names_file_tensor_and_offset(tmp_path):
    path = tmp_path / "bad.safetensors"
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(headrace.errors.InvalidOffset) as caught:
        headrace.open(path)
    error = caught.value
    assert error.kind == "InvalidOffset" and error.code == -6 and error.file == str(path) and error.tensor == "x"
    assert error.offset is not None and str(path) in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.offset == error.offset


def test_a_missing_file_is_all_that_one_may_catch(tmp_path):
    missing = tmp_path / "none.safetensors"
    for catch in (FileNotFoundError, OSError, headrace.errors.IoError, headrace.HeadraceError):
        with pytest.raises(catch) as caught:
            headrace.open(missing)
        assert caught.value.errno == 2 and caught.value.file == str(missing) and str(missing) in str(caught.value)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.errno == 2 and str(error) == str(caught.value)


def test_what_it_is_instead(tmp_path):
    (tmp_path / "page.safetensors").write_bytes(b"<!DOCTYPE html><html></html>" * 10)
    with pytest.raises(headrace.errors.NotSafetensors, match="HTML"):
        headrace.open(tmp_path / "page.safetensors")


def test_strict_and_trailing(tmp_path, path):
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(headrace.errors.MetadataIncompleteBuffer):
        headrace.open(path)
    assert len(headrace.open(path, allow_trailing=True)) == 4
