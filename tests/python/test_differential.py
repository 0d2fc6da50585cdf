"""Random headers, right and wrong, against the safetensors package (verdict and kind) and Python's json (syntax).

HEADRACE_CASES says how many (5,000), HEADRACE_SEED where the numbers start (1). A failure names the seed of its case:
HEADRACE_CASES=1 HEADRACE_SEED=n runs that one alone.
"""

import json
import os
import random
import sys
from pathlib import Path

from reference import DTYPE_BITS, size_of

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from measure_reference import measure  # noqa: E402

CASES = int(os.environ.get("HEADRACE_CASES", "5000"))
FIRST = int(os.environ.get("HEADRACE_SEED", "1"))
BATCH = 1000  # files in one call of the command

NAMES = ["a", "b", "weight", "model.layers.0.weight", "", "é", "\U0001f600", "a\"b\\c", "a\nb", "\0", "__metadata__",
         "__metadata", "x" * 40, "dtype"]
SPACE = ["", "", "", "", " ", "\n", "\t\r\n ", "\f", "\u00a0"]
FRAGMENTS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"0", b"1", b"-", b".", b"e9", b"null", b"true", b"\0",
             b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\u0000", b"\\ud800", b"\\ud83d\\ude00", b"\x1f",
             b"\x7f", b'"dtype":', b'"U8"', b"18446744073709551615", b"18446744073709551616", b"1e308", b"1e309",
             b"NaN", b"//"]
# Kinds of files whose JSON was not read to its end.
NOT_READ = {"HeaderTooSmall", "HeaderTooLarge", "InvalidHeaderLength", "InvalidHeader", "InvalidHeaderDeserialization"}


class Writer:
    """JSON text that is mostly right; `fault` of 0 makes no mistake of meaning."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.fault = self.random.choice([0, 0.02, 0.1])

    def faulty(self) -> bool:
        return self.random.random() < self.fault

    def space(self) -> str:
        return self.random.choice(SPACE[:-2] if self.random.random() < 0.995 else SPACE) if self.fault else ""

    def string(self, text: str) -> str:
        if text and self.random.random() < 0.1:
            at = self.random.randrange(len(text))
            inner = json.dumps(text[:at])[1:-1] + json.dumps(chr(0xffff))[1:-1].replace("ffff", f"{ord(text[at]):04x}")
            if ord(text[at]) <= 0xffff:
                return f'"{inner}{json.dumps(text[at + 1:])[1:]}'
        return json.dumps(text, ensure_ascii=self.random.random() < 0.5)

    def number(self, value: int) -> str:
        if not self.faulty():
            return str(value)
        return self.random.choice([f"{value}.0", f"{value}e0", f"-{value}", f"0{value}", f"+{value}", f'"{value}"',
                                   "null", "-0", str(value + 2**64), str(2**64 - 1), str(2**63), str(value + 1), "0",
                                   "true", f"{value}."])

    def array(self, values: list[str]) -> str:
        if self.faulty():
            values = self.random.choice([values[1:], [*values, "1"], values[::-1], [f"[{value}]" for value in values]])
        return f"[{self.space()}" + f"{self.space()},{self.space()}".join(values) + f"{self.space()}]"

    def object(self, pairs: list[tuple[str, str]]) -> str:
        if pairs and self.faulty():
            pairs = self.random.choice([pairs[1:], [*pairs, self.random.choice(pairs)], pairs[::-1]])
        members = [f"{self.string(key)}{self.space()}:{self.space()}{value}" for key, value in pairs]
        return f"{{{self.space()}" + f"{self.space()},{self.space()}".join(members) + f"{self.space()}}}"

    def value(self, depth: int = 0) -> str:
        kind = self.random.randrange(7 if depth < 4 else 4)
        if kind > 4:
            return self.array([self.value(depth + 1) for _ in range(self.random.randrange(3))])
        if kind == 4:
            return self.object([(self.random.choice(NAMES), self.value(depth + 1))
                                for _ in range(self.random.randrange(3))])
        return self.random.choice(["null", "true", "1.5e-7", "-0", self.string(self.random.choice(NAMES)), "1e400",
                                   "0.1E+2", "123456789012345678901234567890",
                                   "[" * 130 + "]" * 130 if self.faulty() else "[]"])

    def dtype(self, name: str) -> str:
        if self.faulty():
            return self.random.choice([f'{{"{name}":null}}', f'{{"{name}":0}}', f'"{name.lower()}"', "null", '"F128"',
                                       "8"])
        return self.string(name)

    def tensor(self, begin: int) -> tuple[str, int]:
        dtype = self.random.choice(list(DTYPE_BITS))
        shape = [self.random.randrange(5) for _ in range(self.random.randrange(4))]
        if DTYPE_BITS[dtype] < 8:
            shape += [] if self.faulty() else [4]
        if self.faulty():
            shape = self.random.choice([[2**32, 2**32], [2**63, 2], [0, 2**64 - 1, 2], [2**61], [1] * 70])
        bits = DTYPE_BITS[dtype]
        for extent in shape:
            bits *= extent
        end = begin + (size_of(dtype, shape) if bits % 8 == 0 else bits // 8)
        if self.faulty():
            begin, end = self.random.choice([(begin + 1, end), (end, begin), (0, end), (begin, end + 1),
                                             (begin + 1, end + 1)])
        fields = [("dtype", self.dtype(dtype)), ("shape", self.array([self.number(extent) for extent in shape])),
                  ("data_offsets", self.array([self.number(begin), self.number(end)]))]
        if self.faulty():
            return self.array([value for _, value in fields]), end
        if self.random.random() < 0.1:
            fields.insert(self.random.randrange(4), (self.random.choice(NAMES[:-1]), self.value()))
        if self.random.random() < 0.2:
            self.random.shuffle(fields)
        return self.object(fields), end

    def metadata(self) -> str:
        if self.faulty():
            return self.value()
        pairs = [(self.random.choice(NAMES), self.string(self.random.choice(NAMES)))
                 for _ in range(self.random.randrange(4))]
        return self.object(pairs) if self.random.random() < 0.9 else "null"

    def mutated(self, text: bytes) -> bytes:
        at = self.random.randrange(len(text) + 1)
        end = min(len(text), at + self.random.choice([0, 0, 1, 1, 2, 8, 40]))
        new = self.random.choice([b"", self.random.choice(FRAGMENTS), text[at:end] * 2, self.random.randbytes(1)])
        return text[:at] + new + text[end:]

    def file(self) -> bytes:
        pairs, end = [], 0
        for _ in range(self.random.choice([0, 1, 1, 2, 3, 5])):
            tensor, end = self.tensor(end)
            pairs.append((self.random.choice(NAMES[:10] if not self.faulty() else NAMES), tensor))
        if self.random.random() < 0.5:
            pairs.insert(self.random.randrange(len(pairs) + 1), ("__metadata__", self.metadata()))
        text = (self.space() + self.object(pairs) + self.space()).encode("utf-8", "surrogatepass")
        while self.random.random() < 0.25:
            text = self.mutated(text)
        length = len(text) + (self.random.choice([-1, 1, 2**32, 99_999_999]) if self.faulty() else 0)
        size = end + (self.random.choice([-1, 1, 8]) if self.faulty() else 0)
        return max(length, 0).to_bytes(8, "little") + text + bytes(min(max(size, 0), 4096))


def reference_kinds(file: bytes, kind: str) -> set[str]:
    """What the reference says: of tensors over the same range it checks any first, so another try may say otherwise."""
    kinds = {measure(file)}
    tries = 0
    while kind not in kinds and tries < 100:
        kinds.add(measure(file))
        tries += 1
    return kinds


def is_json(text: bytes) -> bool:
    """Python's verdict; NaN and lone surrogates are more than JSON allows, and integers are not measured."""
    try:
        json.loads(text.decode(), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def verdicts(headrace, folder: Path, seeds: range) -> list[tuple[int, bytes, str]]:
    """Seed, file and kind ("-": accepted) of each case."""
    files = [Writer(seed).file() for seed in seeds]
    for seed, file in zip(seeds, files):
        (folder / f"{seed}.safetensors").write_bytes(file)
    result = headrace.run("check", "--compat", "--json", *(folder / f"{seed}.safetensors" for seed in seeds))
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(reports) == len(seeds), result.stderr
    return [(seed, file, "-" if report["ok"] else report["kind"])
            for seed, file, report in zip(seeds, files, reports)]


def test_random_headers(headrace, tmp_path):
    wrong, accepted, kinds = [], 0, set()
    for first in range(FIRST, FIRST + CASES, BATCH):
        for seed, file, kind in verdicts(headrace, tmp_path, range(first, min(first + BATCH, FIRST + CASES))):
            expected = reference_kinds(file, kind)
            header = file[8:8 + int.from_bytes(file[:8], "little")]
            if kind not in expected or kind not in NOT_READ and not is_json(header):
                wrong.append((seed, kind, expected, file[:300]))
            accepted += kind == "-"
            kinds.add(kind)
    assert not wrong, f"{len(wrong)} of {CASES} (seed, kind, the reference's, file): {wrong[:5]}"
    if CASES >= 5000:
        assert accepted > CASES // 5 and len(kinds) >= 10, (accepted, kinds)
