"""Accelerator utilisation by the formula of MLPerf Storage.

That of DLIO 2.0.0 (argonne-lcf/dlio_benchmark, commit e1919d7, ``statscounter.py``): compute over
time, the first step of each block of steps left out of both. A block is a pass over the loader
that trains, and ends at a checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from iobench.findings.contract import Finding
from iobench.recording.kinds import Kind, Trait
from iobench.report import units
from iobench.report.document import Section, Sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.run import RankRun


class Utilisation(msgspec.Struct, frozen=True):
    """The mean of epochs, and of ranks."""

    fraction: float


def utilisation(run: RankRun) -> Utilisation | None:
    """Return the accelerator utilisation of a training process; None where it took no second step.

    Compute is what lies between a batch and the next request, but for collective operations,
    evaluations and checkpoints.
    """
    if not run.exposure.has_consumer:
        return None
    epochs: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for epoch, n_steps, fraction in _blocks(run):
        epochs[epoch].append((n_steps, fraction))
    if all(n_steps == 1 for blocks in epochs.values() for n_steps, _ in blocks):
        return None
    shares = [fmean([f for _, f in each], [n for n, _ in each]) for each in epochs.values()]
    return Utilisation(fmean(shares))


def mean_utilisation(parts: Sequence[Utilisation | None]) -> Utilisation | None:
    """Return the mean of training processes, of those that took steps."""
    shares = [each.fraction for each in parts if each is not None]
    return Utilisation(fmean(shares)) if shares else None


def _blocks(run: RankRun) -> Iterator[tuple[int, int, float]]:
    """Yield epoch, number of steps and compute over time of each block."""
    deliveries, ledger = run.deliveries, run.attribution.ledger
    saves = np.array([kind is Kind.CHECKPOINT for kind in ledger.stages.kinds], dtype=bool)
    saved = np.flatnonzero(ledger.n_computed[:-1, saves].any(axis=1))
    left_ns = deliveries.until_ns - deliveries.delivered_ns
    no_compute = [Trait.NO_COMPUTE in kind.traits for kind in ledger.stages.kinds]
    other_ns = np.where(no_compute, ledger.compute_ns[:-1], 0)
    # No more than there is between two waits: what goes on over the next one is the longest.
    too_long_ns = np.maximum(other_ns.sum(axis=1) - left_ns, 0)
    other_ns[np.arange(len(other_ns)), other_ns.argmax(axis=1)] -= too_long_ns
    compute_ns = left_ns - other_ns.sum(axis=1)
    exposed_ns = ledger.exposed_ns.sum(axis=1)
    other_ns = np.where(saves, 0, other_ns).sum(axis=1)
    main = deliveries.of_main
    is_step = main & (deliveries.batch >= 0)
    is_over = main & (deliveries.ends_round | deliveries.failed)
    for one in np.unique(deliveries.round[main]).tolist():
        own = np.flatnonzero(deliveries.round == one)
        in_round = np.arange(own[0], own[-1] + 1)
        for rows in np.split(in_round, np.flatnonzero(np.isin(in_round[:-1], saved)) + 1):
            steps = rows[is_step[rows]]
            if not len(steps):
                continue
            # The first step: all until the second request, or the call that gets no more.
            later = rows[(is_step | is_over)[rows] & (rows > steps[0])]
            counted = rows[rows >= later[0]] if len(later) else rows[:0]
            before_ns = deliveries.requested_ns[rows[0]] - deliveries.from_ns[rows[0]]
            computed_ns = int(compute_ns[counted][~is_over[counted]].sum())
            total_ns = compute_ns[counted].sum() + exposed_ns[counted].sum() + before_ns
            total_ns += other_ns[rows].sum()
            fraction = computed_ns / int(total_ns) if computed_ns else 0.0
            yield int(deliveries.of_epoch[steps[0]]), len(steps), fraction


def utilisation_section(answer: Utilisation) -> Section:
    """Return the utilisation."""
    text = f"DLIO's formula of accelerator utilisation gives {units.fraction(answer.fraction)}."
    return Section(
        "utilisation", "Utilisation by DLIO's formula", (Sentence(text),), is_folded=True
    )


FINDING: Final = Finding(
    "mlperf_utilisation", 400, Utilisation, utilisation, utilisation_section, mean_utilisation
)
