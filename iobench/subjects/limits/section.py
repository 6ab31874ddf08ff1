"""How much of what its storage can do a run used, in one sentence."""

from __future__ import annotations

from typing import Final

from iobench.report import units
from iobench.report.document import Section, Sentence
from iobench.storage.limit_figures import CACHE, DEVICE, SERVER
from iobench.subjects.contract import Subject
from iobench.subjects.limits.figures import LimitUse, limit_of

__all__ = ["SUBJECT", "limit_section"]


def limit_section(use: LimitUse) -> Section:
    """Return what was used of what storage can do, and how it is known what that is."""
    by = " and ".join(
        f"the {each}" if each in (CACHE, DEVICE, SERVER) else each for each in use.served_by
    )
    threads = "1 thread" if use.threads[0] == 1 else f"{use.threads[0]} threads"
    line = (
        f"Used {_of(use.used_bytes_per_s, use.limit_bytes_per_s)} "
        f"({use.order} reads of {units.nbytes(use.request_nbytes)} from {by}, "
        f"{threads}, by 'iobench limits' on {units.moment(use.wall_ns)})."
    )
    return Section("storage_limit", "What storage can do", (Sentence(line),))


def _of(used: float, limit: float) -> str:
    """Return two rates, with one unit where they share it: "1.1 of 9.4 GB/s"."""
    used_text, limit_text = units.byte_rate(used), units.byte_rate(limit)
    value, _, unit = used_text.rpartition(" ")
    return f"{value if limit_text.endswith(f' {unit}') else used_text} of {limit_text}"


SUBJECT: Final = Subject(name="storage_limit", order=150, figures=limit_of, section=limit_section)
"""The use of storage, as the entry point names it."""
