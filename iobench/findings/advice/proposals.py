"""What advice is, as JSON has it: changes with their gain and price, and reasons against others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec.structs import asdict

from iobench.report import units

if TYPE_CHECKING:
    from iobench.analysis.epochs import BreakEven
    from iobench.findings.free_data import FreeData

Settings: TypeAlias = Mapping[str, str | int]
"""As the fields of a profile's configuration are called; more where only a script has it."""


class Lever(Enum):
    """What may be changed."""

    FORMAT = "format"  # samples finished beforehand, in a container
    LOADER = "loader"  # the fast one: threads fill batches ahead, in place
    WORKERS = "workers"
    PREFETCH = "prefetch"
    KEEP_WORKERS = "keep workers"  # from one epoch to the next
    ORDER = "order"  # batches of what is ready first: none waits for a slow one
    CACHE = "cache"  # files in the page cache, or copied once to storage of the node itself
    CHUNKS = "chunks"  # that hold what a sample needs and no more
    CODEC = "codec"  # fewer bytes from storage for more decoding, or the reverse
    BETWEEN = "between"  # what the loop's thread does to a batch before the forward pass
    SAMPLER = "sampler"  # what chooses the samples of a batch, in the training loop


CAUSES: Final = (Lever.KEEP_WORKERS, Lever.ORDER, Lever.CHUNKS, Lever.SAMPLER, Lever.BETWEEN)
"""What removes a cause of waiting stands before what loads faster around it."""


class Evidence(Enum):
    """What a predicted gain rests on: as JSON has it, and in words."""

    _value_: str
    MEASURED = "measured", "as measured here"
    REPLAYED = "replayed", "by replay"
    BOUND = "bound", "at most, to be measured"
    UNKNOWN = "unknown", "an unknown share, to be tried"

    def __init__(self, word: str, text: str) -> None:
        self._value_, self.text = word, text


def signed(value: float | None) -> str:
    """Return a share that may be below 0, in per cent."""
    below = value is not None and value < 0
    return f"-{units.fraction(-(value or 0.0))}" if below else units.fraction(value)


class Reason(Enum):
    """Why a change is not proposed: as JSON has it, a sentence, and how its figures are written."""

    NO_MORE_CPUS = "no more CPUs", "CPUs to use: {1}; each already has a worker.", units.number
    OWN_ORDER = "own order", "this source sets the order of its samples and runs its own workers."
    CACHED_ALREADY = "cached already", "this run already read from memory."
    TOO_LARGE = "too large", "needs {0}; {1} is available.", units.nbytes
    CHUNKS_FIT = "chunks fit", "{0} bytes read and {1} decoded for each byte used.", units.ratio
    GAINS_NOTHING = "gains nothing", "predicted to save {0}: too little, or within its error."
    TAKES_LONGER = "takes longer", "predicted to take {0} longer."
    NOT_WAITED_FOR = "not waited for", "the training loop hardly waits for it: {0} at most."

    def __init__(self, word: str, text: str, written: Callable[[float], str] = signed) -> None:
        self._value_, self.text, self.written = word, text, written


class Gain(msgspec.Struct, frozen=True):
    """What a change saves, as shares of the time a sample takes now."""

    evidence: Evidence
    saved_fraction: float | None  # None where only a bound is known
    low_fraction: float | None  # in another run, with what is known of errors; of a bound 0
    high_fraction: float | None  # None where too few batches were measured for an interval
    is_proven: bool | None = None  # noise does not explain it

    @property
    def expected(self) -> float:
        """What is said of it and what to rank it by: the gain, or how much waiting may go."""
        saved = self.high_fraction if self.saved_fraction is None else self.saved_fraction
        return saved or 0.0


class Cost(msgspec.Struct, frozen=True):
    """What a change takes; None is unknown, 0 is nothing."""

    spent_s: float | None = 0.0  # once, before the epochs: to convert or to copy
    disk_nbytes: int | None = 0
    memory_nbytes: int | None = 0


NO_COST: Final = Cost()


class AdvisedChange(Gain, frozen=True, kw_only=True):
    """Something to change, with its gain and its price."""

    levers: tuple[Lever, ...]
    title: str
    settings: Settings
    cost: Cost = NO_COST
    saved_s: float | None = None  # of an epoch, by `expected`
    break_even: BreakEven | None = None  # None for what is not spent for once
    commands: tuple[str, ...] = ()  # that make it, and for a profile those that measure it

    @property
    def rank(self) -> tuple[bool, int, bool, bool, float]:
        """Where it stands among others, the lowest first: of those that are not proven, causes."""
        if self.is_proven:
            return False, 0, False, False, -self.expected
        is_cause, is_bound = self.levers[0] in CAUSES, self.evidence is Evidence.BOUND
        sureness = 0 if self.evidence is Evidence.MEASURED else 1 + is_bound
        is_known = self.evidence is not Evidence.UNKNOWN
        return True, sureness, not is_cause, is_known, -self.expected


class RuledOut(msgspec.Struct, frozen=True):
    """Something not proposed, why, and the figures that say so."""

    levers: tuple[Lever, ...]
    title: str
    settings: Settings
    reason: Reason
    figures: tuple[float | None, ...]  # of its sentence: bytes, CPUs, epochs or shares
    sentence: str


def change(
    levers: tuple[Lever, ...], settings: Settings, gain: Gain, cost: Cost = NO_COST
) -> AdvisedChange:
    """Return something to change."""
    title = title_of(levers, settings)
    return AdvisedChange(**asdict(gain), levers=levers, title=title, settings=settings, cost=cost)


def ruled_out(
    levers: tuple[Lever, ...], settings: Settings, reason: Reason, *figures: float | None
) -> RuledOut:
    """Return something not proposed, with the sentence of its reason."""
    written = (units.UNKNOWN if each is None else reason.written(each) for each in figures)
    sentence, title = reason.text.format(*written), title_of(levers, settings)
    return RuledOut(levers, title, settings, reason, figures, sentence)


TITLES: Final = (
    (Lever.FORMAT, "store", "the store {store}"),
    (Lever.FORMAT, "", "finished samples as {format}"),
    (Lever.LOADER, "framework", "{framework} as the loader"),
    (Lever.LOADER, "", "{pipeline} as the loader"),
    (Lever.WORKERS, "", "{workers} worker{s}"),
    (Lever.PREFETCH, "", "a prefetch of {prefetch} batches"),
    (Lever.KEEP_WORKERS, "passes", "one loader for every {passes}, with its workers kept"),
    (Lever.KEEP_WORKERS, "", "one loader for all epochs, with its workers kept"),
    (Lever.ORDER, "", "batches of what is ready first"),
    (Lever.CACHE, "stage", "files staged to {stage}"),
    (Lever.CACHE, "", "files read into the page cache beforehand"),
    (Lever.CHUNKS, "", "chunks that hold one sample each"),
    (Lever.CODEC, "", "stored as {format}"),
    (Lever.BETWEEN, "", "nothing left of {between}"),
    (Lever.SAMPLER, "", "a sampler that takes no time"),
)
"""What a change of a lever is called: the first row whose setting it has, or that needs none."""


def title_of(levers: tuple[Lever, ...], settings: Settings) -> str:
    """Return what a change is called, in a few words."""
    known = {"", *settings}
    titles = [
        next(text for each, setting, text in TITLES if each is lever and setting in known)
        for lever in levers
    ]
    plural = "" if settings.get("workers") == 1 else "s"
    title = " and ".join(titles).format_map({**settings, "s": plural})
    return title.replace("native as the", "the fast")


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made in turns with the baseline: shares of a sample's time saved."""

    title: str
    settings: Settings
    rounds: int
    saved_fraction: float
    low_fraction: float | None
    high_fraction: float | None
    band_low_fraction: float | None  # of the unchanged baseline, run a second time
    band_high_fraction: float | None
    is_noise: bool | None  # whether it cannot be distinguished from that
    staging_s: float | None = None  # what the first turn copied for


class AdviceOutcome(Enum):
    """What comes of looking for advice."""

    NOTHING_TO_GAIN = "nothing to gain"  # the loop hardly waits, and nothing is proposed
    WITHHELD = "withheld"  # there is no replay, or it misses this run's own time
    NOTHING_FOUND = "nothing found"  # it waits, but nothing is predicted to help
    ADVICE = "advice"


class AdviceBaseline(msgspec.Struct, frozen=True, kw_only=True):
    """What everything is compared with."""

    label: str
    format: str | None
    sample_ns: float | None
    first_epoch_s: float | None  # over all samples
    epoch_s: float | None  # each later one
    wait_fraction: float | None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What would help a run, and what it costs."""

    run: str
    outcome: AdviceOutcome
    about: str  # what was measured, in a sentence
    sentence: str  # what comes of it all
    baseline: AdviceBaseline
    replay_error_fraction: float | None = None  # on the unmodified baseline
    changes: tuple[AdvisedChange, ...] = ()  # surest first
    to_measure: tuple[AdvisedChange, ...] = ()  # bounds, and what too few batches show
    ruled_out: tuple[RuledOut, ...] = ()
    tried: tuple[TriedChange, ...] = ()
    free_data: FreeData | None = None  # steps/s predicted and obtained, of a script tried so
    not_tried: str | None = None  # why not, though that was requested
    schema_version: int = 3  # raised when a key changes its meaning or goes
