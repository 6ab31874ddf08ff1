"""What of each single span `exposure` counts: in whole nanoseconds, so that sums are the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.windows import measure_rank
from iobench.errors import ProfileError
from iobench.recording.kinds import HANDOVER_KINDS, WAITING_KINDS, WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.analysis.windows import MeasuredRank
    from iobench.profiles.contents import Profile

__all__ = ["SpanSums", "measure_ranks", "sums_of_spans"]

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
        Exposed share of the own time, as `exposed_share_of_spans`; also of samples' spans whose
        time a summed span counts.
    """

    self_ns: Integers
    busy_ns: Integers
    exposed_ns: Integers
    share: NDArray[np.float64]


def measure_ranks(profile: Profile) -> dict[int, MeasuredRank]:
    """Return what was measured of each training process of a profile that can be analysed."""
    found = {}
    for rank in profile.ranks_read:
        measured = _measured(profile, rank)
        if measured is not None:
            found[rank] = measured
    return found


def sums_of_spans(profile: Profile, measured: Mapping[int, MeasuredRank] | None = None) -> SpanSums:
    """Return what of each span is counted where.

    Parameters
    ----------
    profile : Profile
        Of any number of training processes; of one that cannot be analysed nothing is known.
    measured : mapping of int to MeasuredRank, optional
        From `measure_ranks` of this profile, where that was done before. Otherwise each is
        analysed here, and forgotten.

    Returns
    -------
    SpanSums
        Of the spans of one training process, the sum of ``busy_ns`` and of ``exposed_ns`` over a
        stage of work is that stage's of ``exposure(profile, rank=rank).whole``, and the sum of
        ``exposed_ns`` over its waits is ``wait_ns``. What no span covers, as hand-over and gaps of
        workers, is the difference between the two.
    """
    n_spans = len(profile.spans)
    unknown = [np.full(n_spans, -1, dtype=np.int64) for _ in range(3)]
    found = SpanSums(unknown[0], unknown[1], unknown[2], np.full(n_spans, np.nan))
    for rank in profile.ranks_read:
        of_rank = _measured(profile, rank) if measured is None else measured.get(rank)
        if of_rank is not None:
            mine = np.array([each.rank == rank for each in profile.processes], dtype=bool)
            _fill(found, np.flatnonzero(mine[profile.spans["process"]]), of_rank)
    return found


def _measured(profile: Profile, rank: int) -> MeasuredRank | None:
    """Return what was measured of a training process; None where its waits overlap."""
    try:
        return measure_rank(profile, rank=rank)
    except ProfileError:
        return None


def _fill(found: SpanSums, rows: Integers, measured: MeasuredRank) -> None:
    """Put in what is known of the spans of one training process, which are at ``rows``."""
    ledger, work = measured.attribution.ledger, measured.attribution.work()
    waiting = measured.attribution.stages.waiting[work.stage]
    of_work = rows[work.row[~waiting]]
    counted = ~waiting & (work.delivery >= 0)
    of_counted = rows[work.row[counted]]
    exposed = _parts(
        work.delivery[counted] * len(measured.attribution.stages) + work.stage[counted],
        work.length_ns[counted],
        ledger.exposed_ns[work.delivery[counted], work.stage[counted]],
    )
    spans, deliveries = measured.profile.spans, measured.deliveries
    in_loop = spans["process"] == deliveries.process
    in_loop &= (spans["thread"] == deliveries.thread) & ((spans["flags"] & NOT_SUMMED) == 0)
    # Of the loop's own spans, those that took no time are not among the parts.
    loading = rows[in_loop & is_one_of(spans["kind"], LOADING)]
    for values in (found.self_ns, found.busy_ns, found.exposed_ns):
        values[of_work] = 0
        values[loading] = 0
    np.add.at(found.self_ns, of_work, work.length_ns[~waiting])
    np.add.at(found.busy_ns, of_counted, work.length_ns[counted])
    np.add.at(found.exposed_ns, of_counted, exposed)
    found.share[rows] = measured.share()
    at = np.flatnonzero(in_loop & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0))
    found.exposed_ns[rows[at]] = (spans["end_ns"] - spans["start_ns"])[at]


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
