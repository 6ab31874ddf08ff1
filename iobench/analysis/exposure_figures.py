"""The figures an analysis ends in: frozen values, exact to the nanosecond, without formatting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from iobench.json_keys import HIDDEN, INLINE, figure, key, keyed_by

if TYPE_CHECKING:
    from iobench.analysis.job_figures import JobTime
    from iobench.recording.kinds import Kind
    from iobench.runs.contents import Summed

Window = Literal["recurring", "steady", "whole"]
"""Of which part of a run a figure is: see `Exposure`."""


class StageExposure(msgspec.Struct, frozen=True):
    """One stage's work inside a window, and the part of it that the training loop waited for.

    ``0 <= exposed_ns <= busy_ns`` and ``hidden_ns + exposed_ns == busy_ns``, exactly.
    """

    stage: str  # ``kind`` or ``kind:label``
    kind: Kind
    label: str
    busy_ns: int  # self time of its spans; of waiting itself (worker_gap, ...) the exposed time
    hidden_ns: int  # that cost the training loop nothing
    exposed_ns: int  # that the training loop waited for
    nbytes: int | None  # handed on; None where a span does not say
    n_spans: int  # samples or batches timed, a summed one once per piece
    cpu_ns: int | None  # of its threads; None where a span does not carry it
    part_of_ns: int = 0  # the whole wait of the window
    exposed_per_step_ns: float | None = None  # of whole steps of the optimiser; None: unknown
    JSON_KEYS: ClassVar = {
        "kind": HIDDEN,
        "label": HIDDEN,
        "part_of_ns": HIDDEN,
        "exposed_per_step_ns": HIDDEN,
    }

    @property
    def wait_fraction(self) -> float | None:
        """Its part of the wait; None where nothing was waited for."""
        return self.exposed_ns / self.part_of_ns if self.part_of_ns else None

    @property
    def busy_bytes_per_s(self) -> float | None:
        """Bytes handed on over the time it was busy, of one process or thread."""
        return _per_s(self.nbytes, self.busy_ns)


class ComputeStage(msgspec.Struct, frozen=True):
    """One stage of the training loop itself inside a window: ``forward``, ``backward``, ..."""

    stage: str
    busy_ns: int  # outside of waits
    n_spans: int
    n_steps: int  # between how many waits it was timed
    per_step_ns: float | None = None  # of whole steps of the optimiser; None: unknown
    JSON_KEYS: ClassVar = {
        "n_steps": HIDDEN,
        "per_step_ns": HIDDEN,
    }


class StepFigures(msgspec.Struct, frozen=True):
    """How many batches a step of the optimiser takes; None where that is not known."""

    n_steps: int | None = None  # whose batches were all delivered
    batches_per_step: int | None = None  # of most steps
    least_batches: int | None = None  # as the last step of an epoch may take fewer
    most_batches: int | None = None
    known_by: str = ""  # "option", "framework", "optimizer" (its steps), "loop" (of profile)
    optimizer: str = ""  # of several the one that steps least often, which bounds a step
    n_optimizers: int = 0
    why_unknown: str = ""
    JSON_KEYS: ClassVar = {
        "n_steps": key("steps"),
        "least_batches": HIDDEN,
        "most_batches": HIDDEN,
        "optimizer": HIDDEN,
        "n_optimizers": HIDDEN,
    }


class StepStatistics(msgspec.Struct, frozen=True):
    """A time that each of several steps took, at least one; a deviation has at least two."""

    n_steps: int
    min_ns: int
    mean_ns: float
    median_ns: float
    max_ns: int
    stdev_ns: float | None

    def in_whole_ns(self) -> StepStatistics:
        """Return them rounded to the nanosecond."""
        return replace(
            self,
            mean_ns=round(self.mean_ns),
            median_ns=round(self.median_ns),
            stdev_ns=None if self.stdev_ns is None else round(self.stdev_ns),
        )


class DecodedChunkFigures(msgspec.Struct, frozen=True):
    """What loading decoded of chunked files, as counted where it was decoded."""

    nbytes: int  # of whole chunks, each as often as it was decoded
    used_nbytes: int  # of the parts that samples took, also where another one had decoded them
    n_needed: int  # chunks that samples needed,
    n_decoded: int  # and those of them that had to be decoded: the others were kept
    JSON_KEYS: ClassVar = {
        "n_needed": key("chunks_needed"),
        "n_decoded": key("chunks_decoded"),
    }

    @property
    def per_used(self) -> float | None:
        """Bytes decoded for each one used; None where none was used."""
        return self.nbytes / self.used_nbytes if self.used_nbytes else None


class PartExposure(msgspec.Struct, frozen=True):
    """Some deliveries of a run, summed: the whole run, its epochs after the first, or steady state.

    ``wait_ns + compute_ns == wall_ns`` and the stages' ``exposed_ns`` add up to ``wait_ns``.
    """

    wall_ns: int  # from being asked for each delivery to the next one, or the round's end
    wait_ns: int  # blocked in ``next()``, a round's last call included
    compute_ns: int  # everything else
    n_batches: int
    n_samples: int | None  # None where neither sample nor batch size is known
    nbytes: int | None  # None where a delivery does not say
    stages: tuple[StageExposure, ...]  # largest exposed time first, then largest busy time
    compute_stages: tuple[ComputeStage, ...]  # between deliveries, as far as there are spans
    waits_ns: tuple[int, ...]  # of every delivered batch, in order
    # The waits of each whole step of the optimiser, of each batch where its batches are unknown
    wait: StepStatistics | None
    # Read by loading processes, by whatever code, cached or not; of mappings what stages report
    read_nbytes: int | None
    cold_fraction: float | None  # bytes from the device over bytes read
    # Share that recording took of the loop's time or its workers', whichever is larger, as they
    # measured it, else by what a span costs
    overhead_fraction: float | None
    estimated_fraction: float = 0.0  # of batches whose stages are in the proportions of others
    whole_batch_fraction: float = 0.0  # of batches too short for spans of their stages
    decoded: DecodedChunkFigures | None = None  # None where it was not counted, or not all
    batch_wait: StepStatistics | None = None  # of each batch
    step: StepStatistics | None = None  # the time of each step; None where that is unknown
    JSON_KEYS: ClassVar = {
        "n_batches": key("batches"),
        "n_samples": key("samples"),
        "waits_ns": HIDDEN,
        "wait": key("wait_per_step"),
        "estimated_fraction": HIDDEN,
        "whole_batch_fraction": HIDDEN,
        "batch_wait": HIDDEN,
        "step": key("time_per_step"),
    }

    @property
    def compute_rest_ns(self) -> int:
        """Compute that no stage of the training loop names."""
        return self.compute_ns - sum(row.busy_ns for row in self.compute_stages)

    @figure
    def wait_fraction(self) -> float | None:
        """Share of the wall time spent waiting; None for a window without time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None

    @property
    def accelerator_utilisation(self) -> float | None:
        """Compute over wall; None for a window without time."""
        return self.compute_ns / self.wall_ns if self.wall_ns else None

    @figure
    def exposed_ns(self) -> dict[str, int]:
        """Exposed time by stage, every stage with a row in it; adds up to ``wait_ns``."""
        return {row.stage: row.exposed_ns for row in self.stages}

    @figure
    def samples_per_s(self) -> float | None:
        """Delivered samples over wall time; None where either is unknown."""
        return _per_s(self.n_samples, self.wall_ns)

    @property
    def bytes_per_s(self) -> float | None:
        """Delivered bytes over wall time; None where either is unknown."""
        return _per_s(self.nbytes, self.wall_ns)

    @property
    def read_per_byte(self) -> float | None:
        """Bytes read over bytes delivered; None where either is unknown."""
        if self.read_nbytes is None or not self.nbytes:
            return None
        return self.read_nbytes / self.nbytes


def _per_s(amount: int | None, ns: int) -> float | None:
    return None if amount is None or not ns else amount * 1_000_000_000 / ns


class Phase(msgspec.Struct, frozen=True):
    """One stretch of every round that trains, and ``validation``: all of the others.

    ``startup`` is each round's ``iter()`` and first delivery, ``fill`` the others of the first
    ``workers x prefetch`` of its loader (``prefetch + 1`` without workers), ``drain`` the last
    ``next()``, which brought no batch or failed, and ``steady`` the rest. Of `iobench profile`
    ``first epoch`` is the first one where others follow it whole: it may have read from the device
    what they read from memory.
    """

    phase: str
    wall_ns: int
    wait_ns: int
    n_deliveries: int  # calls for a batch

    @property
    def wait_fraction(self) -> float | None:
        """Share of its time spent waiting; None without time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None


class Coincidence(msgspec.Struct, frozen=True):
    """What long waits fall together with, of how many of them, and of how many steps in all."""

    what: str  # "round start", "epoch start", "worker start", "fill", "first epoch", "file change"
    n_long: int
    n_steps: int


class LongWaits(msgspec.Struct, frozen=True):
    """Few waits that hold much of the run's time, so that the median step misleads."""

    n_waits: int  # the fewest with 90 % of the time above the median, and those half as long
    n_steps: int
    wait_ns: int
    typical_ns: int  # their median
    excess_fraction: float  # (mean - median) x steps, as a share of the wall time; above 0.1
    period_steps: int | None  # from one to the next where that is regular
    in_step: bool  # whether the loading processes finish their batches together
    coincidences: tuple[Coincidence, ...]  # that mark a fifth of their time or more
    JSON_KEYS: ClassVar = {
        "excess_fraction": HIDDEN,
        "in_step": HIDDEN,
        "coincidences": HIDDEN,
    }


class LoaderExposure(msgspec.Struct, frozen=True):
    """One loader of the training loop, and what of the wait was for it; "" where unknown.

    The waits of all loaders add up to that of the whole run.
    """

    number: int | None  # as its process counts them; None of rounds whose loader is unknown
    framework: str
    kind: str  # its class
    name: str
    workers: int  # loading processes
    prefetch: int  # batches that each may have ready
    threads: int  # beside the training loop
    batch_size: int | None
    n_rounds: int  # that brought a batch
    n_batches: int
    wait_ns: int
    # "training", "validation", "test", "prediction", or "evaluation": any of the last three
    role: str = ""
    restarts: bool = False  # whether its workers were started again for further rounds
    JSON_KEYS: ClassVar = {
        "n_rounds": key("rounds"),
        "n_batches": key("batches"),
        "restarts": HIDDEN,
    }


class OtherLoop(msgspec.Struct, frozen=True):
    """A thread that waited for batches besides the training loop; in no other figure."""

    process: str
    pid: int
    thread: str
    n_waits: int
    wait_ns: int
    JSON_KEYS: ClassVar = {
        "n_waits": key("waits"),
    }


class SummedWaits(msgspec.Struct, frozen=True):
    """The batches of a long run that have no details."""

    summed: Summed  # their sums
    all_wait_fraction: float | None  # of these batches and of the kept ones together
    JSON_KEYS: ClassVar = {
        "summed": INLINE,
    }


class Exposure(msgspec.Struct, frozen=True):
    """Who was waited for, over one training process's run.

    Exposure is not defined without ``has_consumer``: no loader was asked for batches.
    """

    whole: PartExposure  # all rounds, start-up and fill included
    # Deliveries of rounds that train after their start-up and fill, without the call that ends them
    steady: PartExposure | None
    phases: tuple[Phase, ...]  # which add up to ``whole``
    long_waits: LongWaits | None  # where few waits hold more than 10 % of the run
    n_rounds: int
    n_unfinished_rounds: int  # without an end: taken to end with the process's last span
    workers: int  # of the loader that trains, else of that with most batches
    prefetch: int  # batches each may be ahead; without workers, that threads keep ready
    lost_spans: int  # that could not be written or were torn
    missing_workers: tuple[str, ...]  # that left no span file; waits for them are ``unknown``
    loaders: tuple[LoaderExposure, ...] = ()
    other_loops: tuple[OtherLoop, ...] = ()
    n_failed_waits: int = 0  # that ended with an exception
    rank: int = 0
    has_consumer: bool = True
    has_compute: bool = True  # False only where the emulated step was set to nothing
    stopped: str = ""  # why recording stopped, and where to
    is_script: bool = False
    job: JobTime | None = None  # where the time of a script's process went
    overhead_once_ns: int | None = None  # the most that starting to record took in one process
    day_nbytes: int | None = None  # of a day of spans at this pace; None of less than a minute
    spans_nbytes: int = 0
    keep_nbytes: int | None = None  # of spans such a run keeps one by one
    summed: Summed | None = None  # of a long run: sums of what was before, in nothing else
    steps: StepFigures | None = None  # None where nothing was delivered to train on
    # Epochs of a script as a long training has them: the whole ones after the first
    recurring: PartExposure | None = None
    validation: PartExposure | None = None  # passes that validate, test or predict
    recurring_start_ns: int = 0  # waits of these epochs outside of their steady state

    @property
    def n_summed(self) -> int:
        """Batches of which there are sums only."""
        return 0 if self.summed is None else self.summed.n_batches

    @property
    def all_wait_ns(self) -> int:
        """Waits for all batches, those of which there are sums only too."""
        return self.whole.wait_ns + (0 if self.summed is None else self.summed.wait_ns)

    @property
    def all_wall_ns(self) -> int:
        """The time of all batches, those of which there are sums only too."""
        return self.whole.wall_ns + (0 if self.summed is None else self.summed.wall_ns)

    @figure.named("summed")
    def summed_waits(self) -> SummedWaits | None:
        """Batches of which there are sums only; then all else is of the kept ones."""
        if self.summed is None:
            return None
        wall_ns = self.all_wall_ns
        return SummedWaits(self.summed, self.all_wait_ns / wall_ns if wall_ns else None)

    @figure
    def waits_ns(self) -> tuple[int, ...] | None:
        """The wait of each delivered batch, in order; None where there are too many ranks."""
        waits = self.whole.waits_ns
        return waits if len(waits) == self.whole.n_batches else None

    @property
    def job_ns(self) -> int | None:
        """From the start of its process to its end; None where that is not known."""
        return None if self.job is None else self.job.wall_ns

    @property
    def loop_fraction(self) -> float | None:
        """Share of its process's time that the training loop is; None where it is not known."""
        if not self.job_ns:
            return None
        return min(self.whole.wall_ns / self.job_ns, 1.0)

    JSON_KEYS: ClassVar = {
        "whole": INLINE,
        "phases": keyed_by("phase"),
        "n_rounds": key("rounds"),
        "n_failed_waits": key("failed_waits"),
        "n_unfinished_rounds": key("unfinished_rounds"),
        "has_consumer": HIDDEN,
        "has_compute": HIDDEN,
        "stopped": HIDDEN,
        "is_script": HIDDEN,
        "day_nbytes": HIDDEN,
        "spans_nbytes": HIDDEN,
        "keep_nbytes": HIDDEN,
        "summed": HIDDEN,
        "steps": key("optimizer_steps"),
        "recurring_start_ns": HIDDEN,
    }

    @property
    def window(self) -> Window:
        """Which part of the run tells what a long training sees."""
        if self.recurring is not None:
            return "recurring"
        return "whole" if self.steady is None else "steady"

    @property
    def judged(self) -> PartExposure:
        """That part: epochs after the first, else the steady state, else the whole run."""
        return self.recurring or self.steady or self.whole

    def part(self, window: Window) -> PartExposure | None:
        """Return one of the parts; None where the run has none."""
        return {"recurring": self.recurring, "steady": self.steady, "whole": self.whole}[window]

    def without_waits(self) -> Exposure:
        """Return it without the wait of every step: of many ranks they would fill the memory."""

        def slim(part: PartExposure) -> PartExposure:
            return replace(part, waits_ns=())

        return replace(
            self,
            whole=slim(self.whole),
            steady=self.steady and slim(self.steady),
            recurring=self.recurring and slim(self.recurring),
            validation=self.validation and slim(self.validation),
        )
