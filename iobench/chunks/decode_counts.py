"""How much each thread decodes of chunks, and how much of that samples take; for reports."""

from __future__ import annotations

import threading
from typing import NamedTuple


class DecodeCounts(NamedTuple):
    """What a thread decoded: bytes of whole chunks, bytes of them that samples took.

    ``n_hits`` chunks were there decoded already, or in the making; ``n_decoded`` were decoded.
    """

    decoded_nbytes: int
    used_nbytes: int
    n_hits: int
    n_decoded: int


class _Counting(threading.local):
    def __init__(self) -> None:
        self.decoded_nbytes = self.used_nbytes = self.n_needed = self.n_decoded = 0


_counting = _Counting()


def take_decode_counts() -> DecodeCounts | None:
    """Return what this thread decoded since the last call; None where it used no chunk."""
    mine = _counting
    if not mine.used_nbytes and not mine.decoded_nbytes:
        return None
    n_hits = max(0, mine.n_needed - mine.n_decoded)
    counts = DecodeCounts(mine.decoded_nbytes, mine.used_nbytes, n_hits, mine.n_decoded)
    mine.decoded_nbytes = mine.used_nbytes = mine.n_needed = mine.n_decoded = 0
    return counts


def count_decoded(nbytes: int) -> None:
    """Count a chunk that this thread decoded, as stored numbers."""
    _counting.n_decoded += 1
    _counting.decoded_nbytes += nbytes


def count_used(nbytes: int, n_chunks: int) -> None:
    """Count bytes that a sample took of so many chunks, as stored numbers."""
    _counting.n_needed += n_chunks
    _counting.used_nbytes += nbytes
