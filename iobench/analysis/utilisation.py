"""Accelerator utilisation as MLPerf Storage has it, and where the rest of the time went.

The formula is that of DLIO 2.0.0 (argonne-lcf/dlio_benchmark, commit e1919d7, ``statscounter.py``),
by which MLPerf Storage is judged: compute over time, the first step of each stretch of steps left
out of both. A stretch is a round here, and ends at a checkpoint, as DLIO's blocks do.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.epoch_numbers import epoch_of_deliveries, of_main_loader
from iobench.recording.kinds import Kind, Trait, stage_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.analysis.attribution import Attribution
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun

__all__ = [
    "DLIO_VERSION",
    "MLPERF_THRESHOLDS",
    "StepStretch",
    "Utilisation",
    "mean_utilisation",
    "utilisation",
]

DLIO_VERSION: Final = "2.0.0 (e1919d7)"
MLPERF_THRESHOLDS: Final = {"3D-UNet": 0.9, "ResNet-50": 0.9, "CosmoFlow": 0.7}
"""What MLPerf Storage asks for, by workload (Submission_guidelines.md, caa90c9)."""
NOT_SAVING: Final = stage_name(Kind.CHECKPOINT, "snapshot")
"""A loader asked for its own state, perhaps at every step: that ends no stretch."""
OTHER: Final = Kind.OTHER.spelled
UNTOLD: Final = Kind.UNKNOWN.spelled


@dataclass(frozen=True, slots=True)
class StepStretch:
    """Steps one after another, the first of them in no other figure.

    Parameters
    ----------
    epoch : int
    n_steps : int
        All of them, as DLIO weighs its blocks.
    total_ns : int
        Time of the stretch without the wait and the compute of its first step.
    compute_ns : int
        Compute of the other steps.
    labels : tuple of (str, int)
        The rest by stage, largest first: waits as attributed, what the loop did besides, and
        ``other``. It adds up to ``total_ns - compute_ns`` exactly.
    """

    epoch: int
    n_steps: int
    total_ns: int
    compute_ns: int
    labels: tuple[tuple[str, int], ...]

    @property
    def fraction(self) -> float:
        """Compute over time; 0 without compute, as of a single step."""
        return self.compute_ns / self.total_ns if self.compute_ns else 0.0


@dataclass(frozen=True, slots=True)
class Utilisation:
    """What share of the time accelerators computed.

    Parameters
    ----------
    fraction : float or None
        Blocks weighed by their steps make an epoch's, the mean of ranks and then of epochs this
        one; None without a step.
    stdev : float or None
        Of the epochs, over all of them; None of a single one.
    epochs : tuple of (int, float)
        Epoch and what it comes to.
    labels : tuple of (str, float)
        What is missing to 1, by stage with the same weights, largest first; ``unknown`` where a
        stretch has no time.
    stretches : tuple of StepStretch
        Of one rank; empty for a mean of several.
    n_counted : int
        Steps that are in the figure; with none it is 0 and says nothing.
    n_ranks : int
    """

    fraction: float | None
    stdev: float | None
    epochs: tuple[tuple[int, float], ...]
    labels: tuple[tuple[str, float], ...]
    stretches: tuple[StepStretch, ...]
    n_counted: int
    n_ranks: int = 1


def utilisation(measured: RankRun) -> Utilisation:
    """Return the accelerator utilisation of a training process; of several it is the mean.

    Compute is what lies between a batch and the next request, but for collective operations,
    evaluations and checkpoints. Of several loaders the steps are those of the one with most
    batches, also where it is made anew for each epoch; waits for others inside its rounds are
    waits. Epochs have the numbers that `epoch_figures` has.
    """
    deliveries, attribution = measured.deliveries, measured.attribution
    main, number = (
        of_main_loader(measured.loop, measured.deliveries),
        epoch_of_deliveries(measured.loop, measured.deliveries),
    )
    stretches = tuple(
        _stretch(deliveries, attribution, rows, main, number)
        for rows in _rows_of_stretches(deliveries, attribution, main)
    )
    n_counted = sum(max(stretch.n_steps - 1, 0) for stretch in stretches)
    epochs: dict[int, list[StepStretch]] = {}
    for stretch in stretches:
        epochs.setdefault(stretch.epoch, []).append(stretch)
    found = [(epoch, *_of_epoch(of_epoch)) for epoch, of_epoch in sorted(epochs.items())]
    return replace(_mean_of_epochs(found), stretches=stretches, n_counted=n_counted)


def mean_utilisation(parts: Iterable[Utilisation]) -> Utilisation:
    """Return the mean of several training processes, epoch by epoch.

    An epoch is the mean of those that took steps in it.
    """
    by_epoch: dict[int, list[tuple[float, Mapping[str, float]]]] = {}
    n_counted = n_ranks = 0
    for part in parts:
        n_ranks += 1
        n_counted += part.n_counted
        groups: dict[int, list[StepStretch]] = {}
        for stretch in part.stretches:
            groups.setdefault(stretch.epoch, []).append(stretch)
        for epoch, stretches in groups.items():
            by_epoch.setdefault(epoch, []).append(_of_epoch(stretches))
    found = [
        (epoch, statistics.fmean(each for each, _ in ranks), _mean(labels for _, labels in ranks))
        for epoch, ranks in sorted(by_epoch.items())
    ]
    return replace(_mean_of_epochs(found), n_counted=n_counted, n_ranks=n_ranks)


def _mean_of_epochs(epochs: Sequence[tuple[int, float, Mapping[str, float]]]) -> Utilisation:
    if not epochs:
        return Utilisation(None, None, (), (), (), 0)
    fractions = [fraction for _, fraction, _ in epochs]
    labels = _mean(labels for _, _, labels in epochs)
    return Utilisation(
        fraction=statistics.fmean(fractions),
        stdev=statistics.pstdev(fractions) if len(fractions) > 1 else None,
        epochs=tuple((epoch, fraction) for epoch, fraction, _ in epochs),
        labels=tuple(sorted(labels.items(), key=lambda item: (-item[1], item[0]))),
        stretches=(),
        n_counted=0,
    )


def _of_epoch(stretches: Sequence[StepStretch]) -> tuple[float, dict[str, float]]:
    """Return an epoch's utilisation and what is missing to 1, stretches weighed by their steps."""
    n_steps = sum(stretch.n_steps for stretch in stretches)
    fraction, labels = 0.0, dict[str, float]()
    for stretch in stretches:
        weight = stretch.n_steps / n_steps
        fraction += weight * stretch.fraction
        shares = {stage: ns / stretch.total_ns for stage, ns in stretch.labels}
        for stage, share in (shares or {UNTOLD: 1.0 - stretch.fraction}).items():
            labels[stage] = labels.get(stage, 0.0) + weight * share
    return fraction, labels


def _mean(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    n_parts = 0
    for part in parts:
        n_parts += 1
        for stage, share in part.items():
            found[stage] = found.get(stage, 0.0) + share
    return {stage: share / n_parts for stage, share in found.items()}


def _rows_of_stretches(
    deliveries: Deliveries, attribution: Attribution, main: NDArray[np.bool_]
) -> list[NDArray[np.int64]]:
    """Return the deliveries of each stretch: of a round of the main loader, cut where saved."""
    found = []
    saved = np.zeros(len(deliveries) + 1, dtype=bool)  # the last one is of no delivery
    saved[_saving(attribution)] = True
    for number in np.unique(deliveries.round[main]).tolist():
        own = np.flatnonzero(deliveries.round == number)
        rows = np.arange(own[0], own[-1] + 1)
        ends = np.flatnonzero(saved[rows[:-1]]) + 1
        found += [
            part
            for part in np.split(rows, ends)
            if (main[part] & (deliveries.batch[part] >= 0)).any()
        ]
    return found


def _saves(stage: str) -> bool:
    """Tell whether it is a checkpoint of the training: in no time of a stretch, and its end."""
    return stage.partition(":")[0] == Kind.CHECKPOINT.spelled and stage != NOT_SAVING


def _saving(attribution: Attribution) -> NDArray[np.int64]:
    """Return in whose share of the time the loop saved a checkpoint; -1 in none."""
    stages = attribution.stages
    named = zip(stages.kinds, stages.labels, strict=True)
    saving = [number for number, pair in enumerate(named) if _saves(stage_name(*pair))]
    found: NDArray[np.int64] = attribution.compute_delivery[
        np.isin(attribution.compute_stage, saving)
    ]
    return found


def _stretch(
    deliveries: Deliveries,
    attribution: Attribution,
    rows: NDArray[np.int64],
    main: NDArray[np.bool_],
    number: NDArray[np.int64],
) -> StepStretch:
    """Return the figures of a stretch; its deliveries tile its time."""
    steps = rows[main[rows] & (deliveries.batch[rows] >= 0)]
    over = rows[(deliveries.ends_round | deliveries.failed)[rows]]
    own_over = over[main[over]]
    # The first step: all until the second is asked for, or the call that finds no more.
    later = [*steps[1:2].tolist(), *own_over[own_over > steps[0]][:1].tolist()]
    counted = rows[rows >= min(later)] if later else rows[:0]
    labels = {OTHER: int(deliveries.asked_ns[rows[0]] - deliveries.from_ns[rows[0]])}
    _add(labels, _exposed(attribution, counted))
    besides = _besides(attribution, rows, deliveries)
    for of_row in besides.values():
        _add(labels, {stage: ns for stage, ns in of_row.items() if not _saves(stage)})
    compute_ns = 0
    for row in counted.tolist():
        left = int(deliveries.until_ns[row] - deliveries.delivered_ns[row])
        left -= sum(besides.get(row, {}).values())
        if row in own_over:
            _add(labels, {OTHER: left})
        else:
            compute_ns += left
    rest = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    return StepStretch(
        epoch=int(number[steps[0]]),
        n_steps=len(steps),
        total_ns=compute_ns + sum(labels.values()),
        compute_ns=compute_ns,
        labels=tuple((stage, ns) for stage, ns in rest if ns),
    )


def _exposed(attribution: Attribution, rows: NDArray[np.int64]) -> dict[str, int]:
    """Return the waits of some deliveries by stage."""
    stages = attribution.stages
    exposed = attribution.ledger.exposed_ns[rows].sum(axis=0)
    return {
        stage_name(stages.kinds[place], stages.labels[place]): int(exposed[place])
        for place in np.flatnonzero(exposed).tolist()
    }


def _besides(
    attribution: Attribution, rows: NDArray[np.int64], deliveries: Deliveries
) -> dict[int, dict[str, int]]:
    """Return what the loop did after each delivery that is no compute, by stage."""
    stages = attribution.stages
    outside = [
        number for number, kind in enumerate(stages.kinds) if Trait.NO_COMPUTE in kind.traits
    ]
    inside = np.isin(attribution.compute_stage, outside)
    inside &= np.isin(attribution.compute_delivery, rows)
    found: dict[int, dict[str, int]] = {}
    for place in np.flatnonzero(inside).tolist():
        row, stage = int(attribution.compute_delivery[place]), int(attribution.compute_stage[place])
        of_row = found.setdefault(row, {})
        # No more than there is between two waits.
        left = int(deliveries.until_ns[row] - deliveries.delivered_ns[row]) - sum(of_row.values())
        ns = min(int(attribution.compute_ns[place]), left)
        name = stage_name(stages.kinds[stage], stages.labels[stage])
        of_row[name] = of_row.get(name, 0) + ns
    return found


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for stage, ns in more.items():
        total[stage] = total.get(stage, 0) + ns
