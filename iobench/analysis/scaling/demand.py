"""What one rank asks of its storage and of itself, batch by batch, as it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.errors import ProfileError
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.analysis.replay.loader_run import RecordedRun

__all__ = ["RankDemand", "rank_demand"]

FEWEST_BATCHES: Final = 2
FEWEST_STEADY: Final = 8
"""Fewer batches in steady state say less than all batches do."""
READING: Final = frozenset(kind.spelled for kind in READING_KINDS)
FUSED: Final = frozenset(kind.spelled for kind in MIXED_KINDS)


@dataclass(frozen=True, slots=True)
class RankDemand:
    """The batches of a run, or of all ranks of a job, in the order of delivery; times in ns.

    Parameters
    ----------
    rule : LoaderRule
    workers : int
        Processes or threads that make batches; 1 where the loop makes them.
    ahead : int
        Batches under way at most.
    batch_size : int
    n_ranks : int
        Of the job that was measured.
    starts : tuple of int
        Where each rank's batches begin in the arrays; then their length.
    read_ns : ndarray of float64, shape (n_batches,)
        Storage alone, as measured.
    rest_ns : ndarray of float64, shape (n_batches,)
        What the maker of the batch does besides.
    nbytes, reads : ndarray of float64, shape (n_batches,)
    submit_ns, transit_ns, pickup_ns, compute_ns : ndarray of float64, shape (n_batches,)
        As in `RecordedRun`; what others did after the maker was done is in ``transit_ns``.
    reading_known : bool
        Whether reading was a stage of its own; else it is all that its stage does off the CPU.
    in_order : bool
        Whether the loader kept to the order of batches; a simulation always does.
    """

    rule: LoaderRule
    workers: int
    ahead: int
    batch_size: int
    n_ranks: int
    starts: tuple[int, ...]
    read_ns: NDArray[np.float64]
    rest_ns: NDArray[np.float64]
    nbytes: NDArray[np.float64]
    reads: NDArray[np.float64]
    submit_ns: NDArray[np.float64]
    transit_ns: NDArray[np.float64]
    pickup_ns: NDArray[np.float64]
    compute_ns: NDArray[np.float64]
    reading_known: bool
    in_order: bool

    def __len__(self) -> int:
        return len(self.read_ns)


def rank_demand(
    runs: Sequence[RecordedRun],
    *,
    reads_per_sample: float = 1.0,
    nbytes_per_sample: float | None = None,
    n_ranks: int | None = None,
) -> RankDemand:
    """Return what a rank asks for: the steady state of a run, or of every rank of a job.

    In a job, the loop's own part of a step is that of the rank that waited for the others least:
    what others spent longer in it, they spent waiting for their peers.

    Parameters
    ----------
    runs : sequence of RecordedRun
        The same loader of each rank that was measured.
    reads_per_sample : float
        Requests that storage gets for a sample.
    nbytes_per_sample : float, optional
        Instead of what the run tells.
    n_ranks : int, optional
        Of the job, where runs are some of its ranks.

    Raises
    ------
    ProfileError
        If nobody saw who made the batches, if they are too few, or if nothing tells their bytes.
    """
    first = runs[0]
    for run in runs:
        _check(run, nbytes_per_sample)
    chosen = [_chosen(run) for run in runs]
    size = first.batch_size or 1
    nbytes = [
        run.read_nbytes[rows].astype(float)
        if nbytes_per_sample is None
        else np.full(len(rows), nbytes_per_sample * size)
        for run, rows in zip(runs, chosen, strict=True)
    ]
    parts = [_parts(run, rows) for run, rows in zip(runs, chosen, strict=True)]
    compute = [run.compute_ns[rows].astype(float) for run, rows in zip(runs, chosen, strict=True)]
    if len(runs) > 1:
        shortest = min(map(len, compute))
        least = np.min([values[:shortest] for values in compute], axis=0)
        compute = [np.resize(least, len(values)) for values in compute]
    lengths = np.cumsum([0, *map(len, chosen)])

    def joined(name: str) -> NDArray[np.float64]:
        return np.concatenate(
            [getattr(run, name)[rows] for run, rows in zip(runs, chosen, strict=True)]
        ).astype(float)

    return RankDemand(
        rule=first.rule,
        workers=_workers(first),
        ahead=_ahead(first),
        batch_size=size,
        n_ranks=n_ranks or len(runs),
        starts=tuple(int(value) for value in lengths),
        read_ns=np.concatenate([read for read, _, _ in parts]),
        rest_ns=np.concatenate([rest for _, rest, _ in parts]),
        nbytes=np.concatenate(nbytes),
        reads=np.full(int(lengths[-1]), reads_per_sample * size),
        submit_ns=joined("submit_ns"),
        transit_ns=np.concatenate([transit for _, _, transit in parts]),
        pickup_ns=joined("pickup_ns"),
        compute_ns=np.concatenate(compute),
        reading_known=not _fused(first),
        in_order=all(run.in_order for run in runs),
    )


def _check(run: RecordedRun, nbytes_per_sample: float | None) -> None:
    if run.rule not in (LoaderRule.SERIAL, LoaderRule.POOL, LoaderRule.THREADS):
        reason = run.reason or "nobody saw who made its batches"
        raise ProfileError(
            f"{run.name}: cannot be simulated on more ranks ({reason}); expected a loader that "
            "iobench sees inside, such as those of iobench profile --framework native or torch, "
            "and the spans of all its workers"
        )
    if len(run) < FEWEST_BATCHES:
        raise ProfileError(
            f"{run.name}: has {len(run)} batch{'es' * (len(run) != 1)}, expected at least "
            f"{FEWEST_BATCHES} to tell how they differ; run it for longer"
        )
    known = run.read_nbytes >= 0
    if nbytes_per_sample is None and not known.all():
        raise ProfileError(
            f"{run.name}: does not tell how many bytes {int((~known).sum())} of its batches read; "
            "give --bytes-per-sample"
        )


def _chosen(run: RecordedRun) -> NDArray[np.int64]:
    """Return the batches of the steady state, or all where these are few."""
    steady = np.flatnonzero(run.steady)
    return steady if len(steady) >= FEWEST_STEADY else np.arange(len(run))


def _parts(run: RecordedRun, rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """Return the time that storage takes, what else makes a batch, and its way to the loop."""
    work, cpu = run.work_ns[rows].astype(float), run.cpu_ns[rows].astype(float)
    kinds = [stage.partition(":")[0] for stage in run.stages]
    part = np.where([kind in READING for kind in kinds], work, 0.0)
    if _fused(run):
        # What a stage that reads among other things does off the CPU it waits for storage.
        off_cpu = np.where(cpu >= 0, np.maximum(work - cpu, 0.0), work)
        part = np.where([kind in FUSED for kind in kinds], off_cpu, part)
    beside = np.zeros(len(rows))
    if run.beside_ns is not None:
        beside = run.beside_ns[rows].sum(axis=1).astype(float)
    rest = np.maximum(work.sum(axis=1) - part.sum(axis=1) - beside, 0.0) + run.gap_ns[rows]
    return part.sum(axis=1), rest, run.transit_ns[rows] + beside


def _fused(run: RecordedRun) -> bool:
    """Whether no stage reads alone."""
    kinds = {stage.partition(":")[0] for stage in run.stages}
    return not kinds & READING and bool(kinds & FUSED)


def _workers(run: RecordedRun) -> int:
    return 1 if run.rule is LoaderRule.SERIAL else max(1, run.workers)


def _ahead(run: RecordedRun) -> int:
    """Return how many batches may be under way, the one being taken included."""
    if run.rule is LoaderRule.SERIAL:
        return 1
    if run.rule is LoaderRule.POOL:
        return max(1, run.workers) * max(1, run.prefetch)
    return max(1, run.workers, run.prefetch)
