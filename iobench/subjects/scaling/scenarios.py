"""Scenarios beside more ranks: the limit that a probe found, and data staged on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.break_even import BreakEven
from iobench.errors import OptionError
from iobench.storage.limit_figures import DEVICE, SERVER, STORAGE, read_limits
from iobench.subjects.scaling.curve import simulate_ranks
from iobench.subjects.scaling.figures import StagedPoint, StagedScenario
from iobench.subjects.scaling.target import Hosts, MeasuredLimit, SharedStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.subjects.scaling.demand import RankDemand
    from iobench.subjects.scaling.figures import ScalingCurve
    from iobench.subjects.scaling.measured_job import MeasuredJob


def measured_limit(job: MeasuredJob) -> MeasuredLimit:
    """Return the limit of a run's storage, as its ``run.json`` has it.

    Raises
    ------
    OptionError
        If it has none of reads that storage served.
    """
    every = read_limits(job.storage_limits)
    for limits in every:
        found = [
            each
            for each in limits.reads
            if each.served_by in (DEVICE, SERVER, STORAGE) and each.bytes_per_s
        ]
        if found:
            best = max(found, key=lambda each: each.bytes_per_s or 0.0)
            return MeasuredLimit(
                bytes_per_s=best.bytes_per_s or 0.0,
                reads_per_s=best.reads_per_s or 0.0,
                readers=max(each.threads for each in found),
                request_nbytes=limits.request_nbytes,
                mount=limits.mount,
                wall_ns=limits.wall_ns,
            )
    why = "of reads that storage served" if every else "of its storage"
    raise OptionError(
        f"--storage-bandwidth measured: {job.name} has no limits {why}; measure again with "
        "--limits 10, or say a rate"
    )


def staged_scenario(
    job: MeasuredJob,
    curve: ScalingCurve,
    storage: SharedStorage,
    hosts: Hosts,
    *,
    near_bytes_per_s: float,
    read_latency_ns: int = 0,
    allreduce_ns: int = 0,
) -> StagedScenario:
    """Return what staging would do at each point of a curve, by the same simulation.

    Raises
    ------
    OptionError
        If nobody knows how many bytes an epoch has.
    """
    if not hosts.dataset_nbytes:
        raise OptionError(
            f"{job.name}: does not record how many bytes an epoch has; give --dataset-size"
        )
    shared = curve.later_epochs or curve.first_epoch
    near = SharedStorage(
        host_bytes_per_s=near_bytes_per_s, read_latency_ns=read_latency_ns, is_near=True
    )
    places = Hosts(
        n_hosts=hosts.n_hosts,
        ranks_per_host=hosts.ranks_per_host or 1 if hosts.n_hosts is None else None,
    )
    staged = simulate_ranks(
        job.demand, near, [each.ranks for each in shared], hosts=places, allreduce_ns=allreduce_ns
    ).first_epoch
    n_samples = hosts.dataset_nbytes / job.demand.sample_nbytes
    sizes, points = [], []
    for before, after in zip(shared, staged, strict=True):
        nbytes = hosts.dataset_nbytes / (before.hosts if hosts.own_shards else 1)
        most = int(hosts.most_on_one(np.array([before.ranks]))[0])
        rates = (*_rates(job.demand, storage, before.hosts, most), near_bytes_per_s)
        staging_s = nbytes / min(rates)
        epoch_s, shared_s = (n_samples / each.samples_per_s.median for each in (after, before))
        sizes.append(nbytes)
        points.append(
            StagedPoint(
                ranks=before.ranks,
                hosts=before.hosts,
                staging_s=staging_s,
                epoch_s=epoch_s,
                shared_epoch_s=shared_s,
                break_even=BreakEven.of(staging_s, shared_s, shared_s - epoch_s),
            )
        )
    return StagedScenario(
        near_bytes_per_s=near_bytes_per_s,
        read_latency_ns=read_latency_ns,
        copy_nbytes=tuple(sizes),
        is_part=hosts.own_shards,
        points=tuple(points),
    )


def _rates(demand: RankDemand, storage: SharedStorage, hosts: int, most: int) -> Iterator[float]:
    """Yield what bounds how many bytes a second one of so many nodes can copy."""
    if storage.bytes_per_s is not None:
        yield storage.bytes_per_s / hosts
    if storage.reads_per_s is not None:
        yield storage.reads_per_s / hosts * float(demand.nbytes.sum() / demand.reads.sum())
    if storage.host_bytes_per_s is not None:
        yield storage.host_bytes_per_s
    read_ns = float(demand.read_ns.sum())
    if read_ns:  # its loading processes, as they read alone
        yield float(demand.nbytes.sum()) / read_ns * 1e9 * demand.workers * most
