"""The figures an analysis ends in: frozen values, exact to the nanosecond, without formatting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from iobench.json_keys import HIDDEN, INLINE, figure, key, keyed_by

if TYPE_CHECKING:
    from iobench.analysis.job_figures import JobTime
    from iobench.recording.kinds import Kind
    from iobench.runs.contents import Folded

Window = Literal["recurring", "steady", "whole"]
"""Of which part of a run a figure is: see `Exposure`."""


class StageExposure(msgspec.Struct, frozen=True):
    """One stage's work inside a window, and the part of it that the training loop waited for.

    ``0 <= exposed_ns <= busy_ns`` and ``hidden_ns + exposed_ns == busy_ns``, exactly.

    Parameters
    ----------
    stage : str
        ``kind`` or ``kind:label``, as everywhere.
    kind : Kind
        The sort of work.
    label : str
        The free name inside the kind, ``""`` where there is none.
    busy_ns : int
        Self time of the stage's spans. For a stage that is waiting itself (``startup``,
        ``worker_gap``, ``submit_queue``, ``handover`` without a span, ...) the exposed time.
    hidden_ns : int
        Busy time that cost the training loop nothing.
    exposed_ns : int
        Busy time that the training loop waited for.
    nbytes : int or None
        Bytes the stage handed on; None where a span does not say.
    n_spans : int
        Samples or batches timed: spans, a summed one counted once per piece.
    cpu_ns : int or None
        CPU time of the threads in the stage; None where a span does not carry it.
    part_of_ns : int
        The whole wait of the window.
    exposed_per_step_ns : float or None
        Exposed time of a step of the optimiser, averaged over those that are whole in the window;
        None where it is unknown which batches a step takes.
    """

    stage: str
    kind: Kind
    label: str
    busy_ns: int
    hidden_ns: int
    exposed_ns: int
    nbytes: int | None
    n_spans: int
    cpu_ns: int | None
    part_of_ns: int = 0
    exposed_per_step_ns: float | None = None
    JSON_KEYS: ClassVar = {
        "kind": HIDDEN,
        "label": HIDDEN,
        "part_of_ns": HIDDEN,
    }

    @figure
    def wait_fraction(self) -> float | None:
        """Its part of the wait; None where nothing was waited for."""
        return self.exposed_ns / self.part_of_ns if self.part_of_ns else None

    @figure
    def busy_bytes_per_s(self) -> float | None:
        """Bytes handed on over the time it was busy, of one process or thread."""
        return _per_s(self.nbytes, self.busy_ns)

    @figure.named("off_cpu_s")
    def off_cpu_ns(self) -> int | None:
        """Busy time in which the thread was on no CPU: waiting for a device or a core.

        Not below 0: the clock of CPU time is coarser than that of wall time.
        """
        return None if self.cpu_ns is None else max(0, self.busy_ns - self.cpu_ns)


class ComputeStage(msgspec.Struct, frozen=True):
    """One stage of the training loop itself inside a window.

    Parameters
    ----------
    stage : str
        ``forward``, ``backward``, ...
    busy_ns, n_spans : int
        Its time outside of waits, and how often it was timed.
    n_steps : int
        Between how many waits it was timed: of the others it is unknown how much of it they held.
    per_step_ns : float or None
        Its time in a step of the optimiser, averaged over those that are whole in the window; None
        where it is unknown which batches a step takes.
    """

    stage: str
    busy_ns: int
    n_spans: int
    n_steps: int
    per_step_ns: float | None = None


class StepFigures(msgspec.Struct, frozen=True):
    """How many batches a step of the optimiser takes.

    Parameters
    ----------
    n_steps : int or None
        Steps whose batches were all delivered; None where unknown.
    batches_per_step : int or None
        Of most steps; None where that is not known.
    least_batches, most_batches : int or None
        Of any step, as the last one of an epoch may take fewer.
    known_by : str
        ``"option"`` (``--batches-per-step``), ``"framework"`` (which accumulates gradients),
        ``"optimizer"`` (its steps were seen), ``"loop"`` (of `iobench profile`), ``""``.
    optimizer : str
        Of several optimisers the one that steps least often, which bounds a step.
    n_optimizers : int
        Those that were seen to step.
    why_unknown : str
        ``""`` where it is known.
    """

    n_steps: int | None = None
    batches_per_step: int | None = None
    least_batches: int | None = None
    most_batches: int | None = None
    known_by: str = ""
    optimizer: str = ""
    n_optimizers: int = 0
    why_unknown: str = ""
    JSON_KEYS: ClassVar = {
        "n_steps": key("steps"),
        "n_optimizers": key("optimizers"),
    }


class StepStatistics(msgspec.Struct, frozen=True):
    """A time that each of several steps of the training loop took: its wait, a pass, a stage.

    Parameters
    ----------
    n_steps : int
        How many; at least one.
    min_ns, mean_ns, median_ns, max_ns : int or float
        Of their times.
    stdev_ns : int, float or None
        The sample standard deviation, None for a single step.
    """

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
    """What loading decoded of chunked files, as counted where it was decoded.

    Parameters
    ----------
    nbytes : int
        Of whole chunks, each as often as it was decoded.
    used_nbytes : int
        Of the parts of chunks that samples took, also where another one had decoded them.
    n_needed, n_decoded : int
        Chunks that samples needed, and those of them that had to be decoded: the others were kept.
    """

    nbytes: int
    used_nbytes: int
    n_needed: int
    n_decoded: int
    JSON_KEYS: ClassVar = {
        "n_needed": key("chunks_needed"),
        "n_decoded": key("chunks_decoded"),
    }

    @figure
    def per_used(self) -> float | None:
        """Bytes decoded for each one used; None where none was used."""
        return self.nbytes / self.used_nbytes if self.used_nbytes else None


class PartExposure(msgspec.Struct, frozen=True):
    """Some deliveries of a run, summed: the whole run, its epochs after the first, or steady state.

    ``wait_ns + compute_ns == wall_ns`` and the stages' ``exposed_ns`` add up to ``wait_ns``.

    Parameters
    ----------
    wall_ns : int
        From being asked for each delivery to being asked for the next one or the round's end.
    wait_ns : int
        Time the training loop was blocked in ``next()``, a round's last call included.
    compute_ns : int
        Everything else.
    n_batches : int
        Batches delivered.
    n_samples : int or None
        Samples in them; None where neither sample nor batch size is known.
    nbytes : int or None
        Bytes of them; None where a delivery does not say.
    stages : tuple of StageExposure
        Largest exposed time first, then largest busy time.
    compute_stages : tuple of ComputeStage
        What the training loop did between deliveries, as far as it has spans.
    waits_ns : tuple of int
        The wait of every delivered batch, in order of delivery.
    wait : StepStatistics or None
        Of each step of the optimiser that is whole in it, the waits for its batches, in whole
        nanoseconds. Where a step's batches are unknown, of each batch. None without one.
    batch_wait : StepStatistics or None
        Of each batch; None without one.
    step : StepStatistics or None
        The time of each step, from being asked for its first batch to being asked for that of the
        next; None where it is unknown which batches a step takes.
    read_nbytes : int or None
        Bytes the loading processes read while they made these batches, by whatever code, cached or
        not; None where unknown. Of reads through mappings those that stages report are in it.
    cold_fraction : float or None
        Bytes fetched from the device over bytes read by the workers; None where unknown.
    overhead_fraction : float or None
        Share of the time that recording took: of the training loop's or of its workers', whichever
        is larger, as they measured it; where they did not, spans times what one costs, over the
        time of all lanes. None where that is unknown too.
    estimated_fraction : float
        Share of the batches whose samples were too short to be timed each: their time is known,
        its stages are in the proportions of the batches that were timed.
    whole_batch_fraction : float
        Share of the batches that were too short for spans of their stages: their time is known as
        a whole.
    decoded : DecodedChunkFigures or None
        What was decoded of chunks that samples share; None where it was not counted, or not all.
    """

    wall_ns: int
    wait_ns: int
    compute_ns: int
    n_batches: int
    n_samples: int | None
    nbytes: int | None
    stages: tuple[StageExposure, ...]
    compute_stages: tuple[ComputeStage, ...]
    waits_ns: tuple[int, ...]
    wait: StepStatistics | None
    read_nbytes: int | None
    cold_fraction: float | None
    overhead_fraction: float | None
    estimated_fraction: float = 0.0
    whole_batch_fraction: float = 0.0
    decoded: DecodedChunkFigures | None = None
    batch_wait: StepStatistics | None = None
    step: StepStatistics | None = None
    JSON_KEYS: ClassVar = {
        "wait_ns": key("wait_s", "wait_ns"),
        "n_batches": key("batches"),
        "n_samples": key("samples"),
        "waits_ns": HIDDEN,
        "wait": key("wait_per_step"),
        "batch_wait": key("wait_per_batch"),
        "step": key("time_per_step"),
    }

    @figure.named("compute_rest_s")
    def compute_rest_ns(self) -> int:
        """Compute that no stage of the training loop names."""
        return self.compute_ns - sum(row.busy_ns for row in self.compute_stages)

    @figure
    def wait_fraction(self) -> float | None:
        """Share of the wall time spent waiting; None for a window without time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None

    @figure
    def accelerator_utilisation(self) -> float | None:
        """Compute over wall; None for a window without time."""
        return self.compute_ns / self.wall_ns if self.wall_ns else None

    @figure.named("exposed_ns")
    def exposed_ns(self) -> dict[str, int]:
        """Exposed time by stage, every stage with a row in it; adds up to ``wait_ns``."""
        return {row.stage: row.exposed_ns for row in self.stages}

    @figure
    def samples_per_s(self) -> float | None:
        """Delivered samples over wall time; None where either is unknown."""
        return _per_s(self.n_samples, self.wall_ns)

    @figure
    def bytes_per_s(self) -> float | None:
        """Delivered bytes over wall time; None where either is unknown."""
        return _per_s(self.nbytes, self.wall_ns)

    @figure
    def read_per_byte(self) -> float | None:
        """Bytes read over bytes delivered; None where either is unknown."""
        if self.read_nbytes is None or not self.nbytes:
            return None
        return self.read_nbytes / self.nbytes


def _per_s(amount: int | None, ns: int) -> float | None:
    return None if amount is None or not ns else amount * 1_000_000_000 / ns


class Phase(msgspec.Struct, frozen=True):
    """One stretch of every round: ``startup``, ``fill``, ``first epoch``, ``steady``, ``drain``.

    Of rounds that train; ``validation`` is all of those that validate, test or predict, where
    others train.

    ``startup`` is each round's ``iter()`` and first delivery, ``fill`` the others of the first
    ``workers x prefetch`` of its loader (``prefetch + 1`` without workers), ``drain`` the last
    ``next()``, which found no batch or failed. Of what else `iobench profile` recorded, ``first
    epoch`` is the first one where others follow it whole: it may have read from the device what
    they find in memory.

    Parameters
    ----------
    wall_ns, wait_ns : int
        Its time, and the training loop's waits in it.
    n_deliveries : int
        Calls for a batch.
    """

    phase: str
    wall_ns: int
    wait_ns: int
    n_deliveries: int

    @figure
    def wait_fraction(self) -> float | None:
        """Share of its time spent waiting; None without time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None


class Coincidence(msgspec.Struct, frozen=True):
    """Something that long waits fall together with.

    Parameters
    ----------
    what : str
        One of ``round start``, ``epoch start``, ``worker start``, ``fill``, ``first epoch``,
        ``file change``.
    n_long, n_steps : int
        Long waits, and steps in all, that are marked by it.
    """

    what: str
    n_long: int
    n_steps: int


class LongWaits(msgspec.Struct, frozen=True):
    """Few waits that hold much of the run's time, so that the median step misleads.

    Parameters
    ----------
    n_waits : int
        The fewest of the longest waits that hold 90 % of the time above the median wait, and
        those at least half as long.
    n_steps : int
        Of how many steps.
    wait_ns : int
        Their sum.
    typical_ns : int
        Their median.
    excess_fraction : float
        (mean - median) x steps, as a share of the run's wall time; above 0.1.
    period_steps : int or None
        Steps from one to the next where that is regular, else None.
    in_step : bool
        Whether the loading processes finish their batches together: about one step in as many as
        there are processes waits for them all, and those after it find theirs ready.
    coincidences : tuple of Coincidence
        What marks a fifth of their time or more, and other steps clearly less often; what
        explains most of their time first. None where workers in step explain them.
    """

    n_waits: int
    n_steps: int
    wait_ns: int
    typical_ns: int
    excess_fraction: float
    period_steps: int | None
    in_step: bool
    coincidences: tuple[Coincidence, ...]


class LoaderExposure(msgspec.Struct, frozen=True):
    """One loader of the training loop, and what of the wait was for it.

    The waits of all loaders add up to that of the whole run.

    Parameters
    ----------
    number : int or None
        As its process counts them; None for rounds whose loader is unknown.
    framework, kind, name : str
        Whose loader, its class, and what it is known by; ``""`` where unknown.
    workers, prefetch, threads : int
        Loading processes, batches that each may have ready, and threads beside the training loop.
    batch_size : int or None
        Samples of a batch.
    n_rounds, n_batches : int
        Rounds that brought a batch, and batches.
    wait_ns : int
        What the training loop waited for it.
    role : str
        ``"training"``, ``"validation"``, ``"test"``, ``"prediction"``, ``"evaluation"`` where it is
        one of these three and it is unknown which; ``""`` where unknown.
    restarts : bool
        Whether its workers were started again for further rounds.
    """

    number: int | None
    framework: str
    kind: str
    name: str
    workers: int
    prefetch: int
    threads: int
    batch_size: int | None
    n_rounds: int
    n_batches: int
    wait_ns: int
    role: str = ""
    restarts: bool = False
    JSON_KEYS: ClassVar = {
        "n_rounds": key("rounds"),
        "n_batches": key("batches"),
        "wait_ns": key("wait_s", "wait_ns"),
        "restarts": HIDDEN,
    }


class OtherLoop(msgspec.Struct, frozen=True):
    """A thread that waited for batches beside the training loop; in no other figure.

    Parameters
    ----------
    process, pid : str and int
        Name and number of its process.
    thread : str
        The name of the thread.
    n_waits, wait_ns : int
        How often and how long it waited.
    """

    process: str
    pid: int
    thread: str
    n_waits: int
    wait_ns: int
    JSON_KEYS: ClassVar = {
        "n_waits": key("waits"),
    }


class FoldedWaits(msgspec.Struct, frozen=True):
    """The batches of a long run before those that are kept one by one.

    Parameters
    ----------
    folded : Folded
        Their sums.
    all_wait_fraction : float or None
        Exposed share of these batches and of the kept ones together.
    """

    folded: Folded
    all_wait_fraction: float | None
    JSON_KEYS: ClassVar = {
        "folded": INLINE,
    }


class Exposure(msgspec.Struct, frozen=True):
    """Who was waited for, over one training process's run.

    Parameters
    ----------
    whole : PartExposure
        The whole measured run: all rounds, start-up and fill included.
    steady : PartExposure or None
        Deliveries of each round that trains after its start-up and fill, without the last call that
        finds no batch; None where the run was too short to have any.
    recurring : PartExposure or None
        Epochs of a script as a long training has them: the whole ones after the first, with what
        each of them starts and ends with. None where there is none, and of ``iobench profile``.
    validation : PartExposure or None
        Passes that validate, test or predict, in none of the two above; None where there are none,
        or nothing else.
    recurring_start_ns : int
        Waits of these epochs outside of their steady state.
    phases : tuple of Phase
        ``startup, fill, steady, drain``; they add up to ``whole``.
    long_waits : LongWaits or None
        Set where few long waits hold more than 10 % of the run.
    n_rounds : int
        Rounds measured.
    n_unfinished_rounds : int
        Of these, rounds without an end (the process was killed): taken to end with its last span.
    workers, prefetch : int
        Loading processes, and batches each may be ahead; without any, batches that threads of the
        training process keep ready. Of several loaders, those of the one that trains, or where
        it is unknown which does, of that with most batches.
    lost_spans : int
        Spans that could not be written or were torn.
    missing_workers : tuple of str
        Loading processes that left no span file; their batches' waits are ``unknown``.
    loaders : tuple of LoaderExposure
        By number.
    other_loops : tuple of OtherLoop
        Threads that waited as well: the training loop is the one that waited most often.
    n_failed_waits : int
        Waits that ended with an exception.
    rank : int
        Which training process.
    has_consumer : bool
        Whether a loader was asked for batches: without that, exposure is not defined.
    has_compute : bool
        False only where the run's emulated step was set to nothing.
    stopped : str
        Why recording stopped, and where to: ``"No space left on device in FOLDER"``; ``""`` where
        it did not.
    is_script : bool
        Whether a user's own script was recorded, of which the training loop is a part.
    job : JobTime or None
        Where the time of a script's process went, from its start to its end; None where that is
        not known.
    overhead_once_ns : int or None
        The most that starting to record took in one process, once; None where none measured it.
    day_nbytes : int or None
        What a day of spans takes at the pace of this run; None of less than a minute.
    spans_nbytes : int
        What the spans of the run take.
    keep_nbytes : int or None
        How many of them such a run keeps one by one; None where it does not say.
    folded : Folded or None
        Of a run too long to be kept whole: the sums of what was before, which are in nothing else.
    steps : StepFigures or None
        How many batches a step of the optimiser takes; None where nothing was delivered to train.
    """

    whole: PartExposure
    steady: PartExposure | None
    phases: tuple[Phase, ...]
    long_waits: LongWaits | None
    n_rounds: int
    n_unfinished_rounds: int
    workers: int
    prefetch: int
    lost_spans: int
    missing_workers: tuple[str, ...]
    loaders: tuple[LoaderExposure, ...] = ()
    other_loops: tuple[OtherLoop, ...] = ()
    n_failed_waits: int = 0
    rank: int = 0
    has_consumer: bool = True
    has_compute: bool = True
    stopped: str = ""
    is_script: bool = False
    job: JobTime | None = None
    overhead_once_ns: int | None = None
    day_nbytes: int | None = None
    spans_nbytes: int = 0
    keep_nbytes: int | None = None
    folded: Folded | None = None
    steps: StepFigures | None = None

    @property
    def n_folded(self) -> int:
        """Batches before all others, of which there are sums only."""
        return 0 if self.folded is None else self.folded.n_batches

    @property
    def all_wait_ns(self) -> int:
        """Waits for all batches, those of which there are sums only too."""
        return self.whole.wait_ns + (0 if self.folded is None else self.folded.wait_ns)

    @property
    def all_wall_ns(self) -> int:
        """The time of all batches, those of which there are sums only too."""
        return self.whole.wall_ns + (0 if self.folded is None else self.folded.wall_ns)

    @figure.named("folded")
    def folded_waits(self) -> FoldedWaits | None:
        """Batches of which there are sums only; then all else is of the kept ones."""
        if self.folded is None:
            return None
        wall_ns = self.all_wall_ns
        return FoldedWaits(self.folded, self.all_wait_ns / wall_ns if wall_ns else None)

    @figure.named("waits_ns")
    def waits_ns(self) -> tuple[int, ...] | None:
        """The wait of each delivered batch, in order; None where there are too many ranks."""
        waits = self.whole.waits_ns
        return waits if len(waits) == self.whole.n_batches else None

    @figure
    def job_ns(self) -> int | None:
        """From the start of its process to its end; None where that is not known."""
        return None if self.job is None else self.job.wall_ns

    @figure
    def loop_fraction(self) -> float | None:
        """Share of its process's time that the training loop is; None where it is not known."""
        if not self.job_ns:
            return None
        return min(self.whole.wall_ns / self.job_ns, 1.0)

    recurring: PartExposure | None = None
    validation: PartExposure | None = None
    recurring_start_ns: int = 0
    JSON_KEYS: ClassVar = {
        "whole": INLINE,
        "phases": keyed_by("phase"),
        "n_rounds": key("rounds"),
        "n_unfinished_rounds": key("unfinished_rounds"),
        "n_failed_waits": key("failed_waits"),
        "has_consumer": HIDDEN,
        "has_compute": HIDDEN,
        "stopped": HIDDEN,
        "is_script": HIDDEN,
        "day_nbytes": HIDDEN,
        "spans_nbytes": HIDDEN,
        "keep_nbytes": HIDDEN,
        "folded": HIDDEN,
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
