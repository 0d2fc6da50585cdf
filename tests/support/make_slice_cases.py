"""Writes tests/support/slice_cases.inc: slice expressions with what numpy makes of them.

Usage: python3 make_slice_cases.py > slice_cases.inc (needs numpy). The elements of a result are kept as a hash, so
that the test compares which elements are taken, in which order, and not how somebody writes a range.
"""
import random

import numpy as np

SHAPES = [(), (1,), (5,), (0,), (4, 6), (3, 0, 2), (2, 3, 4), (2, 3, 2, 3)]

WRITTEN = [
    ":", "::", "0:5", "1:3", "-3:-1", ":-1", "-1:", "::2", "1::2", "1:4:2", "3:1", "0:0", "5:", "7:9", "-9:2", "-9:-7", "2:99",
    "0", "1", "-1", "-2", "4", "+1", "- 1", "...", "..., 1", "1, ...", "..., -1", "1, ..., 2", "0, 1, ...", "..., 0, 1",
    "0, ..., 1, 1", ":, 1", "1, :", ":, ::3", "::2, 1:5:3", "..., ::2", "::2, ...", ":, ..., :", "1:2, ..., 0:1", ":, :, :",
    "0, 0", "0, 0, 0", "1, 2, 3", "-1, -1, -1", "-2:, -2:, -2:", "1,", ":,", "...,", " [ 1 : 2 , : ] ", "[1:2, 3]", "[...]",
    "[0]", "[:]", "[1, ...,]", "\t1:2", "1 :2: 1", ":99999999999999999999999", "-99999999999999999999999:", "::99999999999999999999999",
    "18446744073709551615:", ":18446744073709551616", "::18446744073709551615", "-9223372036854775808:9223372036854775807:3",
    "-0", "+0", "-0:", ":-0", "-2:-0", "-0:-0", ":+0", "- 0:2", ":-00", "0, :-0", "-0, ...", "-0:-1:2",
    "5", "-6", "6", "99999999999999999999999", "-99999999999999999999999", "0, 6", "0, -7", "0, 0, 4", "2, 0, 0", "0, 3, 0",
]


def random_entry(rng):
    def bound():
        return rng.choice(["", "", str(rng.randint(-8, 8)), str(rng.randint(-8, 8)), "-0"])

    if rng.random() < 0.25:
        return rng.choice([str(rng.randint(-4, 4)), str(rng.randint(-4, 4)), "-0"])
    text = bound() + ":" + bound()
    return text + ":" + rng.choice(["", "1", "2", "3", "7"]) if rng.random() < 0.5 else text


def random_expression(rng, rank):
    entries = [random_entry(rng) for _ in range(rng.randint(1, max(rank, 1)))]
    if rng.random() < 0.4:
        entries.insert(rng.randint(0, len(entries)), "...")
    return rng.choice([", ", ",", " , "]).join(entries)


def kept(index):
    """Integers as slices of one element, so that their dimensions stay."""
    entries = index if isinstance(index, tuple) else (index,)
    return tuple(slice(i, i + 1 if i != -1 else None) if isinstance(i, int) else i for i in entries)


def case(shape, text):
    inner = text.strip()
    inner = inner[1:-1] if inner.startswith("[") else inner
    array = np.arange(int(np.prod(shape))).reshape(shape)
    index = eval("np.s_[" + inner.strip() + "]")
    try:
        elements = [int(e) for e in np.ravel(array[index])]
    except IndexError:
        return None
    result = array[kept(index)]
    assert elements == [int(e) for e in result.ravel()]
    value = 0
    for element in elements:
        value = (value * 31 + element + 1) & 0xFFFFFFFF
    return result.shape, value


def braces(numbers):
    return "{" + ", ".join(str(n) for n in numbers) + "}" if numbers else "{0}"


def main():
    rng = random.Random(1)
    print("/* Made by make_slice_cases.py: expressions, shapes, and what numpy takes (refused: numpy's IndexError). */")
    pairs = [(shape, text) for shape in SHAPES for text in WRITTEN]
    pairs += [(shape, random_expression(rng, len(shape))) for shape in SHAPES for _ in range(150)]
    for shape, text in dict.fromkeys(pairs):
        quoted = text.replace("\t", "\\t")
        found = case(shape, text)
        if found is None:
            print(f'{{"{quoted}", {len(shape)}, {braces(shape)}, 1, {{0}}, 0}},')
        else:
            print(f'{{"{quoted}", {len(shape)}, {braces(shape)}, 0, {braces(found[0])}, {found[1]}u}},')


main()
