"""A run on more ranks: what its loader does where nothing is short, capped by what storage gives.

Training is synchronous: a step ends with its slowest rank. Every rank makes batches of the measured
size with the measured loader. The ranks' reads of a step share storage, and a step takes no less
than storage needs for all their bytes and requests.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.analysis.replay.runs import recorded_runs
from iobench.errors import ProfileError
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS, Kind, batch_keys
from iobench.recording.span_file import Flag
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Document,
    Quantity,
    Section,
    Table,
    sentences,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.run import RankRun, Run

Floats = NDArray[np.float64]

MOST_RANKS: Final = 16_384
FARTHEST: Final = 1 << 20
"""The largest number of ranks that saturation is looked for at."""
MOST_MEASURED: Final = 16
"""Ranks of a job whose batches are looked at; what they do is alike."""
FEWEST_STEADY: Final = 8
"""Fewer batches in steady state say less than all batches do."""
N_SEEDS: Final = 3
MOST_BATCHES: Final = 10_000
"""Batches that a simulation is made of, where that leaves `FEWEST_STEPS`."""
FEWEST_STEPS, MOST_STEPS = 16, 400
NEIGHBOURS: Final = 8
"""Batches that stay together: neighbours are alike, for they come from the same file."""
BOUND_FACTOR: Final = 8
"""Beyond so many times the ranks that were measured a figure is a bound."""
READING: Final = frozenset(kind.spelled for kind in READING_KINDS)
FUSED: Final = frozenset(kind.spelled for kind in MIXED_KINDS)


class SharedStorage(msgspec.Struct, frozen=True, kw_only=True):
    """What storage gives all ranks together; None for no bound."""

    bytes_per_s: float | None = None
    reads_per_s: float | None = None

    def serving_ns(self, nbytes: Floats, reads: Floats) -> Floats:
        """Return how long it takes for so many bytes and requests; no time without a bound."""
        served: Floats = np.zeros(np.shape(nbytes))
        for amount, per_s in ((nbytes, self.bytes_per_s), (reads, self.reads_per_s)):
            if per_s is not None:
                served = np.maximum(served, amount / per_s * 1e9)
        return served


TIMES: Final = np.dtype(
    [(name, "<f8") for name in (
        "read_ns", "rest_ns", "nbytes", "reads", "submit_ns", "transit_ns", "pickup_ns",
        "compute_ns",
    )]
)  # fmt: skip
"""What a batch asks of storage and takes; ``rest_ns`` is what its worker does else."""


class MeasuredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A run of one rank or more, as a simulation takes it."""

    ranks: int
    batch_size: int
    rule: str
    workers: int
    ahead: int  # batches in flight at most; 0 where the loop makes each when it asks for it


class RankDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The measured batches; ``starts`` is where each rank's begin in the arrays, then their end."""

    name: str
    job: MeasuredJob
    times: NDArray[Any]  # of TIMES
    starts: tuple[int, ...]


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A job of so many ranks, in steady state."""

    ranks: int
    samples_per_s: float
    efficiency: float  # samples per second of a rank, over those of a job of one rank
    exposed_fraction: float  # of the job's time, in which its last rank waited for its batch
    storage_fraction: float | None  # of storage's time that is used; None where it has no bound
    step_ns: int
    free_step_ns: int  # if storage had no bound


class Saturation(msgspec.Struct, frozen=True):
    """From how many ranks on (None: not even a million) storage cannot give what they read."""

    ranks: int | None
    by: str  # bandwidth or reads


class ScalingCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What ``iobench simulate`` says."""

    run: str
    measured: MeasuredJob
    storage: SharedStorage
    points: tuple[ScalingPoint, ...]
    saturation: Saturation | None
    schema_version: int = 2


def rank_demand(run: Run, *, nbytes_per_sample: float | None = None) -> RankDemand:
    """Return what each rank of a run asks for; of given bytes per sample, not the measured.

    The loop's own part of a step is that of the rank that waited for the others least: what others
    spent longer in it, they spent waiting for their peers.
    """
    places = np.unique(np.linspace(0, len(run) - 1, min(len(run), MOST_MEASURED)).astype(int))
    ranks = [run.of_rank(run.ranks[place]) for place in places.tolist()]
    loaders = [recorded_runs(rank) for rank in ranks]
    for rank, runs in zip(ranks, loaders, strict=True):
        if not runs:
            raise ProfileError(
                f"{rank.path}: no loader delivered a batch; expected a run that trains"
            )
        _check(runs[0], nbytes_per_sample)
    reads = float(np.mean(list(map(_reads_per_sample, ranks, loaders))))
    first, size = loaders[0][0], loaders[0][0].batch_size or 1
    parts = [_times(runs[0], reads, nbytes_per_sample) for runs in loaders]
    shortest = min(map(len, parts))
    least = np.min([part["compute_ns"][:shortest] for part in parts], axis=0)
    for part in parts if len(parts) > 1 else ():
        part["compute_ns"] = np.resize(least, len(part))
    times = np.concatenate(parts)
    workers, ahead = max(1, first.workers), max(1, first.workers, first.prefetch)
    if first.rule is LoaderRule.POOL:
        ahead = workers * max(1, first.prefetch)
    return RankDemand(
        name=first.name,
        job=MeasuredJob(
            ranks=len(run),
            batch_size=size,
            rule=first.rule.value,
            workers=workers,
            ahead=0 if first.rule is LoaderRule.SERIAL else ahead,
        ),
        times=times,
        starts=tuple(np.cumsum([0, *map(len, parts)]).tolist()),
    )


def _check(run: LoaderRun, nbytes_per_sample: float | None) -> None:
    n_unknown = int((run.read_nbytes < 0).sum())
    why = ""
    if not run.can_replay:
        why = f"cannot be simulated on more ranks ({run.reason}); expected another loader"
    elif n_unknown and nbytes_per_sample is None:
        why = (
            f"does not record how many bytes {n_unknown} of its batches read; give "
            "--bytes-per-sample"
        )
    if why:
        raise ProfileError(f"{run.name}: {why}")


def _times(run: LoaderRun, reads: float, nbytes_per_sample: float | None) -> NDArray[Any]:
    """Return the batches of the steady state of a run, or all where these are few.

    Where no stage reads alone, what a stage that reads among other things does off the CPU it
    waits for storage.
    """
    steady = np.flatnonzero(run.steady)
    rows = steady if len(steady) >= FEWEST_STEADY else np.arange(len(run))
    work, cpu = run.work_ns[rows].astype(float), run.cpu_ns[rows].astype(float)
    kinds = [stage.partition(":")[0] for stage in run.stages]
    reading = work * [kind in READING for kind in kinds]
    if not READING & {*kinds}:
        off_cpu = np.where(cpu >= 0, np.maximum(work - cpu, 0.0), work)
        reading = np.where([kind in FUSED for kind in kinds], off_cpu, reading)
    other, size = run.async_ns[rows].sum(axis=1), run.batch_size or 1
    times = np.zeros(len(rows), TIMES)
    for name in ("submit_ns", "pickup_ns", "compute_ns"):
        times[name] = getattr(run, name)[rows]
    times["read_ns"] = reading.sum(axis=1)
    rest = np.maximum(work.sum(axis=1) - times["read_ns"] - other, 0.0)
    times["rest_ns"] = rest + run.gap_ns[rows]
    per_sample = nbytes_per_sample
    times["nbytes"] = run.read_nbytes[rows] if per_sample is None else per_sample * size
    times["reads"] = reads * size
    times["transit_ns"] = run.transit_ns[rows] + other
    return times


def _reads_per_sample(rank: RankRun, runs: Sequence[LoaderRun]) -> float:
    """Return how often a sample was read for, by the spans of reading; at least once.

    Reads that belong to no batch, or to one that never came, are no part of it, unless it is known
    of none for which batch it was.
    """
    spans = rank.spans
    reads = spans[(spans["kind"] == Kind.READ) & ((spans["flags"] & Flag.IO) == 0)]
    if (reads["batch"] >= 0).any():
        waits = spans[(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
        reads = reads[np.isin(batch_keys(reads, "epoch"), batch_keys(waits, "epoch"))]
    pieces = np.where((reads["flags"] & Flag.SUMMED) != 0, reads["pieces"], 1)
    n_samples = sum(len(each) * (each.batch_size or 1) for each in runs)
    return max(1.0, float(pieces.sum()) / n_samples)


def scaling_curve(demand: RankDemand, storage: SharedStorage, ranks: Sequence[int]) -> ScalingCurve:
    """Return what a run would do on more ranks, from 1 to `MOST_RANKS`, of one storage."""
    job, times, is_bounded = demand.job, demand.times, storage != SharedStorage()
    means = (np.mean(times[name], keepdims=True) for name in ("nbytes", "reads"))
    served_ns = float(storage.serving_ns(*means)[0])
    points, alone_ns = [], 0.0
    for each in sorted({1, *ranks}):
        step_ns, waited_ns = _step(demand, SharedStorage(), each)
        free_ns = step_ns
        if is_bounded:
            step_ns, waited_ns = _step(demand, storage, each)
            more_ns = max(served_ns * each - step_ns, 0.0)
            step_ns, waited_ns = step_ns + more_ns, waited_ns + more_ns
        alone_ns, whole_ns = alone_ns or step_ns, step_ns or np.inf
        points.append(
            ScalingPoint(
                ranks=each,
                samples_per_s=each * job.batch_size / whole_ns * 1e9,
                efficiency=alone_ns / whole_ns,
                exposed_fraction=waited_ns / whole_ns,
                storage_fraction=served_ns * each / whole_ns if is_bounded else None,
                step_ns=round(step_ns),
                free_step_ns=round(free_ns),
            )
        )
    return ScalingCurve(
        run=demand.name,
        measured=job,
        storage=storage,
        points=tuple(point for point in points if point.ranks in ranks),
        saturation=_saturation(demand, storage, points) if is_bounded else None,
    )


def _step(demand: RankDemand, storage: SharedStorage, ranks: int) -> tuple[float, float]:
    """Return what a step takes, and what of it the last rank waits.

    Pipelines are full to begin with. Steps until each rank has used what was there are left out,
    and those at the end, when less and less is read ahead. Medians of simulations that each draw
    neighbouring batches of a measured rank.
    """
    ahead = demand.job.ahead or 1
    lead = ahead + demand.job.workers
    # Whole turns of the pipeline: its workers may end their batches together.
    turns = -(-min(max(MOST_BATCHES // ranks, FEWEST_STEPS), MOST_STEPS) // ahead)
    end = lead + turns * ahead
    steps, waits = [], []
    for seed in range(N_SEEDS):
        rows = _rows(demand.starts, np.random.default_rng((seed, ranks)), ranks, end + ahead)
        held_ns, request_ns = _simulated(demand, storage, rows)
        steps.append(float(request_ns[end] - request_ns[lead]) / (end - lead))
        waits.append(float((held_ns - request_ns[:-1])[lead:end].mean()))
    return statistics.median(steps), statistics.median(waits)


def _simulated(
    demand: RankDemand, storage: SharedStorage, rows: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return when the last rank held the batch of each step, and when all asked, then ended.

    ``rows`` has a measured batch for each step and rank. Ranks ask for the batches of a step at the
    same time: a read takes what its rank took alone, or as long as with an equal part of storage.
    """
    drawn = demand.times[rows]
    served = storage.serving_ns(drawn["nbytes"], drawn["reads"])
    shared = _shared(served)
    is_queue = demand.job.rule == "threads"
    ahead, workers, ranks = demand.job.ahead, demand.job.workers, np.arange(rows.shape[1])
    free, held = np.zeros((workers, len(ranks))), np.zeros(rows.shape)
    requested = np.zeros(len(rows) + 1)
    for step in range(len(rows)):
        begin = np.full(len(ranks), requested[step])
        worker: Any = step % workers
        if ahead:
            if is_queue:
                worker = free.argmin(axis=0)
            begin = free[worker, ranks]
            if step >= ahead:
                begin = np.maximum(begin, held[step - ahead] + drawn["submit_ns"][step])
        if step < ahead:
            ready = begin
        else:
            read = begin + np.maximum(drawn["read_ns"][step], shared[step])
            free[worker, ranks] = read + drawn["rest_ns"][step]
            ready = free[worker, ranks] + drawn["transit_ns"][step]
        held[step] = np.maximum(requested[step], ready) + drawn["pickup_ns"][step]
        requested[step + 1] = (held[step] + drawn["compute_ns"][step]).max()
    return held.max(axis=1), requested


def _shared(served: Floats) -> Floats:
    """Return how long reads take that begin together and have equal parts of storage."""
    order = np.argsort(served, axis=1)
    smallest = np.take_along_axis(served, order, axis=1)
    left = np.arange(served.shape[1], 0, -1)
    ends = np.cumsum(np.diff(smallest, prepend=0.0, axis=1) * left, axis=1)
    shared = np.empty_like(served)
    np.put_along_axis(shared, order, ends, axis=1)
    return shared


def _rows(
    starts: tuple[int, ...], random: np.random.Generator, ranks: int, n_steps: int
) -> NDArray[np.int64]:
    """Return which measured batch each is, shape (n_steps, ranks)."""
    shape = (-(-n_steps // NEIGHBOURS), ranks)
    begins, ends = np.array(starts[:-1]), np.array(starts[1:])
    of_rank = random.integers(len(begins), size=shape)
    length = (ends - begins)[of_rank]
    first = (random.random(shape) * length).astype(np.int64)
    within = (first[:, None, :] + np.arange(NEIGHBOURS)[None, :, None]) % length[:, None, :]
    rows: NDArray[np.int64] = (begins[of_rank][:, None, :] + within).reshape(-1, ranks)[:n_steps]
    return rows


def _saturation(
    demand: RankDemand, storage: SharedStorage, points: Sequence[ScalingPoint]
) -> Saturation:
    """Return from how many ranks on they would read more than storage gives.

    R ranks that ask for b bytes in each step of c seconds reach a bandwidth B at R = B c / b.
    Between simulated points the step grows with the logarithm of the ranks.
    """
    times, ranks = demand.times, np.arange(1, FARTHEST + 1)
    known, free_ns = zip(*((point.ranks, point.free_step_ns) for point in points), strict=True)
    asks = np.diag([times["nbytes"].mean(), times["reads"].mean()])
    bytes_ns, reads_ns = storage.serving_ns(*asks).tolist()
    served_ns = max(bytes_ns, reads_ns) * ranks
    free = np.interp(np.log(ranks), np.log(known), free_ns)
    beyond = (served_ns > 0) & (served_ns >= free * (1 - 1e-12))
    by = "bandwidth" if bytes_ns >= reads_ns else "reads"
    return Saturation(int(ranks[beyond.argmax()]) if beyond.any() else None, by)


def scaling_document(curve: ScalingCurve) -> Document:
    """Return what ``iobench simulate`` says."""
    job = curve.measured
    names = ("ranks", "samples/s", "efficiency", "exposed", "storage used")
    rows = tuple(
        (
            Quantity(point.ranks, "count"),
            Quantity(point.samples_per_s, "samples/s"),
            Quantity(point.efficiency, "share"),
            Quantity(point.exposed_fraction, "share"),
            NOT_APPLICABLE
            if point.storage_fraction is None
            else Quantity(point.storage_fraction, "share"),
        )
        for point in curve.points
    )
    assumed = (
        "Every rank does what was measured, never faster; a step waits for the slowest rank. "
        "Figures are for the steady state, without communication that the run did not have; beyond "
        f"{units.count(BOUND_FACTOR * job.ranks)} ranks samples/s are upper bounds."
    )
    loader = f"{job.rule} loader, {job.workers} workers" if job.rule != "serial" else "no workers"
    return Document(
        title=f"{curve.run}: {_ranks(job.ranks)} measured, batches of {job.batch_size}, {loader}",
        sections=(
            Section("verdict", "", sentences((_verdict(curve.saturation),))),
            Section("ranks", "", (Table("", tuple(map(Column, names)), rows),)),
            Section("assumed", "Assumptions", sentences((assumed,))),
        ),
        figures=lambda: msgspec.to_builtins(curve),
    )


def _ranks(ranks: int) -> str:
    return f"{units.count(ranks)} rank{'s' * (ranks != 1)}"


def _verdict(saturation: Saturation | None) -> str:
    if saturation is None:
        return "No storage limit is given; set one with --storage-bandwidth or --storage-iops."
    if saturation.ranks is None:
        return f"Storage does not saturate, even with {_ranks(FARTHEST)}."
    return f"Storage saturates at {_ranks(saturation.ranks)}: {saturation.by}."
