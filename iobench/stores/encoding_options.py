"""The spellings ``VALUE`` and ``VAR=VALUE`` of the options that store fewer bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from iobench.errors import OptionError
from iobench.stores.encoding_steps import DTYPES

__all__ = ["dtype_name", "limit", "pairs", "value_range", "whole"]

_T = TypeVar("_T")


def pairs(
    option: str,
    given: str | int | Sequence[str] | None,
    convert: Callable[[str, str, str], _T],
    *,
    needs_name: bool = False,
) -> Iterator[tuple[str, _T]]:
    """Yield (variable, value) of the spellings ``VALUE`` and ``VAR=VALUE``."""
    texts = [] if given is None else [given] if isinstance(given, str | int) else given
    seen: set[str] = set()
    for text in map(str, texts):
        name, equals, value = text.rpartition("=")
        if (needs_name and not name) or (equals and not name):
            raise OptionError(f"{option} {text}: expected VAR=VALUE")
        if name in seen:
            raise OptionError(f"{option} {text}: given twice for the same")
        seen.add(name)
        yield name, convert(option, text, value)


def dtype_name(option: str, text: str, value: str) -> str:
    """Return the name of a dtype that ``--dtype`` takes."""
    if value not in DTYPES:
        raise OptionError(f"{option} {text}: expected {', '.join(DTYPES)}")
    return value


def whole(option: str, text: str, value: str) -> int:
    """Return a number of bits."""
    if not value.isdecimal():
        raise OptionError(f"{option} {text}: expected a whole number of bits")
    return int(value)


def limit(option: str, text: str, value: str) -> float:
    """Return the largest error allowed."""
    number = _float(option, text, value)
    if number < 0:
        raise OptionError(f"{option} {text}: expected a number from 0")
    return number


def value_range(option: str, text: str, value: str) -> tuple[float, float]:
    """Return the lowest and the highest value of ``LOW:HIGH``."""
    low, colon, high = value.partition(":")
    pair = (_float(option, text, low), _float(option, text, high)) if colon else (1.0, 0.0)
    if pair[0] > pair[1]:
        raise OptionError(f"{option} {text}: expected VAR=LOW:HIGH, the lower one first")
    return pair


def _float(option: str, text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{option} {text}: {value!r} is not a number")
    return number
