"""A load gives each tensor once, however it is asked for, in the shape that its index leaves, in every framework."""

import contextlib
import itertools
import threading
import time

import numpy
import pytest
import reference

import headrace
from headrace import errors

NAMES = ["a", "b", "c"]
SHAPE = (3, 4)
VALUES = {name: numpy.arange(12, dtype="f4").reshape(SHAPE) + i for i, name in enumerate(NAMES)}
PICK = headrace.pick(0, [2, 0])  # comes in two parts


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("once") / "x.safetensors"
    headrace.save_file(VALUES, path)
    return path


def needs(name: str | None) -> None:
    if name is not None:
        pytest.importorskip({"pt": "torch", "flax": "jax"}.get(name, name))


# ------------------------------------------------------------------------------------------------------------- once

KINDS = {
    "of no framework": lambda: {},
    "of a framework": lambda: {"framework": "numpy"},
    "imported": lambda: {"framework": "jax"},
    "into": lambda: {"into": {name: numpy.empty(SHAPE, "f4") for name in NAMES}},
    "into parts": lambda: {"into": {name: [(PICK, numpy.empty((2, 4), "f4"))] for name in NAMES}},
    "made of parts": lambda: {"slices": {"*": PICK}, "framework": "numpy"},
}
TAKERS = {
    "get": lambda job, name: job.get(name),
    "future": lambda job, name: job.future(name).result(),
}
RESTS = {
    "wait": (lambda job: sorted(job.wait()), ["ready"]),
    "iterate": (lambda job: [name for name, _ in job], ["ready", "file", "name"]),
}
TO_THE_REST = [(rest, order) for rest, (_, orders) in RESTS.items() for order in orders]


@contextlib.contextmanager
def started(path, kind, **options):
    chosen = KINDS[kind]()
    needs(chosen.get("framework"))
    with headrace.start(path, **chosen, **options) as job:
        yield job


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("rest", "order"), TO_THE_REST)
def test_what_was_handed_out_is_not_among_the_rest(path, kind, taker, rest, order):
    with started(path, kind, order=order) as job:
        TAKERS[taker](job, "b")
        assert sorted(RESTS[rest][0](job)) == ["a", "c"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", TAKERS)
def test_a_second_time_is_refused(path, kind, again):
    with started(path, kind) as job:
        job.get("b")
        with pytest.raises(errors.InvalidArgument, match="tensor 'b' was handed out before") as caught:
            TAKERS[again](job, "b")
        assert caught.value.tensor == "b"
        assert sorted(job.wait()) == ["a", "c"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["ready", "file", "name"])
def test_what_iteration_gave_is_refused(path, kind, order):
    with started(path, kind, order=order) as job:
        pairs = iter(job)
        name = next(pairs)[0]
        with pytest.raises(errors.InvalidArgument, match="handed out before"):
            job.get(name)
        assert len(list(pairs)) == 2


def test_an_interrupted_wait_may_be_repeated(path):
    """What hands nothing out takes nothing away."""
    with headrace.start(path, framework="numpy") as job:
        real = job._wait

        def interrupted(position):
            job._wait = real
            raise KeyboardInterrupt

        job._wait = interrupted
        with pytest.raises(KeyboardInterrupt):
            job.get("a")
        assert numpy.array_equal(job.get("a"), VALUES["a"])


def test_threads_that_ask_for_the_same(path):
    for kind in ["into", "of a framework"]:
        with started(path, kind) as job:
            results = []

            def ask(job=job, results=results):
                try:
                    results.append(job.get("a"))
                except errors.InvalidArgument:
                    results.append(None)

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(results) == 4 and sum(result is not None for result in results) == 1


# ---------------------------------------------------------------------------------------------------------- futures


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rest", "order"), TO_THE_REST)
def test_futures_keep_what_they_were_asked_for(path, kind, rest, order):
    for _ in range(10):
        with started(path, kind, order=order) as job:
            futures = [job.future(name) for name in ["c", "a"]]
            assert RESTS[rest][0](job) == ["b"]
            assert all(future.result() is not None for future in futures)


def test_a_future_that_was_cancelled_leaves_its_tensor(path):
    with headrace.start(path, framework="numpy") as job:
        blocked = threading.Event()
        first = job.future("a")
        first.add_done_callback(lambda _: blocked.wait())
        second = job.future("b")
        is_cancelled = second.cancel()  # it was not begun, unless the first one was complete when it got its callback
        blocked.set()
        assert sorted(job.wait()) == (["b", "c"] if is_cancelled else ["c"])


def test_a_callback_may_take_the_rest(path):
    """It runs on the thread that completes futures, where waiting for them would never end."""
    with headrace.start(path, framework="numpy") as job:
        rest, done = [], threading.Event()

        def take(_):
            rest.extend(job.wait())
            done.set()

        job.future("a").add_done_callback(take)
        assert done.wait(20) and sorted(rest) in (["b", "c"], ["a", "b", "c"])


def test_an_exception_while_the_thread_of_futures_starts(path, monkeypatch):
    """As Ctrl-C there: the thread ends."""

    def count():
        return sum(thread.name == "headrace-futures" for thread in threading.enumerate())

    real, before = threading.Event.wait, count()

    def interrupted(self, timeout=None):
        real(self, timeout)
        raise KeyboardInterrupt

    with headrace.start(path) as job:
        monkeypatch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job.future("a")
        monkeypatch.setattr(threading.Event, "wait", real)
        deadline = time.monotonic() + 20
        while count() > before and time.monotonic() < deadline:
            time.sleep(0.001)
        assert count() == before
        assert job.future("a").result() is not None


# ----------------------------------------------------------------------------------------------------------- shapes

WAYS = {
    "load": lambda path, **options: headrace.load(path, **options)["a"],
    "stream": lambda path, **options: dict(headrace.stream(path, **options))["a"],
    "get": lambda path, **options: headrace.start(path, **options).get("a"),
    "future": lambda path, **options: headrace.start(path, **options).future("a").result(),
}
INDICES = [numpy.s_[1], numpy.s_[:, 2], numpy.s_[-1, ::3], numpy.s_[2, 3], numpy.s_[..., 0], numpy.s_[1:, 1]]


@pytest.mark.parametrize("framework", [None, "numpy", "pt", "jax"])
@pytest.mark.parametrize("way", WAYS)
def test_integers_drop_their_dimensions(path, framework, way):
    needs(framework)
    for index in INDICES:
        tensor, wanted = WAYS[way](path, slices={"a": index}, framework=framework), VALUES["a"][index]
        assert tuple(tensor.shape) == wanted.shape
        assert numpy.array_equal(numpy.from_dlpack(tensor), wanted)
        if framework is None:
            assert memoryview(tensor).shape == wanted.shape and tensor.nbytes == wanted.nbytes


@pytest.mark.parametrize("framework", ["numpy", "pt", "flax"])
@pytest.mark.parametrize("eager", [False, True])
def test_slices_of_safe_open_drop_them(path, framework, eager):
    needs(framework)
    with headrace.safe_open(path, framework, eager=eager) as file:
        for index in INDICES:
            tensor, wanted = file.get_slice("a")[index], VALUES["a"][index]
            assert tuple(tensor.shape) == wanted.shape and numpy.array_equal(numpy.asarray(tensor), wanted)


@pytest.mark.parametrize("shape", [(5, 4, 3), (2, 3, 1), (4, 1), (2, 4), (3, 2, 2)])
def test_packed_elements(tmp_path, shape):
    """What lies on whole bytes loads without a framework; PyTorch, whose elements are pairs, refuses odd dimensions."""
    bits = numpy.random.default_rng(1).integers(0, 16, shape, dtype="u1")
    pairs = bits.reshape(-1, 2)
    path = reference.write_by_hand(tmp_path / "p.safetensors",
                                   {"a": ("F4", list(shape), (pairs[:, 0] | pairs[:, 1] << 4).astype("u1").tobytes())})
    for index in itertools.product([0, -1, slice(None), slice(0, 2)], repeat=len(shape)):
        wanted = bits[index]
        try:
            tensor = headrace.load(path, slices={"a": index}, framework=None)["a"]
        except errors.Unsupported:
            continue  # it does not lie on whole bytes
        flat = wanted.reshape(-1, 2)
        assert tuple(tensor.shape) == wanted.shape
        assert bytes(tensor) == (flat[:, 0] | flat[:, 1] << 4).astype("u1").tobytes()
        check_pairs(path, index, wanted.shape)


def check_pairs(path, index, shape):
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        return
    if not shape or shape[-1] % 2:
        with pytest.raises(errors.Unsupported, match="tensor 'a': its last dimension does not fill whole bytes"):
            headrace.load(path, slices={"a": index}, framework="pt")
    else:
        tensor = headrace.load(path, slices={"a": index}, framework="pt")["a"]
        assert tuple(tensor.shape) == (*shape[:-1], shape[-1] // 2)
