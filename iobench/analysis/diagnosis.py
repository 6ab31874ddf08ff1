"""What the figures mean, as data: the verdict and what it rests on. Reports put it into words."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.epochs import epoch_cost
from iobench.analysis.replay.replay import gains_alone
from iobench.analysis.replay.runs import reported_loaders
from iobench.recording.kinds import WORKER_KINDS, Kind

if TYPE_CHECKING:
    from iobench.analysis.epochs import EpochCost
    from iobench.analysis.exposure_figures import Exposure, LoaderExposure, PartExposure, Window
    from iobench.analysis.run import RankRun

IO_BOUND_FRACTION: Final = 0.2
"""From this share of its time on, a training loop that waits is I/O-bound."""
HIDDEN_FRACTION: Final = 0.05
"""Below this share, faster loading is not worth any work."""


class Verdict(Enum):
    """What is concluded about a training loop."""

    NO_CONSUMER = "no consumer"
    """No loader was asked for anything: exposure is not defined."""
    NOT_RECORDED = "not recorded"
    """No process recorded, or recording stopped before a batch: nothing can be said."""
    NO_BATCH = "no batch"
    """Nothing was delivered, so nothing can be said."""
    HUNG = "hung"
    """Most of the loop's time is its last wait, which brought no batch."""
    NO_COMPUTE = "no compute"
    """The loop does nothing between deliveries: there is nothing to hide loading behind."""
    HIDDEN = "hidden"
    """It waits for less than 5 % of its time."""
    PARTLY_HIDDEN = "partly hidden"
    IO_BOUND = "I/O-bound"
    """It waits for 20 % of its time or more."""


class Diagnosis(msgspec.Struct, frozen=True):
    """What a run's figures mean."""

    verdict: Verdict
    window: Window  # what it is about
    wait_fraction: float | None  # share of the time spent waiting
    top_stage: str | None  # with the largest exposed time, None if it alone gains nothing
    top_fraction: float | None  # its share of the wait
    unknown_fraction: float | None  # share of the wait whose cause was not recorded
    hidden_fraction: float | None  # share of the loading work that was hidden behind compute
    start_fraction: float  # waits outside the steady state, as a share of the whole run
    again_fraction: float  # of epochs after the first: share that they wait at start and end
    waited_for: LoaderExposure | None  # of loaders that differ the one most waited for
    waited_fraction: float | None  # its share; those made again for each epoch are one
    exposure: Exposure  # all of these figures
    top_alone_gains: bool | None = None  # where that stage alone takes less; None unknown
    first_wait_ns: int = 0  # of the first epoch, beyond what as many batches of the window wait
    epoch: EpochCost | None = None  # what one over all samples takes


def diagnose(exposure: Exposure) -> Diagnosis:
    """Return what a run's figures mean."""
    whole, window = exposure.whole, exposure.judged
    top = window.stages[0] if window.stages and window.stages[0].exposed_ns else None
    unknown_ns = sum(row.exposed_ns for row in window.stages if row.kind == Kind.UNKNOWN)
    outside_ns = whole.wait_ns - (exposure.steady or whole).wait_ns
    again_ns = exposure.recurring_start_ns if exposure.window == "recurring" else 0
    waited_for, loader_ns = _waited_for(exposure)
    return Diagnosis(
        verdict=Verdict.NOT_RECORDED
        if exposure.unrecorded or (exposure.stopped and not whole.n_batches)
        else Verdict.HUNG
        if exposure.hang is not None and 2 * exposure.hang.wait_ns > whole.wall_ns
        else _verdict(whole.n_batches, window.wait_fraction, exposure.has_compute)
        if exposure.has_consumer
        else Verdict.NO_CONSUMER,
        window=exposure.window,
        wait_fraction=window.wait_fraction,
        top_stage=top.stage if top else None,
        top_fraction=top.exposed_ns / window.wait_ns if top else None,
        unknown_fraction=unknown_ns / window.wait_ns if window.wait_ns else None,
        hidden_fraction=hidden_fraction(window),
        start_fraction=outside_ns / whole.wall_ns if whole.wall_ns else 0.0,
        again_fraction=again_ns / window.wall_ns if window.wall_ns else 0.0,
        waited_for=waited_for,
        waited_fraction=loader_ns / whole.wait_ns if whole.wait_ns and waited_for else None,
        exposure=exposure,
    )


def diagnosis_of(rank: RankRun) -> Diagnosis:
    """Return what is concluded of a training process, and whether its top stage alone gains."""
    waits, window = rank.deliveries, rank.exposure.window
    first = (waits.of_epoch == 0) & waits.trains & ~waits.in_part(window)
    usual = rank.exposure.judged
    usual_ns = int(first.sum()) * usual.wait_ns // max(1, usual.n_batches)
    result = replace(
        diagnose(rank.exposure),
        first_wait_ns=max(0, int(waits.wait_ns[first].sum()) - usual_ns),
        epoch=epoch_cost(rank),
    )
    runs = rank.cached(reported_loaders)
    if result.top_stage is None or not runs:
        return result
    gains = gains_alone(runs[0], result.top_stage)
    top_stage = None if gains is False else result.top_stage
    return replace(result, top_alone_gains=gains, top_stage=top_stage)


def _waited_for(exposure: Exposure) -> tuple[LoaderExposure | None, int]:
    """Return the loader that is waited for most, and for how long; None where all are alike."""
    alike: dict[tuple[object, ...], list[LoaderExposure]] = {}
    for each in exposure.loaders:
        if each.n_batches:
            key = (each.framework, each.kind, each.name, each.workers, each.batch_size, each.role)
            alike.setdefault(key, []).append(each)
    if len(alike) < 2:
        return None, 0
    most = max(alike.values(), key=lambda loaders: sum(each.wait_ns for each in loaders))
    return most[0], sum(each.wait_ns for each in most)


def hidden_fraction(window: PartExposure) -> float | None:
    """Return the share of the loading work that compute hid; None without such work."""
    work = [
        row
        for row in window.stages
        if row.kind in WORKER_KINDS and (row.n_spans or row.kind != Kind.OPAQUE)
    ]
    busy_ns = sum(row.busy_ns for row in work)
    return sum(row.hidden_ns for row in work) / busy_ns if busy_ns else None


def _verdict(n_batches: int, wait_fraction: float | None, has_compute: bool) -> Verdict:
    if not n_batches or wait_fraction is None:
        return Verdict.NO_BATCH
    if not has_compute:
        return Verdict.NO_COMPUTE
    if wait_fraction < HIDDEN_FRACTION:
        return Verdict.HIDDEN
    return Verdict.IO_BOUND if wait_fraction >= IO_BOUND_FRACTION else Verdict.PARTLY_HIDDEN
