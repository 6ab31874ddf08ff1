"""What of each single span `exposure` counts: in whole nanoseconds, so that sums are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.recording.kinds import HANDOVER_KINDS, WAITING_KINDS, WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.attribution import Attribution
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.ledger import ChargedWork, Ledger
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
NOT_SUMMED: Final = Flag.DETAIL | Flag.IO
LOADING: Final = (WORKER_KINDS | HANDOVER_KINDS) - WAITING_KINDS


class SpanSums(msgspec.Struct, frozen=True):
    """By row of ``RunData.spans``; -1, or NaN, where a span has none or it is not known."""

    self_ns: Integers  # a loading span's own time: what lies in no span inside it
    busy_ns: Integers  # of that, what was of batches that were delivered, or on their paths
    exposed_ns: Integers  # of that, what the training loop waited for; of its waits, all
    share: NDArray[np.float64]  # exposed share of the own time, also where a summed span counts it


def unknown_sums(n_spans: int) -> SpanSums:
    """Return the sums of spans of which nothing is known."""
    unknown = [np.full(n_spans, -1, dtype=np.int64) for _ in range(3)]
    return SpanSums(unknown[0], unknown[1], unknown[2], np.full(n_spans, np.nan))


def sums_of_spans(profile: RunData, deliveries: Deliveries, attribution: Attribution) -> SpanSums:
    """Return what of each span of one training process is counted where."""
    spans, ledger, work = profile.spans, attribution.ledger, attribution.work()
    result = replace(unknown_sums(len(spans)), share=_shares(spans, ledger, work))
    loads = ~ledger.stages.waiting[work.stage]
    of_work, counted = work.row[loads], loads & (work.delivery >= 0)
    of_counted = work.row[counted]
    exposed = _parts(
        work.delivery[counted] * len(ledger.stages) + work.stage[counted],
        work.length_ns[counted],
        ledger.exposed_ns[work.delivery[counted], work.stage[counted]],
    )
    in_loop = spans["process"] == deliveries.process
    in_loop &= (spans["thread"] == deliveries.thread) & ((spans["flags"] & NOT_SUMMED) == 0)
    # Of the loop's own spans, those that took no time are not among the parts.
    loading = np.flatnonzero(in_loop & is_one_of(spans["kind"], LOADING))
    for values in (result.self_ns, result.busy_ns, result.exposed_ns):
        values[of_work] = 0
        values[loading] = 0
    np.add.at(result.self_ns, of_work, work.length_ns[loads])
    np.add.at(result.busy_ns, of_counted, work.length_ns[counted])
    np.add.at(result.exposed_ns, of_counted, exposed)
    at = np.flatnonzero(in_loop & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0))
    result.exposed_ns[at] = (spans["end_ns"] - spans["start_ns"])[at]
    return result


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
    result: Integers = exact.astype(np.int64)
    return result


def _shares(spans: NDArray[Any], ledger: Ledger, work: ChargedWork) -> NDArray[np.float64]:
    """Return the exposed share of each span, NaN where it is not known."""
    busy_ns = ledger.busy_ns[work.delivery, work.stage]
    exposed_ns = ledger.exposed_ns[work.delivery, work.stage]
    waited_for = np.where(
        work.delivery >= 0, work.length_ns * exposed_ns / np.maximum(busy_ns, 1), 0
    )
    loads, n_spans = ~ledger.stages.waiting[work.stage], len(spans)
    own_ns: NDArray[Any] = np.bincount(work.row[loads], work.length_ns[loads], n_spans)
    waited_for_ns: NDArray[Any] = np.bincount(work.row[loads], waited_for[loads], n_spans)
    share = np.full(n_spans, np.nan)
    np.divide(waited_for_ns, own_ns, out=share, where=own_ns > 0)
    _share_of_samples(spans, own_ns, waited_for_ns, share)
    return share


def _share_of_samples(
    spans: NDArray[Any],
    own_ns: NDArray[Any],
    waited_for_ns: NDArray[Any],
    share: NDArray[np.float64],
) -> None:
    """Give samples' spans the share of the summed ones of their batch, thread and stage."""
    flags = spans["flags"]
    details = np.flatnonzero((flags & (Flag.DETAIL | Flag.DEVICE)) == Flag.DETAIL)
    sums = np.flatnonzero(((flags & Flag.SUMMED) != 0) & (own_ns > 0))
    if not len(details) or not len(sums):
        return
    names = ["process", "thread", "batch", "kind", "label"]
    keys = spans[names][np.concatenate((sums, details))]
    distinct, number = np.unique(keys, return_inverse=True)
    number = number.reshape(-1)
    of_sum, of_detail = number[: len(sums)], number[len(sums) :]
    own = np.bincount(of_sum, own_ns[sums], len(distinct))
    waited_for = np.bincount(of_sum, waited_for_ns[sums], len(distinct))
    result = own[of_detail] > 0
    share[details[result]] = waited_for[of_detail[result]] / own[of_detail[result]]
