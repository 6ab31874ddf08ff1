"""How much of what its storage can do a run used, in a sentence or two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.limits.figures import LimitUse, limit_of
from iobench.report import units
from iobench.report.document import Section, Sentence
from iobench.storage.limit_figures import CACHE, DEVICE, SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator


def limit_section(use: LimitUse) -> Section:
    """Return what was used of what storage can do, and how it is known what that is."""
    if not use.probed:
        told: tuple[Sentence, ...] = (Sentence(f"The storage was not probed: {use.reason}."),)
    else:
        told = tuple(_of_probes(use))
    return Section("storage_limit", "What the storage can deliver", told)


def _reads(use: LimitUse) -> str:
    by = " and ".join(
        f"the {each}" if each in (CACHE, DEVICE, SERVER) else each for each in use.served_by
    )
    readers = "1 thread" if use.threads[0] == 1 else f"{use.threads[0]} threads"
    return f"reads of {units.nbytes(use.request_nbytes)}{f' from {by}' if by else ''}, {readers}"


def _of_probes(use: LimitUse) -> Iterator[Sentence]:
    used = "" if use.used_bytes_per_s is None else f"Read {units.byte_rate(use.used_bytes_per_s)}; "
    if use.limit_bytes_per_s is None or use.used_fraction is None:
        gave = [
            f"{units.byte_rate(rate)} {where}"
            for rate, where in (
                (use.storage_bytes_per_s, "bypassing the page cache"),
                (use.cache_bytes_per_s, "from it"),
            )
            if rate is not None
        ]
        told = " and ".join(gave) or "nothing that could be timed"
        line = (
            f"{used}probed {use.probed} the run, storage delivered {told} to a reader of the same "
            f"pattern ({_reads(use)}). What share of that the run used is unknown: {use.reason}."
        )
        yield Sentence(line[0].upper() + line[1:])
    else:
        share = units.fraction(use.used_fraction)
        known = ", which held all or none of it before" if use.by_residency else ""
        told = (
            f"so it used {share} of it"
            if use.used_fraction <= 1
            else (
                "less than the run read: the run reads in another size or order than the "
                "probe, or the probe met more load"
            )
        )
        who = "storage" if set(use.served_by) - {CACHE} else "the page cache"
        yield Sentence(
            f"{used}{who} delivered {units.byte_rate(use.limit_bytes_per_s)} to a reader of the "
            f"same pattern, {told} (random {_reads(use)}{known}, {use.probed} the run).",
            "" if use.used_fraction <= 1 else "caution",
        )
    if use.changed and use.before_bytes_per_s and use.after_bytes_per_s:
        slower = use.after_bytes_per_s < use.before_bytes_per_s
        why = (
            "others use it or the CPUs, or it slows down after much has been read"
            if slower
            else "others used it or the CPUs, or it caches what the run read"
        )
        before, after = map(units.byte_rate, (use.before_bytes_per_s, use.after_bytes_per_s))
        yield Sentence(
            f"The storage delivered {before} before the run and {after} after it, which differ by "
            f"more than its repeats: {why}.",
            "caution",
        )


FINDING: Final = Finding(name="storage_limit", order=150, figures=limit_of, section=limit_section)
"""The use of storage, as the entry point names it."""
