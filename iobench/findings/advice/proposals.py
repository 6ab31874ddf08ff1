"""What advice is, as JSON has it: changes with their gain and price, and reasons against others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec.structs import asdict

from iobench.report import units

if TYPE_CHECKING:
    from iobench.analysis.break_even import BreakEven
    from iobench.analysis.intervals import RoundRatio
    from iobench.findings.faster_stages import Payoffs

ADVICE_VERSION: Final = 2
"""Raised when a key changes its meaning or goes; new keys do not raise it."""
Settings: TypeAlias = Mapping[str, str | int]
"""As the fields of a profile's configuration are called; more where only a script has it."""


class Lever(Enum):
    """What may be changed."""

    FORMAT = "format"
    """Samples finished beforehand, in a container that was measured or can be."""
    LOADER = "loader"
    """The fast loader: threads that fill batches ahead, without copies between processes."""
    WORKERS = "workers"
    PREFETCH = "prefetch"
    KEEP_WORKERS = "keep workers"
    """Workers that live on from one epoch to the next."""
    CACHE = "cache"
    """The files in the page cache, or copied once to storage of the node itself."""
    CHUNKS = "chunks"
    """Chunks that hold what a sample needs and no more."""
    CODEC = "codec"
    """Fewer bytes from storage for more decoding, or the reverse."""


OF_STORES: Final = {Lever.FORMAT, Lever.CHUNKS, Lever.CODEC}
"""What needs a conversion."""


class Evidence(Enum):
    """What a predicted gain rests on."""

    MEASURED = "measured"
    """It was run, in turns with the baseline."""
    REPLAYED = "replayed"
    """The loader's own rule over stage times that were measured."""
    BOUND = "bound"
    """It cannot gain more; what it does gain has to be measured."""


class Reason(Enum):
    """Why a change is not proposed."""

    IN_USE = "in use"
    NO_MORE_CPUS = "no more CPUs"
    CACHED_ALREADY = "cached already"
    TOO_LARGE = "too large"
    SIZE_UNKNOWN = "size unknown"
    GAINS_NOTHING = "gains nothing"
    WITHIN_NOISE = "within noise"
    OWN_ORDER = "own order"
    NOT_WAITED_FOR = "not waited for"
    NO_WORKERS = "no workers"
    READS_WHAT_IT_USES = "reads what it uses"
    CHUNKS_FIT = "chunks fit"
    NO_SOURCE = "no source"
    NEAR_ALREADY = "near already"
    NOWHERE_NEAR = "nowhere near"
    TOO_FEW_EPOCHS = "too few epochs"


def signed(value: float | None) -> str:
    """Return a share that may be below 0, in per cent."""
    below = value is not None and value < 0
    return f"-{units.fraction(-(value or 0.0))}" if below else units.fraction(value)


AGAINST: Final[Mapping[Reason, str]] = {
    Reason.IN_USE: "already in use.",
    Reason.NO_MORE_CPUS: "CPUs to use: {1}; each already has a worker.",
    Reason.CACHED_ALREADY: "this run already read everything from memory.",
    Reason.TOO_LARGE: "needs {0}; {1} is available.",
    Reason.SIZE_UNKNOWN: "unknown: the run did not record the sizes that this needs.",
    Reason.GAINS_NOTHING: "predicted to save {0}.",
    Reason.WITHIN_NOISE: (
        "saved {0} when it was measured, but with this much noise it may save nothing; measure "
        "more batches."
    ),
    Reason.OWN_ORDER: "this source sets the order of its samples and runs its own workers.",
    Reason.NOT_WAITED_FOR: (
        "the training loop hardly waits for what this would remove: it could save {0} at most."
    ),
    Reason.NO_WORKERS: "the training loop loads its own data, so nothing can prefetch.",
    Reason.READS_WHAT_IT_USES: (
        "{0} are read for {1} used; how many bytes are decoded was not counted."
    ),
    Reason.CHUNKS_FIT: (
        "{0} bytes are read and {1} decoded for each byte used: the chunks fit the samples."
    ),
    Reason.NO_SOURCE: (
        "needs a conversion, but this run has only finished stores; name their source as well, as "
        "in iobench profile SOURCE STORE --format zarr:codec=blosc-lz4."
    ),
    Reason.NEAR_ALREADY: "the files are not on a shared file system.",
    Reason.NOWHERE_NEAR: "none of $SLURM_TMPDIR, $TMPDIR and /dev/shm is local to this machine.",
    Reason.TOO_FEW_EPOCHS: (
        "it pays for itself after about {0} epochs of {1}; pass --epochs for a longer training."
    ),
}
"""The reasons with their figures, as sentences."""
FIGURES: Final[Mapping[Reason, Callable[[float], str]]] = {
    Reason.NO_MORE_CPUS: units.number,
    Reason.TOO_LARGE: units.nbytes,
    Reason.READS_WHAT_IT_USES: units.nbytes,
    Reason.CHUNKS_FIT: units.ratio,
    Reason.TOO_FEW_EPOCHS: units.epochs,
}
"""How figures of reasons are written; those of others are shares."""


class Gain(msgspec.Struct, frozen=True):
    """What a change saves, as shares of the time a sample takes now.

    Parameters
    ----------
    saved_fraction : float or None
        None where only a bound is known.
    low_fraction, high_fraction : float or None
        Between which it lies in another run, with what is known of errors; None where too few
        batches were measured for one. Of a bound 0 and the bound.
    is_proven : bool or None
        Whether noise does not explain it: what is unknown is not proven.
    waiting_fraction : float or None
        Of a bound, the part that cannot exceed the loop's waiting. The rest would be training steps
        that all become as short as their shortest tenth, which is not proven.
    """

    evidence: Evidence
    saved_fraction: float | None
    low_fraction: float | None
    high_fraction: float | None
    is_proven: bool | None = None
    waiting_fraction: float | None = None

    @property
    def expected(self) -> float:
        """What is said of it and what to rank it by: the gain, or how much waiting may go."""
        if self.saved_fraction is not None:
            return self.saved_fraction
        return (self.high_fraction if self.waiting_fraction is None else self.waiting_fraction) or 0


class Cost(msgspec.Struct, frozen=True):
    """What a change takes; None is unknown, 0 is nothing.

    ``convert_s`` and ``stage_s`` are spent once; ``at_least`` is whether the first is only what
    making the samples takes.
    """

    convert_s: float | None = 0.0
    at_least: bool = False
    disk_nbytes: int | None = 0
    memory_nbytes: int | None = 0
    stage_s: float | None = 0.0

    @property
    def spent_s(self) -> float | None:
        """What is spent once, before the epochs."""
        unknown = self.convert_s is None or self.stage_s is None
        return None if unknown else (self.convert_s or 0.0) + (self.stage_s or 0.0)


NO_COST: Final = Cost()


class AdvisedChange(Gain, frozen=True, kw_only=True):
    """Something to change, with its gain and its price.

    Parameters
    ----------
    saved_s : float or None
        Seconds an epoch is shorter, by `expected`; None where an epoch is unknown.
    break_even : BreakEven or None
        None for what is not spent for once.
    commands : tuple of str
        The lines that make it, and for a profile those that measure it.
    """

    levers: tuple[Lever, ...]
    title: str
    settings: Settings
    cost: Cost = NO_COST
    saved_s: float | None = None
    break_even: BreakEven | None = None
    commands: tuple[str, ...] = ()

    def against(
        self, reason: Reason, needed: float | None = None, available: float | None = None
    ) -> RuledOut:
        """Return the same with a reason against it."""
        return ruled_out(self.levers, self.settings, reason, needed, available)


class RuledOut(msgspec.Struct, frozen=True):
    """Something not proposed, why, and the figures that say so.

    ``needed`` and ``available`` are bytes, CPUs, epochs, or a gain and its error.
    """

    levers: tuple[Lever, ...]
    title: str
    settings: Settings
    reason: Reason
    needed: float | None
    available: float | None
    sentence: str


def change(
    levers: tuple[Lever, ...], settings: Settings, gain: Gain, cost: Cost = NO_COST
) -> AdvisedChange:
    """Return something to change."""
    title = title_of(levers, settings)
    return AdvisedChange(**asdict(gain), levers=levers, title=title, settings=settings, cost=cost)


def ruled_out(
    levers: tuple[Lever, ...],
    settings: Settings,
    reason: Reason,
    needed: float | None = None,
    available: float | None = None,
) -> RuledOut:
    """Return something not proposed, with the sentence of its reason."""
    written = FIGURES.get(reason, signed)
    figures = (units.UNKNOWN if each is None else written(each) for each in (needed, available))
    sentence = AGAINST[reason].format(*figures)
    title = title_of(levers, settings)
    return RuledOut(levers, title, settings, reason, needed, available, sentence)


def title_of(levers: tuple[Lever, ...], settings: Settings) -> str:
    """Return what a change is called, in a few words."""
    return " and ".join(_title(lever, settings) for lever in levers)


def _title(lever: Lever, settings: Settings) -> str:
    match lever:
        case Lever.FORMAT if "store" in settings:
            return f"the store {settings['store']}"
        case Lever.FORMAT:
            return f"finished samples as {settings.get('format', 'a store')}"
        case Lever.LOADER if "framework" not in settings:
            return f"the {settings.get('pipeline')} pipeline"
        case Lever.LOADER:
            framework = settings["framework"]
            return "the fast loader" if framework == "native" else f"{framework} as the loader"
        case Lever.WORKERS:
            number = settings.get("workers", settings.get("num_workers"))
            return f"{number} worker{'s' * (number != 1)}"
        case Lever.PREFETCH:
            return (
                f"a prefetch of {settings.get('prefetch', settings.get('prefetch_factor'))} batches"
            )
        case Lever.KEEP_WORKERS if "made" in settings:
            return "one loader for all epochs, with its workers kept"
        case Lever.KEEP_WORKERS:
            return "workers kept between epochs"
        case Lever.CACHE if "stage" in settings:
            return f"files staged to {settings['stage']}"
        case Lever.CACHE:
            return "files read into the page cache beforehand"
        case Lever.CHUNKS:
            return "chunks that hold one sample each"
        case Lever.CODEC:
            stored = settings.get("codec") or settings.get("dtype")
            return f"stored as {stored}" if stored else "another codec"


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was really made, in turns with the baseline: shares of a sample's time saved.

    Parameters
    ----------
    saved_fraction, low_fraction, high_fraction : float or None
        What it saved, and with 95 % between which; unknown of fewer than six rounds.
    band_low_fraction, band_high_fraction : float or None
        Between which the unchanged baseline saved when it was run again.
    is_noise : bool or None
        Whether the change cannot be distinguished from that.
    predicted_fraction : float or None
        None where only a bound was predicted, which then is ``predicted_high_fraction``.
    staging_s, predicted_staging_s : float or None
        Of staging, what the first turn copied for, and what was predicted of it.
    """

    title: str
    settings: Settings
    rounds: int
    saved_fraction: float
    low_fraction: float | None
    high_fraction: float | None
    band_low_fraction: float | None
    band_high_fraction: float | None
    is_noise: bool | None
    predicted_fraction: float | None
    predicted_low_fraction: float | None
    predicted_high_fraction: float | None
    staging_s: float | None = None
    predicted_staging_s: float | None = None

    @classmethod
    def of(
        cls, change: AdvisedChange, ratio: RoundRatio, staging_s: float | None = None
    ) -> TriedChange:
        """Return a change with what came of it: its time a sample over that of the baseline."""

        def saved(quotient: float | None) -> float | None:
            return None if quotient is None else 1 - quotient

        return cls(
            title=change.title,
            settings=change.settings,
            rounds=ratio.n_rounds,
            saved_fraction=1 - (ratio.change.value or 1.0),
            low_fraction=saved(ratio.change.high),
            high_fraction=saved(ratio.change.low),
            band_low_fraction=saved(ratio.again.high),
            band_high_fraction=saved(ratio.again.low),
            is_noise=ratio.is_noise,
            predicted_fraction=change.saved_fraction,
            predicted_low_fraction=change.low_fraction,
            predicted_high_fraction=change.high_fraction,
            staging_s=staging_s,
            predicted_staging_s=change.cost.stage_s or None,
        )


class AdviceOutcome(Enum):
    """What comes of looking for advice."""

    NOTHING_TO_GAIN = "nothing to gain"
    """The training loop hardly waits, and nothing is proposed."""
    WITHHELD = "withheld"
    """The replay misses this run's own time."""
    OPAQUE = "opaque"
    """Nobody saw who made the batches."""
    NO_SINGLE_STAGE = "no single stage"
    """Only several stages together gain: no one of them is worth speeding up."""
    NOTHING_FOUND = "nothing found"
    """It waits, but nothing that is known to iobench is predicted to help."""
    ADVICE = "advice"


class AdviceBaseline(msgspec.Struct, frozen=True, kw_only=True):
    """What everything is compared with; ``epoch_s`` is an epoch over all samples now."""

    label: str
    format: str | None
    framework: str | None
    pipeline: str | None
    workers: int
    prefetch: int
    batch_size: int | None
    sample_ns: float | None
    epoch_s: float | None
    wait_fraction: float | None
    hidden_fraction: float | None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What would help a run, and what it costs.

    Parameters
    ----------
    run : str
        The run directory.
    about : str
        What was measured, in a sentence.
    sentence : str
        What comes of it all.
    summed_batches : int
        Batches besides those that it is about, of which there are sums only.
    replay_error_fraction : float or None
        Of the replay on the unmodified baseline; None where it cannot be replayed.
    payoffs : Payoffs or None
        What faster stages would gain.
    changes : tuple of AdvisedChange
        Best first.
    to_measure : tuple of AdvisedChange
        Of which only a bound is known, or what too few batches tell; the largest first.
    tried : tuple of TriedChange
        What came of trying the best changes.
    not_tried : str or None
        Why none was tried, though that was requested.
    """

    run: str
    is_script: bool
    outcome: AdviceOutcome
    about: str
    sentence: str
    batches: int
    summed_batches: int
    baseline: AdviceBaseline
    replay_error_fraction: float | None = None
    payoffs: Payoffs | None = None
    changes: tuple[AdvisedChange, ...] = ()
    to_measure: tuple[AdvisedChange, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    tried: tuple[TriedChange, ...] = ()
    not_tried: str | None = None
    schema_version: int = ADVICE_VERSION
