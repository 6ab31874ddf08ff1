"""Rates and numbers of ranks, as people write them."""

from __future__ import annotations

import re
from typing import Final

from iobench.errors import OptionError
from iobench.sizes import parse_nbytes

THOUSANDS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def parse_byte_rate(option: str, text: str) -> float:
    """Return bytes per second, of ``100GB/s`` or ``100GB``."""
    size = re.sub(r" ?/ ?s$", "", text.strip())
    if re.search(r"[KMGTkmgt]i?b$", size) and not size.islower():
        raise OptionError(
            f"{option} {text}: is in bits; expected bytes per second such as 12.5GB/s"
        )
    try:
        return float(parse_nbytes(option, size))
    except OptionError:
        raise OptionError(f"{option} {text}: expected bytes per second such as 100GB/s") from None


def parse_rate(option: str, text: str) -> float:
    """Return a number per second, of ``1M``, ``500k`` or ``20000/s``."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?) ?([kmg]?)(?: ?/ ?s)?", text.strip().lower())
    rate = float(match[1]) * THOUSANDS[match[2]] if match else 0.0
    if not rate:
        raise OptionError(f"{option} {text}: expected reads per second such as 500k or 1M")
    return rate


def parse_rank_counts(option: str, text: str, *, most: int) -> tuple[int, ...]:
    """Return numbers of ranks: ``1,2,4`` each, ``1..4096`` its ends and powers of two within."""
    result: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r" ?(\d{1,9})(?:\.\.(\d{1,9}))? ?", part)
        low = int(match[1]) if match else 0
        high = int(match[2]) if match and match[2] else low
        if not 1 <= low <= high <= most:
            raise OptionError(
                f"{option} {text}: expected numbers from 1 to {most} such as 1..4096 or 1,2,4"
            )
        powers = (1 << power for power in range(most.bit_length()))
        result |= {low, high, *(power for power in powers if low < power < high)}
    return tuple(sorted(result))
