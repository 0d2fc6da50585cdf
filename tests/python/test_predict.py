"""What is expected of coming tensors, from what was copied of those before: views are words here."""

import random

import pytest

from headrace import _predict
from headrace._predict import Predictor

ROOMY = 1 << 30


def play(kinds, copied, window_bytes=ROOMY):
    """Hands out all tensors; copied(index) gives (view, bytes) of each. Returns the batches by the tensor before which
    they are read, and has an eye on what must hold at any time."""
    predictor, batches, last_copied, given = Predictor(kinds, window_bytes), {}, {}, set()
    for index, kind in enumerate(kinds):
        batch = predictor.step(index)
        for expected in batch:
            assert expected.number >= index and expected.number not in given
            given.add(expected.number)
            alike = kinds[expected.number]
            assert list(expected.views) == list(dict.fromkeys(view for view, _ in last_copied[alike]))
        if batch:
            batches[index] = batch
            alive = [batch for batch in batches.values() if batch[-1].number >= index]
            assert sum(expected.nbytes for batch in alive for expected in batch) <= window_bytes
        last_copied[kind] = copied(index)
        for view, nbytes in copied(index):
            predictor.note(index, view, nbytes)
    return batches


def indices(batches):
    return sorted(expected.number for batch in batches.values() for expected in batch)


def test_the_first_number_is_the_layer():
    assert _predict.without_layer("model.layers.12.mlp.experts.3.w1") == "model.layers.#.mlp.experts.3.w1"
    assert _predict.without_layer("h.0.w") == _predict.without_layer("h.17.w") != _predict.without_layer("x.0.w")
    assert _predict.without_layer("lm_head.weight") == "lm_head.weight"


def test_what_was_copied_is_expected_of_the_next_layer():
    batches = play("ab" * 4, lambda index: [("left", 10)] if index % 2 else [("up", 10), ("down", 10), ("up", 10)])
    assert indices(batches) == [2, 3, 4, 5, 6, 7]
    assert [batch[0].views for batch in batches.values()] == [("up", "down")] * 3
    assert [[expected.nbytes for expected in batch] for batch in batches.values()] == [[20, 10]] * 3


def test_what_was_not_copied_is_not_expected():
    assert indices(play("abc" * 4, lambda index: [] if index % 3 == 1 else [("all", 1)])) == [3, 5, 6, 8, 9, 11]
    assert not play("abcdef", lambda index: [("all", 1)])


def test_a_layer_that_differs_costs_itself_and_the_next():
    seen = []

    def copied(index):
        return [("right" if index // 2 == 3 else "left", 1)]

    for batch in play("ab" * 8, copied).values():
        seen += [(expected.number // 2, expected.views[0]) for expected in batch]
    # after two failures nothing more is expected of these kinds
    assert sorted(set(seen)) == [(1, "left"), (2, "left"), (3, "left"), (4, "right")]


def test_one_failure_is_forgiven():
    kept = [True, True, True, False, False, False, True, True, True]
    batches = play("ab" * 9, lambda index: [("all", 1)] if kept[index // 2] else [])
    assert sorted({index // 2 for index in indices(batches)}) == [1, 2, 3, 7, 8]


def test_views_that_alternate_are_given_up():
    batches = play("ab" * 20, lambda index: [(index // 2 % 2, 1)])
    assert sorted({index // 2 for index in indices(batches)}) == [1, 2]


def test_copies_that_come_late_do_not_count():
    predictor = Predictor("aaa", ROOMY)
    predictor.step(0)
    predictor.step(1)
    predictor.note(0, "all", 1)
    assert not predictor.step(2)


def test_a_tensor_alone_is_read_when_it_is_copied():
    assert not play("a" * 9, lambda index: [("all", 1)])


@pytest.mark.parametrize("window_bytes", [0, 1, 99])
def test_a_window_smaller_than_a_tensor(window_bytes):
    assert not play("abcd" * 5, lambda index: [("all", 100)], window_bytes)


def test_batches_are_few():
    size = _predict.BATCH_BYTES // 40
    batches = play([number % 100 for number in range(2000)], lambda index: [("half", size)])
    assert indices(batches) == list(range(100, 2000)) and len(batches) <= 2000 // 40


def test_batches_begin_ahead_of_their_tensors():
    size = _predict.BATCH_BYTES // 16
    batches = play([number % 100 for number in range(500)], lambda index: [("half", size)])
    assert all(batch[0].number > index + 50 for index, batch in batches.items())


def test_what_must_hold_at_random():
    generator = random.Random(5)
    for _ in range(200):
        layer = [generator.choice("abcdefghij") for _ in range(generator.randint(1, 12))]
        kinds = [kind for _ in range(generator.randint(1, 12)) for kind in layer if generator.random() < 0.9]
        views = [
            [(generator.choice("xy"), generator.randint(1, 9)) for _ in range(generator.choice([0, 1, 1, 1, 2]))]
            for _ in kinds
        ]
        play(kinds, views.__getitem__, generator.choice([0, 5, 20, 100, ROOMY]))
