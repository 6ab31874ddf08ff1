"""What an epoch over all samples takes, as measured or by what it reads; when a change has paid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from iobench.recording.epoch_reads import EpochReads, LoadRates
from iobench.recording.kinds import WORKER_KINDS, kind_named

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun


class EpochCost(msgspec.Struct, frozen=True):
    """What epochs over all samples take, the training step included."""

    n_samples: int
    first_s: float
    later_s: float
    reads: EpochReads | None = None  # None where samples share nothing that is known
    rates: LoadRates | None = None
    step_s: float | None = None  # for a sample


def epoch_cost(run: RankRun, n: int | None = None) -> EpochCost | None:
    """Return what epochs take, over ``n`` samples or all of a profile; None where unknown."""
    facts, part, waits = run.about, run.exposure.judged, run.deliveries
    n = n or (facts.store and facts.store.n_samples_all) or facts.n_samples_all
    if not n or not part.n_samples:
        return None
    later_s = part.wall_ns / part.n_samples * n / 1e9
    if facts.epoch is None or facts.epoch.n_samples != n:
        return EpochCost(n, later_s, later_s)
    step_s = part.compute_ns / part.n_samples / 1e9
    rates = _rates(run)
    if facts.threads or facts.workers:
        first_s, expected_s = facts.epoch.epochs_s(rates, step_s)
    else:  # the loop loads, and computes when it has
        loop = replace(rates, sample_s=rates.sample_s + step_s)
        first_s, expected_s = facts.epoch.epochs_s(loop, 0.0)
    is_first = (waits.of_epoch == 0) & waits.trains
    complete = waits.complete_epochs if facts.n_samples == n else frozenset()
    if 0 in complete:
        first_s = int(waits.wall_ns[is_first].sum()) / 1e9
    later_s = later_s if len(complete) > 1 else expected_s
    return EpochCost(n, first_s, later_s, facts.epoch, rates, step_s)


def _rates(run: RankRun) -> LoadRates:
    """Return what loading took for each byte read, and for samples that read nothing."""
    waits, ledger, facts = run.deliveries, run.ledger, run.about
    is_work = [kind_named(name) in WORKER_KINDS for name in ledger.stages.names]
    busy_s = (
        ledger.busy_ns[:-1, is_work].sum(axis=1) / 1e9 / max(1, facts.threads or facts.workers or 0)
    )
    nbytes = run.counters.table["undecoded_nbytes"][:-1]
    loads = (waits.batch >= 0) & (busy_s > 0)
    from_memory = loads & (nbytes == 0)
    n_from_memory = int(waits.n_samples[from_memory].sum())
    sample_s = float(busy_s[from_memory].sum()) / n_from_memory if n_from_memory else 0.0

    def rate(rows: NDArray[np.bool_]) -> float | None:
        rows = rows & loads & (nbytes > 0)
        work_s = float(busy_s[rows].sum()) - sample_s * int(waits.n_samples[rows].sum())
        return max(0.0, work_s) / int(nbytes[rows].sum()) if rows.any() else None

    first, again = rate(waits.of_epoch == 0), rate(waits.of_epoch > 0)
    known = first if first is not None else again or 0.0
    return LoadRates(known, known if again is None else again, sample_s)


class BreakEven(msgspec.Struct, frozen=True):
    """When what is spent once has been saved again, epoch by epoch."""

    epochs: float | None  # until it has paid; None where it never does, or that is unknown
    never: bool  # whether epochs get no shorter
    staging_to_epoch: float | None

    @classmethod
    def of(
        cls,
        spent_s: float | None,
        epoch_s: float | None,
        saved_s: float | None,
        first_saved_s: float | None = None,
    ) -> BreakEven:
        """Return when it has paid, where an epoch took ``epoch_s`` and now ``saved_s`` less.

        The first epoch may take ``first_saved_s`` less instead.
        """
        first_s = saved_s if first_saved_s is None else first_saved_s
        if spent_s is None or saved_s is None or first_s is None:
            epochs = None
        elif first_s > 0 and spent_s <= first_s:
            epochs = spent_s / first_s
        else:
            epochs = 1 + (spent_s - first_s) / saved_s if saved_s > 0 else None
        never = saved_s is not None and saved_s <= 0 and epochs is None
        after_s = None if epoch_s is None or saved_s is None else epoch_s - saved_s
        ratio = spent_s / after_s if spent_s is not None and after_s else None
        return cls(epochs, never, ratio)
