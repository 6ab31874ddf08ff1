"""What one rank asks of its storage and of itself, batch by batch, as it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.errors import ProfileError
from iobench.json_keys import HIDDEN, figure, key
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.replay.loader_run import RecordedRun

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

FEWEST_BATCHES: Final = 2
FEWEST_STEADY: Final = 8
"""Fewer batches in steady state say less than all batches do."""
READING: Final = frozenset(kind.spelled for kind in READING_KINDS)
FUSED: Final = frozenset(kind.spelled for kind in MIXED_KINDS)


class BatchTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What batches ask of storage and take of their rank; times in ns, arrays of one shape.

    Parameters
    ----------
    read_ns : ndarray of float64
        What reading takes a rank by itself.
    rest_ns : ndarray of float64
        What the maker of the batch does besides.
    nbytes, reads : ndarray of float64
        Asked of storage.
    submit_ns, transit_ns, pickup_ns, compute_ns : ndarray of float64
        As in `RecordedRun`; what others did after the maker was done is in ``transit_ns``.
    """

    read_ns: Floats
    rest_ns: Floats
    nbytes: Floats
    reads: Floats
    submit_ns: Floats
    transit_ns: Floats
    pickup_ns: Floats
    compute_ns: Floats
    JSON_KEYS: ClassVar = {
        "read_ns": HIDDEN,
        "rest_ns": HIDDEN,
        "nbytes": HIDDEN,
        "reads": HIDDEN,
        "submit_ns": HIDDEN,
        "transit_ns": HIDDEN,
        "pickup_ns": HIDDEN,
        "compute_ns": HIDDEN,
    }


TIMES: Final = BatchTimes.__struct_fields__


class RankDemand(BatchTimes, frozen=True, kw_only=True):
    """The batches of a run, or of all ranks of a job, in the order of delivery.

    Parameters
    ----------
    rule : LoaderRule
        How the loader makes them.
    workers : int
        Processes or threads that make batches; 1 where the loop makes them.
    ahead : int
        Batches in flight at most.
    batch_size : int
        Samples of a batch.
    n_ranks : int
        Of the job that was measured.
    starts : tuple of int
        Where each rank's batches begin in the arrays; then their length.
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
    reading_known: bool
    in_order: bool
    JSON_KEYS: ClassVar = {
        "ahead": key("batches_ahead"),
        "n_ranks": key("ranks"),
        "starts": HIDDEN,
        "in_order": HIDDEN,
    }

    def __len__(self) -> int:
        return len(self.read_ns)

    @figure
    def batches(self) -> int:
        """Those that simulations draw from."""
        return len(self)

    @figure
    def sample_nbytes(self) -> float:
        """Read for a sample, on average."""
        return float(self.nbytes.mean()) / self.batch_size

    @figure.named("compute_median_ns")
    def compute_median_ns(self) -> float:
        """What a step takes besides loading."""
        return float(np.median(self.compute_ns))


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
    for run in runs:
        _check(run, nbytes_per_sample)
    parts = [_times(run, reads_per_sample, nbytes_per_sample) for run in runs]
    if len(parts) > 1:
        shortest = min(len(part.compute_ns) for part in parts)
        least = np.min([part.compute_ns[:shortest] for part in parts], axis=0)
        parts = [replace(part, compute_ns=np.resize(least, len(part.reads))) for part in parts]
    first = runs[0]
    is_serial, workers = first.rule is LoaderRule.SERIAL, max(1, first.workers)
    ahead = max(workers, first.prefetch)
    if first.rule is LoaderRule.POOL:
        ahead = workers * max(1, first.prefetch)
    return RankDemand(
        rule=first.rule,
        workers=1 if is_serial else workers,
        ahead=1 if is_serial else ahead,
        batch_size=first.batch_size or 1,
        n_ranks=n_ranks or len(runs),
        starts=tuple(np.cumsum([0, *(len(part.reads) for part in parts)]).tolist()),
        reading_known=not _fused(first),
        in_order=all(run.in_order for run in runs),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in TIMES},
    )


def _check(run: RecordedRun, nbytes_per_sample: float | None) -> None:
    if run.rule not in (LoaderRule.SERIAL, LoaderRule.POOL, LoaderRule.THREADS):
        reason = run.reason or "the making of its batches was not seen"
        raise ProfileError(
            f"{run.name}: cannot be simulated on more ranks ({reason}); expected a loader that "
            "iobench sees inside, such as those of iobench profile --framework native or torch, "
            "and the spans of all its workers"
        )
    if len(run) < FEWEST_BATCHES:
        raise ProfileError(
            f"{run.name}: has {len(run)} batch{'es' * (len(run) != 1)}, expected at least "
            f"{FEWEST_BATCHES} to know how they vary; run it for longer"
        )
    known = run.read_nbytes >= 0
    if nbytes_per_sample is None and not known.all():
        raise ProfileError(
            f"{run.name}: does not record how many bytes {int((~known).sum())} of its batches "
            "read; give --bytes-per-sample"
        )


def _times(
    run: RecordedRun, reads_per_sample: float, nbytes_per_sample: float | None
) -> BatchTimes:
    """Return the batches of the steady state of a run, or all where these are few."""
    steady = np.flatnonzero(run.steady)
    rows = steady if len(steady) >= FEWEST_STEADY else np.arange(len(run))
    read_ns, rest_ns, transit_ns = _parts(run, rows)
    size, nbytes = run.batch_size or 1, run.read_nbytes[rows].astype(float)
    if nbytes_per_sample is not None:
        nbytes = np.full(len(rows), nbytes_per_sample * size)
    return BatchTimes(
        read_ns=read_ns,
        rest_ns=rest_ns,
        nbytes=nbytes,
        reads=np.full(len(rows), reads_per_sample * size),
        submit_ns=run.submit_ns[rows].astype(float),
        transit_ns=transit_ns,
        pickup_ns=run.pickup_ns[rows].astype(float),
        compute_ns=run.compute_ns[rows].astype(float),
    )


def _parts(run: RecordedRun, rows: Integers) -> tuple[Floats, Floats, Floats]:
    """Return the time of reading, of what else makes a batch, and of its way."""
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
