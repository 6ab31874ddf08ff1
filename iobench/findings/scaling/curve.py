"""A job's samples per second and exposed share against its ranks, and where storage saturates."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from iobench.findings.scaling.figures import Saturation, ScalingCurve, ScalingPoint, Spread
from iobench.findings.scaling.job_simulation import simulate_job
from iobench.findings.scaling.target import SharedStorage, time_ns
from iobench.findings.scaling.verdict import FARTHEST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.findings.scaling.demand import RankDemand
    from iobench.findings.scaling.job_simulation import SimulatedJob

BOUND_FACTOR: Final = 8
"""Beyond so many times the ranks that were measured a figure is a bound."""
MOST_RANKS: Final = 16_384
RANKS: Final = np.arange(1, FARTHEST + 1)


class _Job(msgspec.Struct, frozen=True):
    """What all simulations of a curve share."""

    demand: RankDemand
    storage: SharedStorage
    n_seeds: int

    def simulated(self, ranks: int) -> list[SimulatedJob]:
        return [
            simulate_job(self.demand, self.storage, ranks=ranks, seed=seed)
            for seed in range(self.n_seeds)
        ]

    def point(self, ranks: int, jobs: list[SimulatedJob], alone_ns: float) -> ScalingPoint:
        step_ns = statistics.median(job.step_ns for job in jobs)
        per_s = 1e9 / step_ns if step_ns else 0.0
        n_samples = ranks * self.demand.batch_size
        # Of what a step asked for, some was read before the steps that count.
        used = min(1.0, statistics.mean(job.served_ns for job in jobs) * per_s / 1e9)
        return ScalingPoint(
            ranks=ranks,
            samples_per_s=_spread(
                [n_samples * 1e9 / job.step_ns if job.step_ns else 0.0 for job in jobs]
            ),
            efficiency=alone_ns * per_s / 1e9,
            exposed_fraction=_spread([job.exposed_fraction for job in jobs]),
            storage_fraction=used if self.storage.is_bounded else None,
            bytes_per_s=statistics.mean(job.nbytes for job in jobs) * per_s,
            reads_per_s=statistics.mean(job.reads for job in jobs) * per_s,
            step_ns=round(step_ns),
            free_step_ns=round(statistics.median(job.free_step_ns for job in jobs)),
            is_bound=ranks > BOUND_FACTOR * self.demand.n_ranks,
        )

    def saturation(self, points: Sequence[ScalingPoint]) -> Saturation | None:
        """Return from how many ranks on they would read more than storage gives.

        R ranks that ask for b bytes in each step of c seconds reach a bandwidth B at R = B c / b.
        The step is that of so many ranks with a storage without bounds: the slowest of more ranks
        is slower. Between simulated points it grows with the logarithm of the ranks.
        """
        if not self.storage.is_bounded:
            return None
        free_ns = np.interp(
            np.log(RANKS),
            np.log([point.ranks for point in points]),
            [point.free_step_ns for point in points],
        )
        bytes_ns = time_ns(self.demand.nbytes.mean(), self.storage.bytes_per_s)
        reads_ns = time_ns(self.demand.reads.mean(), self.storage.reads_per_s)
        asked_ns = max(bytes_ns, reads_ns) * RANKS
        beyond = (asked_ns > 0) & (asked_ns >= free_ns * (1 - 1e-12))
        by = "bandwidth" if bytes_ns >= reads_ns else "reads"
        return Saturation(int(RANKS[beyond.argmax()]) if beyond.any() else None, by)

    def error_fraction(self, measured_step_ns: float | None) -> float | None:
        """Return how far the measured job is missed; its reads took what they took."""
        if not measured_step_ns:
            return None
        job = _Job(self.demand, SharedStorage(), self.n_seeds)
        steps = [one.step_ns for one in job.simulated(self.demand.n_ranks)]
        return statistics.median(steps) / measured_step_ns - 1


def simulate_ranks(
    demand: RankDemand,
    storage: SharedStorage,
    ranks: Sequence[int],
    *,
    measured_step_ns: float | None = None,
    n_seeds: int = 3,
    progress: Callable[[int, int], object] | None = None,
) -> ScalingCurve:
    """Return what a run would do on more ranks that read from one storage.

    Training is synchronous: a step ends with its slowest rank. Every rank makes batches of the
    measured size with the measured loader.

    Parameters
    ----------
    ranks : sequence of int
        From 1 to `MOST_RANKS`.
    measured_step_ns : float, optional
        Of the run, to tell what the model misses.
    progress : callable, optional
        Of (points done, points in all).

    Raises
    ------
    ValueError
        If a number of ranks is none of these.
    """
    points = sorted(set(ranks))
    if not points or points[0] < 1 or points[-1] > MOST_RANKS or n_seeds < 1:
        raise ValueError(f"expected ranks from 1 to {MOST_RANKS}, and a seed")
    job = _Job(demand, storage, n_seeds)
    first = sorted({1, *points})
    found: list[ScalingPoint] = []
    alone_ns = 0.0
    for each in first:
        jobs = job.simulated(each)
        if each == 1:
            alone_ns = statistics.median(one.step_ns for one in jobs)
        found.append(job.point(each, jobs, alone_ns))
        if progress is not None:
            progress(len(found), len(first))
    return ScalingCurve(
        first_epoch=tuple(found[len(first) - len(points) :]),
        saturation=job.saturation(found),
        model_error_fraction=job.error_fraction(measured_step_ns),
        n_seeds=n_seeds,
    )


def _spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))
