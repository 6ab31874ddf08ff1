"""Accelerator utilisation as MLPerf Storage has it, and where the rest of the time went.

The formula is that of DLIO 2.0.0 (argonne-lcf/dlio_benchmark, commit e1919d7, ``statscounter.py``),
by which MLPerf Storage is judged: compute over time, the first step of each stretch of steps left
out of both. A stretch is a round here, and ends at a checkpoint, as DLIO's blocks do.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.json_keys import figure, key
from iobench.recording.kinds import Kind, Trait, stage_name

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

DLIO_VERSION: Final = "2.0.0 (e1919d7)"
MLPERF_THRESHOLDS: Final = {"3D-UNet": 0.9, "ResNet-50": 0.9, "CosmoFlow": 0.7}
"""What MLPerf Storage asks for, by workload (Submission_guidelines.md, caa90c9)."""
NOT_SAVING: Final = stage_name(Kind.CHECKPOINT, "snapshot")
"""A loader asked for its own state, perhaps at every step: that ends no stretch."""
OTHER: Final = Kind.OTHER.spelled
UNTOLD: Final = Kind.UNKNOWN.spelled


class StepStretch(msgspec.Struct, frozen=True):
    """Steps one after another, the first of them in no other figure.

    Parameters
    ----------
    epoch : int
        Which one it is of.
    n_steps : int
        All of them, as DLIO weighs its blocks.
    total_ns : int
        Time of the stretch without the wait and the compute of its first step.
    compute_ns : int
        Compute of the other steps.
    missing_ns : mapping of str to int
        The rest by stage, largest first: waits as attributed, what the loop did besides, and
        ``other``. It adds up to ``total_ns - compute_ns`` exactly.
    """

    epoch: int
    n_steps: int
    total_ns: int
    compute_ns: int
    missing_ns: Mapping[str, int]
    JSON_KEYS: ClassVar = {
        "total_ns": key("total_ns"),
        "compute_ns": key("compute_ns"),
        "missing_ns": key("missing_ns"),
    }

    @property
    def fraction(self) -> float:
        """Compute over time; 0 without compute, as of a single step."""
        return self.compute_ns / self.total_ns if self.compute_ns else 0.0


class EpochUtilisation(msgspec.Struct, frozen=True):
    """Accelerator utilisation of one epoch.

    Parameters
    ----------
    epoch : int
        Which one.
    fraction : float
        Of its stretches weighed by their steps, the mean of ranks.
    """

    epoch: int
    fraction: float


class Utilisation(msgspec.Struct, frozen=True):
    """What share of the time accelerators computed, as MLPerf Storage has it.

    Parameters
    ----------
    fraction : float or None
        The mean of epochs; None where no step is in it.
    stdev_fraction : float or None
        Of the epochs, over all of them; None of a single one.
    missing : mapping of str to float or None
        What is missing to 1, by stage with the same weights, largest first; ``unknown`` where a
        stretch has no time.
    stretches : tuple of StepStretch
        Steps between which the training did nothing else; empty for a mean of several ranks.
    n_counted : int
        Steps that are in the figure: all but the first of each stretch.
    n_ranks : int
        Training processes that it is the mean of.
    """

    fraction: float | None
    stdev_fraction: float | None
    missing: Mapping[str, float] | None
    epochs: tuple[EpochUtilisation, ...]
    stretches: tuple[StepStretch, ...]
    n_counted: int
    n_ranks: int

    @figure
    def formula(self) -> str:
        """Whose it is, and of which version."""
        return f"DLIO {DLIO_VERSION}"

    @figure
    def mlperf_storage_thresholds(self) -> Mapping[str, float]:
        """What MLPerf Storage asks for, by workload."""
        return MLPERF_THRESHOLDS


def utilisation(run: RankRun) -> Utilisation | None:
    """Return the accelerator utilisation of a training process; None where it took no step.

    Compute is what lies between a batch and the next request, but for collective operations,
    evaluations and checkpoints. Of several loaders the steps are those of the one with most
    batches, also where it is made again for each epoch; waits for others inside its rounds are
    waits. Epochs have the numbers that `epoch_figures` has.
    """
    if not run.exposure.has_consumer:
        return None
    stretches = tuple(_stretches(run))
    found = _mean_of_ranks([stretches])
    return None if found is None else replace(found, stretches=stretches)


def mean_utilisation(parts: Iterable[Utilisation | None]) -> Utilisation | None:
    """Return the mean of training processes, epoch by epoch, of those that took steps in it."""
    return _mean_of_ranks([part.stretches for part in parts if part is not None])


def _mean_of_ranks(ranks: Sequence[Sequence[StepStretch]]) -> Utilisation | None:
    by_epoch: dict[int, list[list[StepStretch]]] = {}
    for stretches in ranks:
        for epoch in {stretch.epoch for stretch in stretches}:
            own = [stretch for stretch in stretches if stretch.epoch == epoch]
            by_epoch.setdefault(epoch, []).append(own)
    if not by_epoch:
        return None
    epochs, missing = [], []
    for epoch, parts in sorted(by_epoch.items()):
        found = [_of_epoch(part) for part in parts]
        epochs.append(EpochUtilisation(epoch, statistics.fmean(share for share, _ in found)))
        missing.append(_mean([rest for _, rest in found]))
    fractions = [each.fraction for each in epochs]
    n_counted = sum(stretch.n_steps - 1 for stretches in ranks for stretch in stretches)
    rest = sorted(_mean(missing).items(), key=lambda item: (-item[1], item[0]))
    return Utilisation(
        fraction=statistics.fmean(fractions) if n_counted else None,
        stdev_fraction=statistics.pstdev(fractions) if n_counted and len(epochs) > 1 else None,
        missing=dict(rest) if n_counted else None,
        epochs=tuple(epochs),
        stretches=(),
        n_counted=n_counted,
        n_ranks=len(ranks),
    )


def _of_epoch(stretches: Sequence[StepStretch]) -> tuple[float, Mapping[str, float]]:
    """Return an epoch's utilisation and what is missing to 1, stretches weighed by their steps."""
    n_steps = sum(stretch.n_steps for stretch in stretches)
    fraction, missing = 0.0, dict[str, float]()
    for stretch in stretches:
        weight = stretch.n_steps / n_steps
        fraction += weight * stretch.fraction
        shares = {stage: ns / stretch.total_ns for stage, ns in stretch.missing_ns.items()}
        for stage, share in (shares or {UNTOLD: 1.0 - stretch.fraction}).items():
            missing[stage] = missing.get(stage, 0.0) + weight * share
    return fraction, missing


def _mean(parts: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for stage, share in part.items():
            found[stage] = found.get(stage, 0.0) + share
    return {stage: share / len(parts) for stage, share in found.items()}


def _stretches(run: RankRun) -> Iterator[StepStretch]:
    """Yield the stretches of a run: rounds of the loader that trains, cut where it saved."""
    deliveries, ledger = run.deliveries, run.attribution.ledger
    names = ledger.stages.names
    saves = np.array([_saves(name) for name in names], dtype=bool)
    saved = np.flatnonzero(ledger.n_computed[:-1, saves].any(axis=1))
    left_ns = deliveries.until_ns - deliveries.delivered_ns
    besides = [Trait.NO_COMPUTE in kind.traits for kind in ledger.stages.kinds]
    besides_ns = np.where(besides, ledger.compute_ns[:-1], 0)
    # No more than there is between two waits: what goes on over the next one is the longest.
    too_long_ns = np.maximum(besides_ns.sum(axis=1) - left_ns, 0)
    besides_ns[np.arange(len(besides_ns)), besides_ns.argmax(axis=1)] -= too_long_ns
    compute_ns = left_ns - besides_ns.sum(axis=1)
    exposed_ns, others_ns = ledger.exposed_ns, np.where(saves, 0, besides_ns)
    main = deliveries.of_main
    is_step = main & (deliveries.batch >= 0)
    is_over = main & (deliveries.ends_round | deliveries.failed)
    number = deliveries.of_epoch
    for one in np.unique(deliveries.round[main]).tolist():
        own = np.flatnonzero(deliveries.round == one)
        in_round = np.arange(own[0], own[-1] + 1)
        for rows in np.split(in_round, np.flatnonzero(np.isin(in_round[:-1], saved)) + 1):
            steps = rows[is_step[rows]]
            if not len(steps):
                continue
            # The first step: all until the second is asked for, or the call that finds no more.
            later = rows[(is_step | is_over)[rows] & (rows > steps[0])]
            counted = rows[rows >= later[0]] if len(later) else rows[:0]
            over = is_over[counted]
            of_stages = exposed_ns[counted].sum(axis=0) + others_ns[rows].sum(axis=0)
            missing = dict(zip(names, of_stages.tolist(), strict=True))
            before_ns = int(deliveries.asked_ns[rows[0]] - deliveries.from_ns[rows[0]])
            after_ns = int(compute_ns[counted][over].sum())
            missing[OTHER] = missing.get(OTHER, 0) + before_ns + after_ns
            rest = sorted(missing.items(), key=lambda item: (-item[1], item[0]))
            computed_ns = int(compute_ns[counted][~over].sum())
            yield StepStretch(
                epoch=int(number[steps[0]]),
                n_steps=len(steps),
                total_ns=computed_ns + sum(missing.values()),
                compute_ns=computed_ns,
                missing_ns={stage: ns for stage, ns in rest if ns},
            )


def _saves(stage: str) -> bool:
    """Tell whether it is a checkpoint of the training: in no time of a stretch, and its end."""
    return stage.partition(":")[0] == Kind.CHECKPOINT.spelled and stage != NOT_SAVING
