"""A job of several training processes, ready to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.analysis.ranks import compare_ranks, missing_ranks
from iobench.report.units import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.rank_figures import JobExposure, RankExposure
    from iobench.report.run_report import RunReport

__all__ = ["job_to_json", "make_job"]


def make_job(reports: Sequence[RunReport]) -> JobExposure | None:
    """Return what a job waited for, from the reports of its ranks; None for a single process."""
    steps = [report.steps for report in reports if report.steps is not None]
    if not steps or len({report.run for report in reports}) > 1:
        return None
    first = reports[0]
    unclosed = {
        report.exposure.rank: report.steps.host
        for report in reports
        if report.steps is not None and any(name.startswith("consumer") for name in report.unclosed)
    }
    world_size, missing = missing_ranks(
        first.job, [each.rank for each in steps], config=first.config, unclosed=unclosed
    )
    if world_size < 2:
        return None
    return compare_ranks(steps, world_size=world_size, missing=missing)


def job_to_json(job: JobExposure | None) -> dict[str, Any] | None:
    """Return a job as plain values; see `to_json`."""
    if job is None:
        return None
    return {
        "world_size": job.world_size,
        "steps": job.n_steps,
        "single_rank_steps": job.n_single_steps,
        "wall_s": seconds(job.wall_ns),
        "wait_s": seconds(job.wait_ns),
        "wait_fraction": job.wait_ns / job.wall_ns if job.wall_ns else None,
        "exposed_s": seconds(job.exposed_ns),
        "exposed_fraction": job.exposed_ns / job.wall_ns if job.wall_ns else None,
        "imbalance": job.imbalance,
        "hosts": list(job.hosts),
        "clock_uncertainty_s": _seconds(job.clock_uncertainty_ns),
        "uncertain_steps": job.n_uncertain_steps,
        "ranks": [_rank(each) for each in job.ranks],
        "missing_ranks": [
            {"rank": each.rank, "host": each.host, "what": each.what} for each in job.missing
        ],
        "bin_s": seconds(job.bin_ns),
        "wait_matrix_s": [[seconds(value) for value in row] for row in job.matrix_ns],
    }


def _rank(each: RankExposure) -> dict[str, Any]:
    return {
        "rank": each.rank,
        "host": each.host or None,
        "batches": each.n_batches,
        "wall_s": seconds(each.wall_ns),
        "wait_s": seconds(each.wait_ns),
        "wait_fraction": each.wait_ns / each.wall_ns if each.wall_ns else None,
        "steps_last": each.n_last,
        "exposed_s": seconds(each.exposed_ns),
        "comm_s": _seconds(each.comm_ns),
        "peer_input_wait_s": _seconds(each.peer_input_wait_ns),
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else seconds(ns)
