"""Why two counts of bytes differ: reasons that the counts themselves give evidence of.

A reason is named only where something else than the difference speaks for it, and only for as
many bytes as that evidence carries; what is left has no name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from iobench.analysis.storage_figures import ByteGap

__all__ = [
    "COMPRESSION",
    "MAPPING",
    "OWN_READS",
    "PAGE_CACHE",
    "READ_AHEAD",
    "Known",
    "merged",
    "name_gaps",
]

COMPRESSION: Final = "compression"
MAPPING: Final = "mapping"
OWN_READS: Final = "own reads"
PAGE_CACHE: Final = "page cache"
READ_AHEAD: Final = "read-ahead"

OWN_READ_LIMIT: Final = 256
"""Bytes of one look at ``/proc`` (about 110) and of the messages between processes meanwhile."""
READ_AHEAD_LIMIT: Final = 136 << 10
"""Bytes that the kernel may read beyond one read: a window of 128 KiB, and pages at both ends."""
HARDLY_ANY: Final = 0.05
"""Calls that returned less than this share of what was handed on did not read it."""


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known of the bytes of one process, file or both; None is unknown."""

    name: str
    asked: int | None = None
    posix: int | None = None
    stdio: int | None = None
    segments: int | None = None
    rchar: int | None = None
    device: int | None = None
    n_reads: int = 0
    n_looks: int = 0
    decoding: bool = False
    reads: bool = False

    @property
    def takes_part(self) -> bool:
        """Whether anything of it was read, or counted."""
        return self.reads or bool(self.rchar)


class _Difference:
    """A difference between two columns while reasons are found for it."""

    def __init__(self, first: str, second: str, nbytes: int) -> None:
        self.between, self.left = (first, second), nbytes
        self.gaps: list[ByteGap] = []

    def explain(self, name: str, nbytes: int) -> None:
        """Give so many bytes (of the difference's sign) to a reason."""
        if nbytes:
            self.gaps.append(ByteGap(name, nbytes, self.between))
            self.left -= nbytes

    def close(self) -> list[ByteGap]:
        """Return all reasons; what is left has none."""
        self.explain("", self.left)
        return self.gaps


def name_gaps(known: Known) -> tuple[ByteGap, ...]:
    """Return the differences between neighbouring columns, with reasons."""
    return (*_between_calls_and_spans(known), *_between_device_and_calls(known))


def _between_calls_and_spans(known: Known) -> list[ByteGap]:
    """Explain what read calls returned against what read stages handed on."""
    if known.rchar is None or known.asked is None:
        return []
    gap = _Difference("rchar", "asked", known.rchar - known.asked)
    own = min(known.n_looks * OWN_READ_LIMIT, known.rchar)
    if 0 < gap.left <= own:
        gap.explain(OWN_READS, gap.left)
    elif gap.left < 0 and known.rchar - own < HARDLY_ANY * known.asked:
        gap.explain(MAPPING, gap.left)
    elif gap.left < 0 and known.decoding:
        gap.explain(COMPRESSION, gap.left)
    return gap.close()


def _between_device_and_calls(known: Known) -> list[ByteGap]:
    """Explain what the device delivered against what read calls returned."""
    if known.device is None or known.rchar is None:
        return []
    gap = _Difference("device", "rchar", known.device - known.rchar)
    if gap.left < 0:
        gap.explain(PAGE_CACHE, gap.left)
        return gap.close()
    unseen = (known.asked or 0) - known.rchar
    if not known.decoding and unseen > 0 and known.rchar < HARDLY_ANY * (known.asked or 0):
        gap.explain(MAPPING, min(gap.left, unseen))
    if gap.left <= known.n_reads * READ_AHEAD_LIMIT:
        gap.explain(READ_AHEAD, gap.left)
    return gap.close()


def merged(gaps: Iterable[ByteGap]) -> tuple[ByteGap, ...]:
    """Sum gaps of one name and sign; those of opposite signs never make up for each other."""
    total: dict[tuple[str, tuple[str, str], bool], int] = {}
    for gap in gaps:
        key = (gap.name, gap.between, gap.nbytes > 0)
        total[key] = total.get(key, 0) + gap.nbytes
    return tuple(ByteGap(name, nbytes, between) for (name, between, _), nbytes in total.items())
