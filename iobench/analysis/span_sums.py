"""What of each single span `exposure` counts: in whole nanoseconds, so that sums are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.recording.kinds import HANDOVER_KINDS, WAITING_KINDS, WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.attribution import Attribution
    from iobench.analysis.deliveries import Deliveries
    from iobench.profiles.contents import Profile

__all__ = ["SpanSums", "sums_of_spans", "unknown_sums"]

Integers = NDArray[np.int64]
NOT_SUMMED: Final = Flag.DETAIL | Flag.IO
LOADING: Final = (WORKER_KINDS | HANDOVER_KINDS) - WAITING_KINDS


@dataclass(frozen=True, slots=True)
class SpanSums:
    """By row of ``Profile.spans``; -1, or NaN, where a span has none or it is not known.

    Parameters
    ----------
    self_ns : ndarray of int64
        A loading span's own time: what lies in no span inside it.
    busy_ns : ndarray of int64
        The part of it that counts as busy: of batches that were delivered, or on their paths.
    exposed_ns : ndarray of int64
        The part of that the training loop waited for. Of a wait of the training loop, all of it;
        waits of other threads are in no figure, and unknown.
    share : ndarray of float64
        Exposed share of the own time, as `share_of_spans`; also of samples' spans whose
        time a summed span counts.
    """

    self_ns: Integers
    busy_ns: Integers
    exposed_ns: Integers
    share: NDArray[np.float64]


def unknown_sums(n_spans: int) -> SpanSums:
    """Return the sums of spans of which nothing is known."""
    unknown = [np.full(n_spans, -1, dtype=np.int64) for _ in range(3)]
    return SpanSums(unknown[0], unknown[1], unknown[2], np.full(n_spans, np.nan))


def sums_of_spans(
    profile: Profile,
    deliveries: Deliveries,
    attribution: Attribution,
    share: NDArray[np.float64],
) -> SpanSums:
    """Return what of each span of one training process is counted where.

    The sum of ``busy_ns`` and of ``exposed_ns`` over a stage of work is that stage's of its
    `Exposure.whole`, and the sum of ``exposed_ns`` over its waits is ``wait_ns``. What no span
    covers, as hand-over and gaps of workers, is the difference between the two.

    Parameters
    ----------
    profile : Profile
        Of this training process alone.
    deliveries : Deliveries
    attribution : Attribution
    share : ndarray of float64, shape (n_spans,)
        Of `share_of_spans`.
    """
    found = replace(unknown_sums(len(profile.spans)), share=share)
    ledger, work = attribution.ledger, attribution.work()
    waiting = attribution.stages.waiting[work.stage]
    of_work = work.row[~waiting]
    counted = ~waiting & (work.delivery >= 0)
    of_counted = work.row[counted]
    exposed = _parts(
        work.delivery[counted] * len(attribution.stages) + work.stage[counted],
        work.length_ns[counted],
        ledger.exposed_ns[work.delivery[counted], work.stage[counted]],
    )
    spans = profile.spans
    in_loop = spans["process"] == deliveries.process
    in_loop &= (spans["thread"] == deliveries.thread) & ((spans["flags"] & NOT_SUMMED) == 0)
    # Of the loop's own spans, those that took no time are not among the parts.
    loading = np.flatnonzero(in_loop & is_one_of(spans["kind"], LOADING))
    for values in (found.self_ns, found.busy_ns, found.exposed_ns):
        values[of_work] = 0
        values[loading] = 0
    np.add.at(found.self_ns, of_work, work.length_ns[~waiting])
    np.add.at(found.busy_ns, of_counted, work.length_ns[counted])
    np.add.at(found.exposed_ns, of_counted, exposed)
    at = np.flatnonzero(in_loop & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0))
    found.exposed_ns[at] = (spans["end_ns"] - spans["start_ns"])[at]
    return found


def _parts(group: Integers, length_ns: Integers, exposed_ns: Integers) -> Integers:
    """Split each group's exposed time over its pieces in proportion to their lengths, exactly.

    The running sums are rounded, not the parts: no part exceeds its piece, for a group's exposed
    time never exceeds its pieces' sum.
    """
    order = np.argsort(group, kind="stable")
    length, whole = length_ns[order], exposed_ns[order]
    running = np.cumsum(length)
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    number = np.cumsum(np.diff(group[order], prepend=-1) != 0) - 1
    before = (running - length)[first][number] if len(order) else running
    total = np.add.reduceat(length, first)[number] if len(order) else running
    until = _scaled(running - before, whole, total)
    since = _scaled(running - length - before, whole, total)
    parts = np.empty(len(order), dtype=np.int64)
    parts[order] = until - since
    return parts


def _scaled(amount: Integers, times: Integers, over: Integers) -> Integers:
    """Return ``amount * times // over``, exact though the product may not fit 64 bits."""
    over = np.maximum(over, 1)
    if float(amount.max(initial=0)) * float(times.max(initial=0)) < 2.0**62:
        fits: Integers = amount * times // over
        return fits
    exact = amount.astype(object) * times.astype(object) // over.astype(object)
    found: Integers = exact.astype(np.int64)
    return found
