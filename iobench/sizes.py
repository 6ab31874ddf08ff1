"""Sizes as people write them: ``256MiB``, ``1GB``, ``4096``."""

from __future__ import annotations

import re
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
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-z]{0,3})", text.strip().lower())
    size = round(float(match[1]) * UNITS.get(match[2], 0)) if match else 0
    if not 1 <= size <= MAX_NBYTES:
        raise OptionError(f"{option} {text}: expected a size such as 256MiB or 1GB")
    return size
