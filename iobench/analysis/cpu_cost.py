"""What loading takes of a job's CPUs: where these are saturated, hidden loading is not free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.exposure_figures import CpuCost
from iobench.analysis.partition import leaf_pieces
from iobench.analysis.time_intervals import length_before
from iobench.recording.kinds import WORKER_KINDS, is_one_of, lane_keys
from iobench.recording.span_file import Flag, cpu_looks
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.runs.contents import RunData


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
