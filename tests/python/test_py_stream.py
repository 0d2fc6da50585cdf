"""What stream() gives: it ends by itself, by close(), by `with`, by being dropped, also when an exception leaves."""

import gc
import threading
import weakref

import pytest
import reference

import headrace

COUNT = 20


@pytest.fixture
def checkpoint(tmp_path):
    tensors = {f"t{i:02}": ("U8", [1000], bytes([i]) * 1000) for i in range(COUNT)}
    with headrace.open(reference.write_by_hand(tmp_path / "x.safetensors", tensors)) as opened:
        yield opened


def begin(checkpoint, **options):
    """A stream in a window of one tensor, and the load behind it."""
    stream = checkpoint.stream(window_bytes=1, order="file", **options)
    return stream, stream._job._load


def has_ended(load) -> bool:
    return load.stats() is None


def test_it_gives_all_and_then_no_more(checkpoint):
    stream, load = begin(checkpoint)
    assert isinstance(stream, headrace.Stream) and iter(stream) is stream
    assert {name: bytes(tensor)[:1] for name, tensor in stream} == {f"t{i:02}": bytes([i]) for i in range(COUNT)}
    assert has_ended(load) and list(stream) == []
    stream.close()


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_close(checkpoint, taken):
    stream, load = begin(checkpoint)
    for _ in range(taken):
        next(stream)
    assert not has_ended(load)
    stream.close()
    assert has_ended(load) and list(stream) == []
    stream.close()


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_with_ends_it_while_an_exception_is_on_its_way(checkpoint, taken):
    stream, load = begin(checkpoint)

    def use():
        with stream as tensors:
            for _ in range(taken):
                next(tensors)
            raise ZeroDivisionError

    try:
        use()
    except ZeroDivisionError:
        assert has_ended(load)


@pytest.mark.parametrize("taken", [0, 3])
def test_dropping_ends_it(checkpoint, taken):
    stream, load = begin(checkpoint)
    for _ in range(taken):
        next(stream)
    load = weakref.ref(load)
    del stream
    gc.collect()
    assert load() is None


def test_a_loop_that_an_exception_leaves_ends_it(checkpoint):
    loads = []

    def use():
        for _ in (lambda stream, load: loads.append(load) or stream)(*begin(checkpoint)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert has_ended(loads[0])


def test_another_thread_may_close_it(checkpoint):
    """One that waits for a tensor gets an error, or the end."""
    entered, release, outcomes = threading.Event(), threading.Event(), []

    def hold(*_):
        entered.set()
        release.wait(10)

    stream, load = begin(checkpoint, progress=hold)

    def take():
        try:
            outcomes.append(len(list(stream)))
        except headrace.errors.Cancelled:
            outcomes.append("cancelled")

    thread = threading.Thread(target=take)
    thread.start()
    assert entered.wait(10)
    closer = threading.Thread(target=stream.close)
    closer.start()
    release.set()
    thread.join(10)
    closer.join(10)
    assert outcomes and (outcomes[0] == "cancelled" or outcomes[0] <= COUNT)
    assert has_ended(load) and list(stream) == []
