#!/usr/bin/env python3
"""Writes first inputs for a fuzz target: what tests and real files look like, in the form that the target reads.
Those called case-... stay in the kept corpus whatever code they reach, because each stands for a rule.

usage: make_seeds.py TARGET FOLDER
"""

import base64
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JSON_ONLY, EXACT = 1, 2  # flags of fuzz_header.c


def conformance_files() -> list[bytes]:
    lines = (ROOT / "tests/conformance/cases.tsv").read_text().splitlines()
    return [base64.b64decode(line.split("\t")[4]) for line in lines if not line.startswith("#")]


def json_of(file: bytes) -> bytes:
    return file[8:8 + int.from_bytes(file[:8], "little")]


def layer_names(layers: int) -> list[str]:
    return ["model.embed_tokens.weight", "model.norm.weight"] + [
        f"model.layers.{layer}.{part}.weight" for layer in range(layers)
        for part in ("self_attn.q_proj", "mlp.experts.3.up_proj", "input_layernorm")]


def real_header(layers: int, dtype: str, bits: int, shape: list[int]) -> bytes:
    header: dict = {"__metadata__": {"format": "pt", "total_parameters": "123"}}
    size = bits // 8
    for extent in shape:
        size *= extent
    for number, name in enumerate(layer_names(layers)):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [number * size, (number + 1) * size]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def header_seeds() -> list[bytes]:
    files = [case for case in conformance_files() if len(case) < 4000]
    real = [real_header(*arguments) for arguments in
            [(1, "BF16", 16, [4, 6]), (3, "F32", 32, [2]), (2, "F4", 4, [2, 8]), (1, "F8_E4M3", 8, []),
             (0, "C64", 64, [1])]]
    return ([bytes(3) + case for case in files]
            + [bytes([JSON_ONLY | EXACT, 0, 0]) + json_of(case) for case in files]
            + [bytes([JSON_ONLY | EXACT, 0, 0]) + text for text in real]
            + [bytes([JSON_ONLY, 96, 0]) + text for text in real])


def json_seeds() -> list[bytes]:
    numbers = ["0", "-0", "1.5", "1e5", "1E-5", "1.7976931348623157e308", "1e309", "-1e-400", "18446744073709551615",
               "18446744073709551616", "01", "1.", "-", "0e999999999999", "123456789012345678901234567890.5e-10",
               "9999999999999999999", "[-1,-18446744073709551615]", "9007199254740993"]
    escapes = ["\\ud800", "\\udc00", "\\ud800\\u0041", "\\ud800\\ud800",
               "\\udc00\\ud800", "\\udc00\\udc00", "\\ud800\\ue000",
               "\\ud83d\\ude00", "\\uDBFF\\uDFFF", "\\ud800x\\udc00",
               "\\u00e9\\u07ff\\u0800\\uffff", "\\u12g4", "\\u", "\\x", "\\"]
    utf8 = [b"\xc2\x80", b"\xc1\x80", b"\xdf\xbf", b"\xe0\x9f\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80",
            b"\xee\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
            b"\xf5\x80\x80\x80", b"\x80", b"\xc2", b"\xe1\x80", b"\xf1\x80\x80", b"\xc3\x28"]
    others = ["true", "false", "null", '"a\\u0041\\ud83d\\ude00\\n"', '"\\ud800"', '[1,[2,{"a":[]}],"b"]', "[,]",
              "[1,]",
              "[" * 127 + "]" * 127, "[" * 128 + "]" * 128, ' {"a" : {"b":1 , "c":[ ]} } ',
              '"a long string without any escape at all"']
    return ([text.encode() for text in numbers + others] + [b'"a%sb"' % escape.encode() for escape in escapes]
            + [b'"%s%s"' % (fill, character) for character in utf8 for fill in (b"", b"x" * 31)])


def index_seeds() -> list[bytes]:
    shards = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    names = layer_names(3)
    index = {"metadata": {"total_size": 123456}, "weight_map": {name: shards[number * 3 // len(names)]
                                                                 for number, name in enumerate(names)}}
    paths = ["a", "sub/a.safetensors", "../a", "a/../b", "/a", "..", ".", "a\\b", "c:a", "a\0b", "", "...",
             "..a/b", "a/.."]
    texts = [json.dumps(index, indent=indent) for indent in (None, 2)]
    texts += [json.dumps({"weight_map": {"a": path}}) for path in paths]
    texts += ['{"weight_map":{"a":"x","a":"y"}}', '{"weight_map":{},"weight_map":{}}', '{"metadata":{}}', "[]", "{}",
              "",
              '{"metadata":null,"weight_map":{}}', '{"metadata":{"total_size":1,"total_size":2},"weight_map":{}}',
              '{"metadata":{"total_size":"1"},"weight_map":{}}', '{"metadata":{"total_size":1.5e3},"weight_map":{}}',
              '{"weight_map":{"a":1}}', '{"weight_map":[]}',
              '{"x":[1,{"y":null}],"weight_map":{"\\u0061":"b","b":"a"}}']
    return [text.encode() for text in texts]


def slice_seeds() -> list[bytes]:
    """Every tenth case of the table that numpy made."""
    table = (ROOT / "tests/support/slice_cases.inc").read_text()
    found = re.findall(r'\{"((?:[^"\\]|\\.)*)", (\d+), \{([^}]*)\}', table)
    assert len(found) > 1000
    seeds = []
    for text, rank, extents in found[::10]:
        shape = [min(int(extent), 0xf7) for extent in re.findall(r"\d+", extents)][:int(rank)]
        shape += [0] * (int(rank) - len(shape))
        seeds.append(bytes([int(rank), *shape]) + text.encode().decode("unicode_escape").encode())
    big = bytes([2, 0xff, *b"\xff" * 8, 0xff, *b"\xff" * 8])
    return seeds + [big + text for text in
                    (b"[18446744073709551615:, -1]", b"::18446744073709551616, :-3", b" [ ..., 5 ] ")]


def plan_seeds() -> list[bytes]:
    """Bytes that lead to various requests; a fuzzer finds the rest."""
    patterns = [bytes((start + step * number) % 256 for number in range(length))
                for start in (0, 1, 7, 100) for step in (0, 1, 3, 17) for length in (20, 60, 200)]
    return patterns


def table_seeds() -> list[bytes]:
    """Three files of 200, 100 and 2^63 - 1 bytes, then extents: good, twice, out of bounds, too large, misaligned."""
    files = bytes([200, 100]) + b"\xff" + b"\xff" * 8
    u8, f4, f32 = 5, 2, 18
    largest = b"\xff" + b"\xff" * 8
    good = [bytes([1, ord("a"), f32, 2, 3, 4, 0, 1]), bytes([2, ord("b"), ord("c"), u8, 1, 100, 1, 0]),
            bytes([3, 0xe2, 0x82, 0xac, f4, 1, 6, 2, 9]), bytes([1, ord("d"), u8, 0, 0, 0, 0])]
    bad = [good[0], bytes([1, ord("x"), f32, 1, 1, 0, 197]), bytes([1, ord("x"), f32, 2]) + largest * 2 + bytes([2, 0]),
           bytes([1, ord("x"), f4, 1, 3, 0, 0]), bytes([1, ord("x"), u8, 1, 1, 3, 0]), bytes([0, u8, 0, 0, 0]),
           bytes([1, 0xff, u8, 0, 0, 0]), bytes([1, 0, u8, 0, 0, 0]), bytes([1, ord("x"), u8, 0xf1, *bytes(65), 0, 0]),
           bytes([1, ord("x"), 0, 0, 0, 0]), bytes([1, ord("x"), u8, 1, 1, 2]) + largest]
    return [files + b"".join(good), files + b"".join(reversed(good)), files] + [
        files + b"".join(good) + extent for extent in bad]


SEEDS = {"header": header_seeds, "json": json_seeds, "index": index_seeds, "slice": slice_seeds, "plan": plan_seeds,
         "table": table_seeds}
CASES = {"json", "index", "slice"}


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in SEEDS:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(dict.fromkeys(SEEDS[sys.argv[1]]())):
        (folder / f"{'case' if sys.argv[1] in CASES else 'seed'}-{number:04}").write_bytes(seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
