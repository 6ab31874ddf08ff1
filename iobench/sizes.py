"""Sizes, times and rates as people write them: ``256MiB``, ``1GB``, ``4096``, ``10min``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from iobench.errors import OptionError

UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
MAX_NBYTES: Final = 1 << 60


def parse_nbytes(option: str, text: str) -> int:
    """Return the bytes that ``text`` spells; ``option`` is for the message.

    Examples
    --------
    >>> parse_nbytes("--memory", "256MiB"), parse_nbytes("--memory", "1.5 GB")
    (268435456, 1500000000)

    Raises
    ------
    OptionError
        If it is no size of at least one byte.
    """
    expected = "a size such as 256MiB or 1GB"
    size = round(parse_quantity(option, text, UNITS, expected))
    if not 1 <= size <= MAX_NBYTES:
        raise OptionError(f"{option} {text}: expected {expected}")
    return size


def parse_quantity(option: str, text: str, units: Mapping[str, float], expected: str) -> float:
    """Return what a number with one of these units spells; OptionError if it is not above 0."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-z]{0,3})", text.strip().lower())
    value = float(match[1]) * units.get(match[2], 0) if match else 0.0
    if not value:
        raise OptionError(f"{option} {text}: expected {expected}")
    return value


def mebibytes(nbytes: int) -> str:
    """Return no fewer bytes, as an option takes them."""
    return f"{-(-nbytes // (1 << 20))}MiB" if nbytes >= 1 << 20 else f"{-(-nbytes // 1024)}KiB"
