"""From profiles to what a simulation on more ranks starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np

from iobench.analysis.replay.runs import recorded_runs
from iobench.errors import ProfileError
from iobench.findings.scaling.demand import rank_demand
from iobench.json_keys import HIDDEN, INLINE, key
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import batch_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.replay.loader_run import RecordedRun
    from iobench.analysis.run import Run
    from iobench.findings.scaling.demand import RankDemand
    from iobench.runs.contents import RunData
    from iobench.runs.run_facts import RunFacts

MOST_MEASURED: Final = 16
"""Ranks of a job whose batches are looked at; what they do is alike."""


class MeasuredJob(msgspec.Struct, frozen=True):
    """A run, or a job of several ranks, as a simulation takes it.

    Parameters
    ----------
    name : str
        Of the run, and of the loader where it has several.
    n_looked_at : int
        Ranks whose batches are in it.
    n_loaders : int
        With batches; the one with most of them is simulated.
    step_ns : float or None
        Mean time from step to step in steady state; None without one, or with several loaders.
    cold_fraction : float or None
        What of the bytes came from the device; None where it was not counted.
    dataset_nbytes : int or None
        Of one epoch, as it is read; None where it is not known.
    delivered_nbytes : float or None
        Of a sample as the loop gets it; None where it was not counted, or with several loaders.
    storage_limits : object
        What a probe of its storage had found, for its reader.
    n_batches, n_folded : int
        Of the ranks looked at, and those before them, of which there are sums only.
    """

    name: str
    demand: RankDemand
    n_looked_at: int
    n_loaders: int
    step_ns: float | None
    cold_fraction: float | None
    reads_per_sample: float
    dataset_nbytes: int | None
    delivered_nbytes: float | None
    storage_limits: object
    n_batches: int
    n_folded: int
    JSON_KEYS: ClassVar = {
        "name": HIDDEN,
        "demand": INLINE,
        "n_looked_at": key("ranks_looked_at"),
        "n_loaders": key("loaders"),
        "step_ns": key("step_ns"),
        "dataset_nbytes": HIDDEN,
        "storage_limits": HIDDEN,
        "n_batches": HIDDEN,
        "n_folded": key("folded_batches"),
    }


def measured_job(
    run: Run,
    *,
    reads_per_sample: float | None = None,
    nbytes_per_sample: float | None = None,
) -> MeasuredJob:
    """Return what was measured of each training process of a run.

    Parameters
    ----------
    reads_per_sample, nbytes_per_sample : float, optional
        Instead of what the run tells.

    Raises
    ------
    ProfileError
        If no loader brought a batch, or as `rank_demand` and `exposure`.
    """
    places = np.unique(np.linspace(0, len(run) - 1, min(len(run), MOST_MEASURED)))
    runs: list[RecordedRun] = []
    n_loaders, n_reads, step_ns, cold = 0, [], [], []
    n_batches = n_folded = 0
    for place in places.astype(int).tolist():
        rank = run.of_rank(run.ranks[place])
        profile, found = rank, recorded_runs(rank)
        if not found:
            raise ProfileError(
                f"{profile.path}: no loader delivered a batch; expected a run that trains"
            )
        measured = rank.exposure
        runs.append(found[0])
        n_loaders = max(n_loaders, len(found))
        n_batches += measured.whole.n_batches
        n_folded += measured.n_folded
        n_reads.append(_reads_per_sample(profile, found))
        cold.append(measured.whole.cold_fraction)
        if measured.steady is not None and measured.steady.n_batches:
            step_ns.append(measured.steady.wall_ns / measured.steady.n_batches)
    reads = reads_per_sample or float(np.mean(n_reads))
    demand = rank_demand(
        runs,
        reads_per_sample=reads,
        nbytes_per_sample=nbytes_per_sample,
        n_ranks=len(run),
    )
    known = [value for value in cold if value is not None]
    return MeasuredJob(
        name=runs[0].name,
        demand=demand,
        n_looked_at=len(runs),
        n_loaders=n_loaders,
        step_ns=float(np.mean(step_ns)) if step_ns and n_loaders == 1 else None,
        cold_fraction=float(np.mean(known)) if len(known) == len(cold) else None,
        reads_per_sample=reads,
        dataset_nbytes=_dataset_nbytes(run.about, demand),
        delivered_nbytes=_delivered_nbytes(run.of_rank(run.ranks[0]), demand)
        if n_loaders == 1
        else None,
        storage_limits=run.about.storage_limits,
        n_batches=n_batches,
        n_folded=n_folded,
    )


def _delivered_nbytes(profile: RunData, demand: RankDemand) -> float | None:
    """Return the bytes of a sample as the loop gets it: not those read for it, which are packed."""
    spans = profile.spans
    nbytes = spans["nbytes"][(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
    known = nbytes[nbytes >= 0]
    return float(np.median(known)) / demand.batch_size if known.size else None


def _reads_per_sample(profile: RunData, runs: Sequence[RecordedRun]) -> float:
    """Return how often a sample was read for, by the spans of reading; at least once.

    Reads that belong to no batch, or to one that never came, are no part of it, unless nobody knew
    which batch any was for.
    """
    spans = profile.spans
    reads = spans[(spans["kind"] == Kind.READ) & ((spans["flags"] & Flag.IO) == 0)]
    if (reads["batch"] >= 0).any():
        waits = spans[(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
        reads = reads[np.isin(batch_keys(reads, "epoch"), batch_keys(waits, "epoch"))]
    pieces = np.where((reads["flags"] & Flag.SUMMED) != 0, reads["pieces"], 1)
    n_samples = sum(len(run) * (run.batch_size or 1) for run in runs)
    return max(1.0, float(pieces.sum()) / n_samples)


def _dataset_nbytes(about: RunFacts, demand: RankDemand) -> int | None:
    """Return the bytes of an epoch: of a whole store, else of the samples by those read."""
    store = about.store
    if store is not None and store.n_samples and store.nbytes is not None:
        return store.nbytes * (store.n_samples_all or store.n_samples) // store.n_samples
    if about.n_samples is None:
        return None
    return round(about.n_samples * float(demand.nbytes.mean()) / demand.batch_size) or None
