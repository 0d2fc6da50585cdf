"""What arguments of plain kinds must be. One rule for all of the package: a whole number is an integer of any type, and
no truth value, text or float; a flag is True or False, or 1 and 0 for them. All raise InvalidArgument."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from . import errors


def whole_number(value: Any) -> int | None:
    """The number, or None for what is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def number(where: str, value: Any, most: int) -> int:
    """A whole number between 0 and `most`; `where` it comes from is for the error."""
    result = whole_number(value)
    if result is None:
        raise errors.make("InvalidArgument", f"{where}: {value!r} is not a whole number")
    if not 0 <= result <= most:
        raise errors.make("InvalidArgument", f"{where}: {result} is not between 0 and {most}")
    return result


def flag(name: str, value: Any) -> bool:
    """A flag."""
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise errors.make("InvalidArgument", f"{name}= is True or False, not {value!r}")


def seconds(name: str, value: Any, most: float) -> float:
    """A number of seconds over 0 and up to `most`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= most:
        raise errors.make("InvalidArgument", f"{name}= is a number of seconds over 0 and up to {most:g}, not {value!r}")
    return float(value)


def table(name: str, value: Any, what: str) -> Mapping[str, Any]:
    """A mapping whose keys are text; `what` says of what, for the error."""
    if not isinstance(value, Mapping):
        raise errors.make("InvalidArgument", f"{name}= is {what}, not {value!r}")
    wrong = next((key for key in value if not isinstance(key, str)), None)
    if wrong is not None:
        raise errors.make("InvalidArgument", f"{name}= is {what}, and one of its keys is {wrong!r}")
    return value
