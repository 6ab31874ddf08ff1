"""The figures an analysis ends in: frozen values, exact to the nanosecond, without formatting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from iobench.recording.kinds import Kind, Trait, kind_named

if TYPE_CHECKING:
    from iobench.runs.contents import Summed

Window = Literal["recurring", "steady", "whole"]
"""Of which part of a run a figure is: see `Exposure`."""
PARTS: Final = (
    "imports", "initial_load", "stage_in", "train_compute", "train_wait", "validation_compute",
    "validation_wait", "checkpoint", "between", "shutdown",
)  # fmt: skip
BEFORE_FORWARD: Final = "loop before the forward pass"
"""What lies between loader and model where no generator does."""
ENDING: Final = "ending a loader's workers"
"""And what of that is of an iterator that was left, and not kept for further batches."""
LOADS: Final = ("initial_load", "stage_in", "train_wait", "validation_wait")
"""Parts that go into getting data."""
NEARLY: Final = 0.95
"""Training processes that ran for this share of the longest one's time ran as long."""

ITSELF: Final = "the loop itself"
HANDED: Final = "threads or processes of the script"
"""What brings a loop batches that asks no loader for them."""

SATURATED: Final = 0.85
"""CPUs busy for more than so much of the time that the loop computes have no time left;"""
WORTH_FRACTION: Final = 0.05
"""loading that takes more than so much of the time that they are busy then makes steps longer."""


class CpuCost(msgspec.Struct, frozen=True):
    """CPU time of a training process and its workers in the part judged, and of its CPUs.

    ``busy_fraction`` is of the CPUs that may be used, or of the cgroup's quota, while it computes;
    ``others_fraction`` of the time they were busy is with what is not of this job.
    """

    loading_ns: int
    total_ns: int
    busy_fraction: float
    others_fraction: float

    @property
    def slows_steps(self) -> bool:
        """Whether loading takes CPU time that computing waits for, which takes some itself."""
        share = self.loading_ns / max(self.total_ns, 1)
        loading, computing = share * (1 - self.others_fraction), 1 - share
        return self.busy_fraction > SATURATED and min(loading, computing) > WORTH_FRACTION


class StageExposure(msgspec.Struct, frozen=True):
    """One stage's work inside a window, and the part of it that the training loop waited for.

    ``0 <= exposed_ns <= busy_ns`` and ``hidden_ns + exposed_ns == busy_ns``, exactly.
    """

    stage: str  # ``kind`` or ``kind:label``
    busy_ns: int  # self time of its spans; of waiting itself (worker_gap, ...) the exposed time
    hidden_ns: int  # that cost the training loop nothing
    exposed_ns: int  # that the training loop waited for
    nbytes: int | None  # handed on; None where a span does not say
    n_spans: int  # samples or batches timed, a summed one once per piece
    cpu_ns: int | None  # of its threads; None where a span does not carry it

    @property
    def kind(self) -> Kind:
        """The kind of its spans."""
        kind = kind_named(self.stage)
        assert kind is not None
        return kind

    @property
    def busy_bytes_per_s(self) -> float | None:
        """Bytes handed on over the time it was busy, of one process or thread."""
        return _per_s(self.nbytes, self.busy_ns)


class ComputeStage(msgspec.Struct, frozen=True):
    """One stage of the training loop itself inside a window: ``forward``, ``backward``, ..."""

    stage: str
    busy_ns: int  # outside of waits
    n_spans: int


class StepFigures(msgspec.Struct, frozen=True):
    """How many batches a step of the optimiser takes; None where that is not known."""

    n_steps: int | None = None  # whose batches were all delivered
    batches_per_step: int | None = None  # of most steps, the last one of an epoch may take fewer


class StepStatistics(msgspec.Struct, frozen=True):
    """A time that each of several steps took, at least one; a deviation has at least two."""

    n_steps: int
    min_ns: int
    mean_ns: int
    median_ns: int
    max_ns: int
    stdev_ns: int | None


class DecodedChunkFigures(msgspec.Struct, frozen=True):
    """What loading decoded of chunked files, as counted where it was decoded."""

    nbytes: int  # of whole chunks, each as often as it was decoded
    used_nbytes: int  # of the parts that samples took, also where another one had decoded them

    @property
    def per_used(self) -> float | None:
        """Bytes decoded for each one used; None where none was used."""
        return self.nbytes / self.used_nbytes if self.used_nbytes else None


class PartFigures(msgspec.Struct, frozen=True):
    """What JSON has of a part of a run."""

    wall_ns: int  # wait, between, own and compute
    wait_ns: int
    own_ns: int
    compute_ns: int
    batches: int
    samples: int | None
    samples_per_s: float | None
    wait_fraction: float | None
    exposed_ns: dict[str, int]  # by stage; adds up to wait_ns
    # From deliveries to forward passes, by the generator there; None where it is not known
    between_ns: Mapping[str, int | None]


class PartExposure(msgspec.Struct, frozen=True):
    """Some deliveries of a run, summed: the whole run, its epochs after the first, or steady state.

    ``wait_ns``, ``own_ns``, ``compute_ns`` and all of ``between_ns`` add up to ``wall_ns``,
    ``exposed_ns`` of stages to ``wait_ns``.
    """

    wall_ns: int  # from being asked for each delivery to the next one, or the round's end
    wait_ns: int  # blocked in ``next()``, a round's last call included
    compute_ns: int  # everything else
    n_batches: int
    n_samples: int | None  # None where neither sample nor batch size is known
    nbytes: int | None  # None where a delivery does not say
    stages: tuple[StageExposure, ...]  # largest exposed time first, then largest busy time
    compute_stages: tuple[ComputeStage, ...]  # between deliveries, as far as there are spans
    # The waits of each whole step of the optimiser, of each batch where its batches are unknown
    wait: StepStatistics | None
    # Read by loading processes, by whatever code, cached or not; of mappings what stages report;
    # None, too, where it may be what they were sent through pipes
    read_nbytes: int | None
    cold_fraction: float | None  # bytes from the device over bytes read
    # Share that recording took of the loop's time or its workers', whichever is larger, as they
    # measured it, else by what a span costs
    overhead_fraction: float | None
    estimated_fraction: float = 0.0  # of batches whose stages are in the proportions of others
    decoded: DecodedChunkFigures | None = None  # None where it was not counted, or not all
    step: StepStatistics | None = None  # the time of each step; None where that is unknown
    # Computed, by stage in a whole step of the optimiser; empty where unknown
    step_compute_ns: Mapping[str, float] = {}
    own_ns: int = 0  # of recording, between waits and what is computed
    # From deliveries to forward passes what no span of the loop names, by the generator there
    between_ns: Mapping[str, int | None] = {}

    @property
    def figures(self) -> PartFigures:
        """What JSON has of it."""
        return PartFigures(
            self.wall_ns, self.wait_ns, self.own_ns, self.compute_ns, self.n_batches,
            self.n_samples, self.samples_per_s, self.wait_fraction, self.exposed_ns,
            self.between_ns,
        )  # fmt: skip

    @property
    def compute_rest_ns(self) -> int:
        """Compute that no stage of the training loop names."""
        return self.compute_ns - sum(row.busy_ns for row in self.compute_stages)

    @property
    def wait_fraction(self) -> float | None:
        """Share of the time but recording's spent waiting; None for a window without time."""
        return _share(self.wait_ns, self.wall_ns - self.own_ns)

    @property
    def accelerator_utilisation(self) -> float | None:
        """Compute over wall but recording's; None for a window without time."""
        return _share(self.compute_ns, self.wall_ns - self.own_ns)

    @property
    def exposed_ns(self) -> dict[str, int]:
        """Exposed time by stage, every stage with a row in it; adds up to ``wait_ns``."""
        return {row.stage: row.exposed_ns for row in self.stages}

    @property
    def samples_per_s(self) -> float | None:
        """Delivered samples over wall time; None where either is unknown."""
        return _per_s(self.n_samples, self.wall_ns)

    @property
    def bytes_per_s(self) -> float | None:
        """Delivered bytes over wall time; None where either is unknown."""
        return _per_s(self.nbytes, self.wall_ns)

    @property
    def used_nbytes(self) -> int | None:
        """Bytes of files that samples took, whatever preprocessing leaves of them."""
        if self.nbytes is None:
            return None
        handed_on = sum(
            row.nbytes or 0 for row in self.stages if Trait.TELLS_READ in row.kind.traits
        )
        taken = handed_on if self.decoded is None else self.decoded.used_nbytes
        return max(self.nbytes, taken)

    @property
    def read_per_byte(self) -> float | None:
        """Bytes read over bytes used; None where either is unknown."""
        if self.read_nbytes is None or not self.used_nbytes:
            return None
        return self.read_nbytes / self.used_nbytes


def _share(part_ns: int, all_ns: int) -> float | None:
    return part_ns / all_ns if all_ns else None


def _per_s(amount: int | None, ns: int) -> float | None:
    return None if amount is None or not ns else amount * 1_000_000_000 / ns


class LongWaits(msgspec.Struct, frozen=True):
    """Few waits that hold much of the run's time, so that the median step misleads."""

    n_waits: int  # the fewest with 90 % of the time above the median, and those half as long
    wait_ns: int
    typical_ns: int  # their median


class LoaderExposure(msgspec.Struct, frozen=True):
    """One loader of the training loop, and what of the wait was for it; "" where unknown."""

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


class JobPart(msgspec.Struct, frozen=True):
    """One part of a job's time; the parts add up to the job's, exactly.

    ``imports`` (the start of the interpreter among them), ``initial_load`` (reading before the
    first loader is asked), ``stage_in`` (files copied nearer), ``train_compute``, ``train_wait``,
    ``validation_compute``, ``validation_wait`` (of tests and predictions too), ``checkpoint``,
    ``between`` (outside of loops: set-up, and what is done between and after them), ``shutdown``.
    """

    part: str
    ns: int
    nbytes: int | None = None  # read for it, written in it, or delivered to the loop


class JobTime(msgspec.Struct, frozen=True):
    """Where the time of a training process went, from its start to its end, as far as known."""

    wall_ns: int
    parts: tuple[JobPart, ...]  # every part once; those that were not met have no time
    bound_by: str | None  # the part that holds most; None where most follows the last span
    unknown: tuple[str, ...] = ()  # what is unknown, and where its time stands
    reload_ns: int = 0  # of ``between``: reading data, after the first loader was asked
    unfed_fraction: float = 0.0  # of the optimisers' steps: outside of passes over loaders
    unjoined_ns: int | None = None  # between steps that nobody knows the waits of
    comm_ns: int = 0  # of computing: collective operations, waiting for other ranks among it
    rank: int = 0  # of a job, the one whose times these are
    n_ranks: int = 1

    def part(self, name: str) -> JobPart:
        """Return one part by its name."""
        return next(each for each in self.parts if each.part == name)

    @property
    def load_ns(self) -> int:
        """Time that goes into getting data: that of `LOADS`, and reading outside of loops."""
        return self.reload_ns + sum(each.ns for each in self.parts if each.part in LOADS)

    def share(self, spent_ns: int) -> float | None:
        """Return the share of its time that this is; None without time."""
        return spent_ns / self.wall_ns if self.wall_ns else None


def job_of_ranks(ranks: Sequence[JobTime]) -> JobTime:
    """Return where the time of a job went: that of one of its training processes.

    So no two clocks are compared. Of those that ran longest it is the one that spent most on
    getting data: where they take their steps together, the others waited for it as they computed.
    Bytes are those of all of them.
    """
    least_ns = NEARLY * max(each.wall_ns for each in ranks)
    longest = max(
        (each for each in ranks if each.wall_ns >= least_ns),
        key=lambda each: (each.load_ns, each.wall_ns, -each.rank),
    )
    parts = tuple(
        replace(part, nbytes=_sum([each.part(part.part).nbytes for each in ranks]))
        for part in longest.parts
    )
    unknown = [*dict.fromkeys(text for each in ranks for text in each.unknown)]
    return replace(longest, parts=parts, unknown=tuple(unknown), n_ranks=len(ranks))


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class Hang(msgspec.Struct, frozen=True):
    """The wait that a job ended in, and which of its workers finished nothing meanwhile."""

    wait_ns: int
    idle: tuple[tuple[str, int], ...]  # name and number of each process
    is_deadlock: bool  # maybe of a lock held at a fork: none of its workers ever finished anything


class Exposure(msgspec.Struct, frozen=True):
    """Who was waited for, over one training process's run.

    Exposure is not defined without ``has_consumer``: no loader was asked for batches, or how they
    come to the thread that trains was not recorded.
    """

    whole: PartExposure  # all rounds, start-up and fill included
    # Deliveries of rounds that train after their start-up and fill, without the call that ends them
    steady: PartExposure | None
    startup_ns: int  # each round's ``iter()`` and first delivery, of those that train
    long_waits: LongWaits | None  # where few waits hold more than 10 % of the run
    n_rounds: int
    workers: int  # of the loader that trains, else of that with most batches
    prefetch: int  # batches each may be ahead; without workers, that threads keep ready
    lost_spans: int  # that could not be written or were torn
    missing_workers: tuple[str, ...]  # that left no span file; waits for them are ``unknown``
    loaders: tuple[LoaderExposure, ...] = ()
    n_failed_waits: int = 0  # that ended with an exception
    rank: int = 0
    has_consumer: bool = True
    # Between steps of unknown waits: no loader was asked, or others hand batches on
    unjoined_ns: int | None = None
    blocked_ns: int = 0  # between its stages, for other threads or processes
    is_handed: bool = False
    has_compute: bool = True  # False only where the emulated step was set to nothing
    stopped: str = ""  # why recording stopped, and where to
    unrecorded: str = ""  # why no process of a command recorded anything
    hang: Hang | None = None  # where it ended in a long wait without a batch
    is_script: bool = False
    job: JobTime | None = None  # where the time of a script's process went
    overhead_once_ns: int | None = None  # the most that starting to record took in one process
    summed: Summed | None = None  # of a long run: sums of what was before, in nothing else
    steps: StepFigures | None = None  # None where nothing was delivered to train on
    # Epochs of a script as a long training has them: the whole ones after the first
    recurring: PartExposure | None = None
    validation: PartExposure | None = None  # passes that validate, test or predict
    recurring_start_ns: int = 0  # waits of these epochs outside of their steady state
    waits_ns: tuple[int, ...] = ()  # of every delivered batch, in order
    cpus: CpuCost | None = None  # what loading takes of CPUs in the part judged
    n_initial: int = 0  # batches taken before the first step, to be kept; in no other figure
    initial_ns: int = 0  # and what was waited for them

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

    @property
    def asks_loaders(self) -> bool:
        """Whether loaders brought batches: not its own reads, or threads of the script."""
        return any(each.name not in (ITSELF, HANDED) and each.n_batches for each in self.loaders)

    @property
    def loop_fraction(self) -> float | None:
        """Share of its process's time that the training loop is; None where it is not known."""
        if self.job is None or not self.job.wall_ns:
            return None
        return min(self.all_wall_ns / self.job.wall_ns, 1.0)

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
