"""What the figures mean, as data: the verdict and what it rests on. Reports put it into words."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from iobench.json_keys import HIDDEN, figure
from iobench.recording.kinds import WORKER_KINDS, Kind

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Exposure, LoaderExposure, PartExposure, Window
    from iobench.analysis.job_figures import JobTime

IO_BOUND_FRACTION: Final = 0.2
"""From this share of its time on, a training loop that waits is I/O-bound."""
HIDDEN_FRACTION: Final = 0.05
"""Below this share, faster loading is not worth any work."""


class Verdict(Enum):
    """What is concluded about a training loop."""

    NO_CONSUMER = "no consumer"
    """No loader was asked for anything: exposure is not defined."""
    NOT_RECORDED = "not recorded"
    """Recording stopped before a batch was in it: nothing can be said."""
    NO_BATCH = "no batch"
    """Nothing was delivered, so nothing can be said."""
    NO_COMPUTE = "no compute"
    """The loop does nothing between deliveries: there is nothing to hide loading behind."""
    HIDDEN = "hidden"
    """It waits for less than 5 % of its time."""
    PARTLY_HIDDEN = "partly hidden"
    IO_BOUND = "I/O-bound"
    """It waits for 20 % of its time or more."""


class Diagnosis(msgspec.Struct, frozen=True):
    """What a run's figures mean.

    Parameters
    ----------
    verdict : Verdict
        What is concluded: ``"no batch"``, ``"no compute"``, ``"hidden"``, ``"partly hidden"``,
        ``"I/O-bound"``, or why nothing can be.
    window : str
        What it is about: ``"recurring"``, the epochs after the first; of a run without such the
        ``"steady"`` state; of one too short for that the ``"whole"`` run.
    wait_fraction : float or None
        Share of the time spent waiting; None where nothing was measured.
    top_stage : str or None
        The stage with the largest exposed time; None where nothing was waited for. Where the wait
        was is not always what helps: that is for the replay to say.
    top_fraction : float or None
        Its share of the wait.
    unknown_fraction : float or None
        Share of the wait whose cause was not recorded; None where nothing was waited for.
    hidden_fraction : float or None
        Share of the loading work that was hidden behind compute; None without such work.
    start_fraction : float
        Waits outside the steady state (start-up, fill, end), as a share of the whole run; 0
        for a run without a steady state.
    again_fraction : float
        Of the epochs after the first, share of the time that is waiting at their start and end,
        outside of their steady state; 0 where the verdict is not about them.
    serial : bool
        Whether the training loop loads for itself, which hides nothing.
    in_script : bool
        Whether the training loop is a part of a user's own script, whose other time is in no
        figure.
    loop_fraction : float or None
        Share of its process's time that the loop is; None where it is not known.
    job : JobTime or None
        Where all of its process's time went; None where it is not known.
    validation : PartExposure or None
        Of passes that validate, test or predict, beside those that train.
    waited_for : LoaderExposure or None
        Of loaders that differ the one that most of the run's wait is for.
    waited_fraction : float or None
        Its share of the run's wait; those made again for each epoch count as one.
    restarting : LoaderExposure or None
        Of loaders whose workers start again for each of their rounds, the one most waited for; None
        where the verdict is about epochs, which have these starts in them.
    stopped : str
        Why recording stopped before the end, and where; ``""`` where it did not.
    n_batches, n_folded : int
        Batches that all of this is of, and those before them, of which there are sums only.
    first_epoch_fraction : float or None
        Share of its time that the first epoch waits after its start-up and fill; None where it is
        a part of what the verdict is about.
    batch_ns : float or None
        Of what the verdict is about, the time of a batch on average; None without any.
    first_epoch_is_cold : bool
        Whether it read from the device, and what came after it from memory.
    """

    verdict: Verdict
    window: Window
    wait_fraction: float | None
    top_stage: str | None
    top_fraction: float | None
    unknown_fraction: float | None
    hidden_fraction: float | None
    start_fraction: float
    again_fraction: float
    serial: bool
    in_script: bool = False
    loop_fraction: float | None = None
    job: JobTime | None = None
    validation: PartExposure | None = None
    waited_for: LoaderExposure | None = None
    waited_fraction: float | None = None
    restarting: LoaderExposure | None = None
    stopped: str = ""
    n_batches: int = 0
    n_folded: int = 0
    first_epoch_fraction: float | None = None
    first_epoch_is_cold: bool = False
    batch_ns: float | None = None
    JSON_KEYS: ClassVar = {
        "serial": HIDDEN,
        "in_script": HIDDEN,
        "loop_fraction": HIDDEN,
        "job": HIDDEN,
        "validation": HIDDEN,
        "waited_for": HIDDEN,
        "waited_fraction": HIDDEN,
        "restarting": HIDDEN,
        "stopped": HIDDEN,
        "n_batches": HIDDEN,
        "n_folded": HIDDEN,
        "batch_ns": HIDDEN,
    }

    @figure
    def steady(self) -> bool:
        """Whether it is about the steady state."""
        return self.window == "steady"


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
        if exposure.stopped and not whole.n_batches
        else _verdict(whole.n_batches, window.wait_fraction, exposure.has_compute)
        if exposure.has_consumer
        else Verdict.NO_CONSUMER,
        stopped=exposure.stopped,
        window=exposure.window,
        wait_fraction=window.wait_fraction,
        top_stage=top.stage if top else None,
        top_fraction=top.exposed_ns / window.wait_ns if top else None,
        unknown_fraction=unknown_ns / window.wait_ns if window.wait_ns else None,
        hidden_fraction=hidden_fraction(window),
        start_fraction=outside_ns / whole.wall_ns if whole.wall_ns else 0.0,
        again_fraction=again_ns / window.wall_ns if window.wall_ns else 0.0,
        first_epoch_fraction=next(
            (each.wait_fraction for each in exposure.phases if each.phase == "first epoch"), None
        ),
        first_epoch_is_cold=_is_cold_at_first(whole, window),
        serial=not exposure.workers and not any(row.hidden_ns for row in whole.stages),
        in_script=exposure.is_script,
        loop_fraction=exposure.loop_fraction,
        job=exposure.job,
        validation=exposure.validation,
        waited_for=waited_for,
        restarting=None
        if exposure.window == "recurring"
        else max(
            (each for each in exposure.loaders if each.restarts),
            key=lambda each: each.wait_ns,
            default=None,
        ),
        waited_fraction=loader_ns / whole.wait_ns if whole.wait_ns and waited_for else None,
        n_batches=whole.n_batches,
        n_folded=exposure.n_folded,
        batch_ns=window.wall_ns / window.n_batches if window.n_batches else None,
    )


def _is_cold_at_first(whole: PartExposure, later: PartExposure) -> bool:
    """Tell whether most bytes that came from the device came before the later part of a run."""
    if not whole.cold_fraction or later.cold_fraction is None:
        return False
    cold = later.cold_fraction * (later.read_nbytes or 0)
    return cold < whole.cold_fraction * (whole.read_nbytes or 0) / 2


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
    """Return the share of the loading work that compute hid; None without such work.

    What nobody saw being done was as long as it was waited for; what of it was hidden is not
    known, so it is in neither part.
    """
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
