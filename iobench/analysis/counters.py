"""What was counted: bytes by delivery, what was estimated, what spans and loading cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.exposure_figures import CpuCost
from iobench.analysis.partition import leaf_pieces
from iobench.analysis.read_spans import find_read_spans
from iobench.analysis.time_intervals import length_before
from iobench.recording.kinds import WHOLE, WORKER_KINDS, Kind, is_one_of, lane_keys
from iobench.recording.span_file import Flag, cpu_looks, io_looks
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.runs.contents import RunData

COUNTED: Final = (
    "n_looks", "read_nbytes", "read_unknown", "device_nbytes", "device_unknown", "undecoded_nbytes",
    "n_decodes", "decoded_nbytes", "used_nbytes",
)  # fmt: skip


class Counters(msgspec.Struct, frozen=True):
    """What was counted for each delivery, in a table; integers, exact.

    ``table`` has a column for each of `COUNTED` and a last row of no delivery. Looks at the
    system's counters, the bytes these say were read and came from the device, and how many do not
    say; what read stages handed on as it was stored, mappings too, which no counter of read calls
    has; counts of chunks decoded, as `Flag.DECODED` has them.
    """

    table: NDArray[Any]
    estimated: NDArray[np.bool_]  # by delivery: whether its time was split as that of others
    written_ns: NDArray[np.float64] | None  # writing its spans; None where the cost is unknown
    n_lanes: int  # threads that wrote them; a device's are written by one that has others

    def sums(self, chosen: NDArray[np.bool_]) -> dict[str, int]:
        """Return the sum of each column over marked deliveries."""
        rows = self.table[:-1][chosen]
        return {name: int(rows[name].sum()) for name in COUNTED}


def counters_of(profile: RunData, loop: TrainingLoop, deliveries: Deliveries) -> Counters:
    """Return what was counted for each delivery of a training process."""
    spans = loop.spans_of(profile)
    table = np.zeros(len(deliveries) + 1, dtype=[(name, np.int64) for name in COUNTED])
    place, read, device = io_counters(spans, deliveries)
    np.add.at(table["n_looks"], place, 1)
    for name, values in (("read", read), ("device", device)):
        np.add.at(table[f"{name}_nbytes"], place, values)
        np.add.at(table[f"{name}_unknown"], place, values < 0)
    table["undecoded_nbytes"] = _undecoded_nbytes(profile, loop, deliveries)
    looks = spans[(spans["flags"] & Flag.DECODED) != 0]
    looks = looks[looks["kind"] == Kind.DECODE]  # of bytes; the others count chunks
    place = deliveries.of_batch(looks["batch"])
    np.add.at(table["n_decodes"], place, 1)
    np.add.at(table["decoded_nbytes"], place, looks["nbytes"])
    np.add.at(table["used_nbytes"], place, looks["cpu_ns"])
    is_whole = (spans["kind"] == Kind.FUSED) & (spans["label"] == profile.string_number(WHOLE))
    estimated = np.unique(spans["batch"][((spans["flags"] & Flag.ESTIMATED) != 0) & ~is_whole])
    return Counters(
        table,
        np.isin(deliveries.batch, estimated[estimated >= 0]),
        _written_ns(spans, _unit_costs(profile, loop), deliveries),
        len(np.unique(lane_keys(spans[(spans["flags"] & Flag.DEVICE) == 0]))),
    )


def io_counters(
    spans: NDArray[Any], deliveries: Deliveries
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the looks at the system's counters among spans: a row for each.

    The delivery that it was made for, -1 for none; bytes read by any means, and from the device, -1
    where unknown.
    """
    spans = spans[io_looks(spans)]
    delivery = deliveries.of_batch(spans["batch"])
    return delivery, spans["nbytes"].astype(np.int64), spans["cpu_ns"].astype(np.int64)


def _undecoded_nbytes(
    profile: RunData, loop: TrainingLoop, deliveries: Deliveries
) -> NDArray[np.int64]:
    """Return what read stages handed on as it was stored, by delivery and, last, outside."""
    reads = find_read_spans(profile)
    spans = profile.spans[reads.rows]
    chosen = loop.mine[spans["process"]] & ~reads.decoding
    total = np.zeros(len(deliveries) + 1, dtype=np.int64)
    place = deliveries.of_batch(spans["batch"][chosen])
    np.add.at(total, place, np.maximum(reads.nbytes[chosen], 0))
    return total


def _unit_costs(profile: RunData, loop: TrainingLoop) -> Mapping[str, Any] | None:
    """Return what a span costs, as the run or its training process measured it."""
    costs = profile.run_facts.unit_costs
    if costs is None and loop.process >= 0:
        known = profile.facts_of(loop.process)
        costs = known.unit_costs if known else None
    return costs


def _written_ns(
    spans: NDArray[Any], costs: Mapping[str, Any] | None, deliveries: Deliveries
) -> NDArray[np.float64] | None:
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
    return total[:-1]


def cpu_cost_of(
    run: RunData, loop: TrainingLoop, deliveries: Deliveries, chosen: NDArray[np.bool_]
) -> CpuCost | None:
    """Return what loading takes of CPUs in some deliveries; None where it is not known."""
    process = run.processes[loop.process] if loop.process >= 0 else None
    samples = of_process(run.machines, process)
    if process is None or samples is None or len(samples.time_ns) < 2 or not chosen.any():
        return None
    low_ns, high_ns = deliveries.from_ns[chosen].min(), deliveries.until_ns[chosen].max()
    looks = run.spans[cpu_looks(run.spans) & loop.mine[run.spans["process"]]]
    looks = looks[(looks["end_ns"] > low_ns) & (looks["end_ns"] <= high_ns)]
    # Each thread that looks counts all of its process.
    of_loop, thread = (
        looks["process"] == loop.process,
        np.unique(looks["thread"], return_inverse=True)[1],
    )
    loop_ns = int(np.bincount(thread, looks["nbytes"] * of_loop).max(initial=0))
    loading_ns = int(looks["nbytes"][~of_loop].sum())
    total_ns, spans = loading_ns + loop_ns, run.spans
    spans = spans[(spans["process"] == loop.process) & (spans["thread"] != loop.thread)]
    spans = spans[(spans["end_ns"] > low_ns) & (spans["end_ns"] <= high_ns)]
    spans = spans[
        ((spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0) & is_one_of(spans["kind"], WORKER_KINDS)
    ]
    loading_ns += int(np.maximum(leaf_pieces(spans, lane_keys(spans)).cpu_ns, 0).sum())
    edges = np.clip(samples.time_ns, low_ns, high_ns)
    wall_ns = np.diff(length_before(deliveries.from_ns, deliveries.until_ns, edges))
    waits = deliveries.requested_ns, deliveries.delivered_ns
    other_ns = wall_ns - np.diff(length_before(*waits, edges))
    ranks = sum(each.role == "consumer" and each.host == process.host for each in run.facts)
    numbers = {"cpus": len(samples.head.cpus), "quota": samples.head.quota_cpus or 0}
    costs = []
    for name, shares in samples.cpu_limits().items():
        weights, shares = np.where(np.isnan(shares), 0, other_ns), np.nan_to_num(shares)
        if loop_ns and weights.sum() > 0:
            all_ns = max(numbers[name] * float(shares @ np.diff(edges)), 1.0)
            others = max(0.0, 1 - total_ns * max(ranks, 1) / all_ns)
            busy = float(np.average(shares, weights=weights))
            costs.append(CpuCost(loading_ns, total_ns, busy, others))
    return max(costs, key=lambda each: each.busy_fraction, default=None)
