"""By delivery: bytes the system counted, what was estimated, and what writing spans cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.analysis.storage.read_spans import find_read_spans
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag, io_looks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.profiles.contents import Profile

__all__ = [
    "CountersByDelivery",
    "DecodesByDelivery",
    "decode_counters",
    "estimated_batches",
    "io_counters",
    "spans_written_ns",
    "undecoded_nbytes",
    "unit_costs_of",
]


@dataclass(frozen=True, slots=True)
class CountersByDelivery:
    """Bytes read by any means and from the device, -1 in ``device`` where unknown."""

    delivery: NDArray[np.int64]
    read: NDArray[np.int64]
    device: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodesByDelivery:
    """Pairs of counts, as `Flag.DECODED` says: of bytes, or of chunks."""

    delivery: NDArray[np.int64]
    of_bytes: NDArray[np.bool_]
    first: NDArray[np.int64]
    second: NDArray[np.int64]


def io_counters(spans: NDArray[Any], deliveries: Deliveries) -> CountersByDelivery:
    """Return what was read for each delivery, by the counters among the spans."""
    spans = spans[io_looks(spans)]
    return CountersByDelivery(
        delivery=_delivery_of(spans["batch"], deliveries),
        read=spans["nbytes"].astype(np.int64),
        device=spans["cpu_ns"].astype(np.int64),
    )


def decode_counters(spans: NDArray[Any], deliveries: Deliveries) -> DecodesByDelivery:
    """Return what was decoded for each delivery, by the counters among the spans."""
    spans = spans[(spans["flags"] & Flag.DECODED) != 0]
    return DecodesByDelivery(
        delivery=_delivery_of(spans["batch"], deliveries),
        of_bytes=spans["kind"] == Kind.DECODE,
        first=spans["nbytes"].astype(np.int64),
        second=spans["cpu_ns"].astype(np.int64),
    )


def _delivery_of(batches: NDArray[Any], deliveries: Deliveries) -> NDArray[np.int64]:
    """Return the delivery that brought each batch; -1 where none did."""
    order = np.argsort(deliveries.batch, kind="stable")
    place = np.searchsorted(deliveries.batch[order], batches)
    found = place < len(order)
    delivery = np.full(len(batches), -1, dtype=np.int64)
    delivery[found] = order[place[found]]
    found &= (batches >= 0) & (np.append(deliveries.batch, -1)[delivery] == batches)
    return np.where(found, delivery, -1)


def undecoded_nbytes(
    profile: Profile, mine: NDArray[np.bool_], deliveries: Deliveries
) -> NDArray[np.int64]:
    """Return what read stages handed on as it was stored, by delivery and, last, outside.

    Reads through a mapping are in it, which no counter of read calls has. A span that does not
    tell its bytes adds nothing, and so does a stage that decodes as well. ``mine`` tells which
    processes work for the loop.
    """
    reads = find_read_spans(profile)
    spans = profile.spans[reads.rows]
    chosen = mine[spans["process"]] & ~reads.decoding
    total = np.zeros(len(deliveries) + 1, dtype=np.int64)
    place = _delivery_of(spans["batch"][chosen], deliveries)
    np.add.at(total, place, np.maximum(reads.nbytes[chosen], 0))
    return total


def estimated_batches(spans: NDArray[Any], deliveries: Deliveries) -> NDArray[np.bool_]:
    """Return a mark for each delivery of a batch whose time was split as that of others."""
    batches = np.unique(spans["batch"][(spans["flags"] & Flag.ESTIMATED) != 0])
    marks: NDArray[np.bool_] = np.isin(deliveries.batch, batches[batches >= 0])
    return marks


def unit_costs_of(profile: Profile, loop: TrainingLoop) -> Mapping[str, Any] | None:
    """Return what a span costs, as the run or its training process measured it."""
    costs = profile.config.get("unit_costs")
    if not isinstance(costs, dict) and loop.process >= 0:
        told = profile.facts_of(loop.process)
        costs = told.unit_costs if told else None
    return costs if isinstance(costs, dict) else None


def spans_written_ns(
    spans: NDArray[Any], costs: Mapping[str, Any] | None, deliveries: Deliveries
) -> NDArray[np.float64] | None:
    """Return the time spent writing spans by delivery and, last, outside; None where unknown."""
    if costs is None:
        return None
    flags = spans["flags"]
    is_io = io_looks(spans)
    summed = (flags & (Flag.SUMMED | Flag.ESTIMATED)) == Flag.SUMMED  # each sample was timed
    full = ((flags & Flag.IO) == 0) & (spans["cpu_ns"] >= 0)
    number = np.where(summed, spans["pieces"], 1)
    cost = np.zeros(len(spans))
    for kinds, name in ((is_io, "io_ns"), (full, "full_ns"), (~is_io & ~full, "light_ns")):
        if not kinds.any():
            continue
        if costs.get(name) is None:
            return None
        cost[kinds] = number[kinds] * float(costs[name])
    total = np.zeros(len(deliveries) + 1)
    np.add.at(total, deliveries.at(spans["start_ns"]), cost)
    return total
