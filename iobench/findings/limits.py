"""How much of what its storage can deliver a run used, by the run's own probe."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.findings.contract import Finding
from iobench.report import units
from iobench.report.document import Section, Sentence
from iobench.storage.probe_figures import read_limits

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

COLD, WARM = 0.9, 0.1
"""A run is compared with the device where at least so much of what it read was cold; its files are
cold or warm where the page cache held less, or more, of them before."""
ONE_PASS: Final = 1.1
"""A run that reads no more than this of its files reads nothing twice that was cold before it."""


class LimitUse(msgspec.Struct, frozen=True):
    """How much of what storage can deliver a run used; ``reason`` says why there is no limit.

    ``storage_bytes_per_s`` is what the probe reached past the page cache, ``limit_bytes_per_s`` the
    same where the run read so, too.
    """

    used_bytes_per_s: float | None = None
    limit_bytes_per_s: float | None = None
    storage_bytes_per_s: float | None = None
    used_fraction: float | None = None
    reason: str | None = None


def limit_of(run: RankRun) -> LimitUse | None:
    """Return how a run compares with what its storage delivered; None where it was not probed."""
    facts, window = run.about, run.exposure.whole
    probes = read_limits(facts.storage_limits)[:1]
    if not probes or facts.storage_probed not in ("before", "after"):
        return None if facts.no_storage_probe is None else LimitUse(reason=facts.no_storage_probe)
    probes += read_limits([facts.storage_after])
    readers = max(1, run.exposure.workers or facts.threads)
    known = [*filter(None, (each.rate(readers) for each in probes))]
    storage = fmean(known) if known else None
    if not window.read_nbytes or not window.wall_ns:
        why = "the bytes that the run read were not counted"
        return LimitUse(storage_bytes_per_s=storage, reason=why)
    used = window.read_nbytes / window.wall_ns * 1e9
    cold = _cold_by_residency(run) if window.cold_fraction is None else window.cold_fraction
    if cold is None or cold < COLD or not storage:
        why = "how much of it came from storage is unknown"
        if cold is not None:
            why = "the page cache served it, and the probe reads past that"
        if not storage:
            why = "the probe had no reads of the storage itself"
        return LimitUse(used, storage_bytes_per_s=storage, reason=why)
    return LimitUse(used, storage, storage, used / storage)


def _cold_by_residency(run: RankRun) -> float | None:
    """Return 1 or 0 where the page cache held nothing, or all, before a run that counted none."""
    facts, window = run.about, run.exposure.whole
    held = facts.cache.resident_fraction_before
    if held is None or not window.read_nbytes:
        return None
    if held >= COLD:
        return 0.0
    once = window.read_nbytes <= ONE_PASS * (facts.files_nbytes or 0)
    return 1.0 if held <= WARM and (once or facts.cache.state == "cold") else None


def limit_section(use: LimitUse) -> Section:
    """Return what was used of what storage can deliver."""
    return Section("storage_limit", "What the storage can deliver", (_sentence(use),))


def _sentence(use: LimitUse) -> Sentence:
    if use.used_bytes_per_s is None and use.storage_bytes_per_s is None:
        return Sentence(f"The storage was not probed: {use.reason}.")
    if use.used_fraction is None:
        rate = units.byte_rate(use.storage_bytes_per_s)
        return Sentence(
            f"Bypassing the page cache, storage delivered {rate} to a reader of the same pattern. "
            f"The run's share of that is unknown: {use.reason}."
        )
    reached = (
        f"Read {units.byte_rate(use.used_bytes_per_s)}; a reader of the same pattern, bypassing "
        f"the page cache, got {units.byte_rate(use.limit_bytes_per_s)}"
    )
    if use.used_fraction > 1:
        more = ", less than the run: the run reads in another size or order than the probe."
        return Sentence(f"{reached}{more}", "caution")
    return Sentence(f"{reached}: the run used {units.fraction(use.used_fraction)} of it.")


FINDING: Final = Finding("storage_limit", 150, LimitUse, limit_of, limit_section)
