#!/usr/bin/env python3
"""Measure the installed safetensors package on a table of cases and fail where the table disagrees.

usage: measure_reference.py TABLE

TABLE has one case a line, tab-separated: name, reference_verdict, reference_kind, strict_verdict, bytes_base64,
strict_kind, trailing_kind (strict mode with trailing bytes allowed). Kinds are "-" for files that are accepted.
"""
import base64
import sys
from pathlib import Path

import safetensors

# What the reference's messages start with, or contain, and the kind they stand for.
KINDS = [
    ("header too small", "HeaderTooSmall"),
    ("header too large", "HeaderTooLarge"),
    ("invalid header length", "InvalidHeaderLength"),
    ("invalid UTF-8 in header", "InvalidHeader"),
    ("invalid JSON in header", "InvalidHeaderDeserialization"),
    ("invalid offset for tensor", "InvalidOffset"),
    ("overflow computing buffer size", "ValidationOverflow"),
    ("The slice is slicing for subbytes dtypes", "MisalignedSlice"),
    ("invalid shape, data type, or offset", "TensorInvalidInfo"),
    ("incomplete metadata", "MetadataIncompleteBuffer"),
]


def kind_of(message: str) -> str:
    text = message.removeprefix("Error while deserializing: ")
    for start, kind in KINDS:
        if text.startswith(start):
            return kind
    raise ValueError(f"a message of the reference that this script does not know: {message}")


def measure(data: bytes) -> str:
    """The reference's error kind for a file's bytes, or "-" when it accepts them."""
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        return kind_of(str(error))
    return "-"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    count = wrong = 0
    for line in Path(sys.argv[1]).read_text().splitlines():
        if line.startswith("#"):
            continue
        name, verdict, kind, _, data, *_ = line.split("\t")
        measured = measure(base64.b64decode(data))
        count += 1
        if measured != kind or verdict != ("accept" if kind == "-" else "reject"):
            wrong += 1
            print(f"{name}: the table says {verdict} {kind}, safetensors {safetensors.__version__} says {measured}")
    print(f"{count} cases measured, {wrong} disagree")
    return 1 if wrong or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
