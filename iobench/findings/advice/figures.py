"""What advice is made of: ways of loading that were measured, changes, their gain and price."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import msgspec

from iobench.analysis.diagnosis import hidden_fraction
from iobench.json_keys import HIDDEN, INLINE, figure, key
from iobench.runs.run_facts import RunFacts

if TYPE_CHECKING:
    from iobench.analysis.break_even import BreakEven
    from iobench.analysis.exposure_figures import PartExposure, Window
    from iobench.analysis.intervals import RoundRatio, StepSums
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.analysis.replay.replay import Machine
    from iobench.findings.advice.levers import Candidate, RuledOut
    from iobench.findings.faster_stages import Payoffs


class StoreProbe(msgspec.Struct, frozen=True):
    """The store a way of loading reads: part of a dataset, converted.

    ``target`` is how it was named, where it was there and was given or found; ``path`` where it
    lies.
    """

    n_samples: int
    nbytes: int
    convert_s: float | None
    n_samples_all: int
    target: str | None = None
    path: str | None = None
    JSON_KEYS: ClassVar = {
        "target": HIDDEN,
        "path": HIDDEN,
    }


class LoadingWay(msgspec.Struct, frozen=True, kw_only=True):
    """One way of loading samples, as it was measured.

    Parameters
    ----------
    label : str
        What reports call it.
    format, framework, pipeline : str
        Empty where it is not known. The format is as ``--format`` spells it, options and all.
    run : LoaderRun
        Of the loader that was waited for most.
    whole : PartExposure
        All of the run.
    steady, recurring : PartExposure or None
        Its steady state, and its epochs as a long training has them; see `Exposure`.
    sums : mapping of str to StepSums
        Of each part that the run has, for what other ways gain.
    store : StoreProbe or None
        None for original files.
    """

    label: str
    format: str
    framework: str
    pipeline: str
    run: LoaderRun
    whole: PartExposure
    steady: PartExposure | None
    sums: Mapping[Window, StepSums] = msgspec.field(default_factory=dict)
    store: StoreProbe | None = None
    recurring: PartExposure | None = None
    JSON_KEYS: ClassVar = {
        "run": HIDDEN,
        "whole": HIDDEN,
        "steady": HIDDEN,
        "sums": HIDDEN,
        "store": HIDDEN,
        "recurring": HIDDEN,
    }

    @property
    def container(self) -> str:
        """The format without its options."""
        return self.format.partition(":")[0]

    @property
    def given(self) -> str | None:
        """How the finished store that it reads is named; None where it is none."""
        return None if self.store is None else self.store.target

    @property
    def window(self) -> PartExposure:
        """What tells what a long training sees: `Exposure.judged`."""
        return self.recurring or self.steady or self.whole

    @property
    def part(self) -> Window:
        """What that is, as `Exposure.window` has it."""
        if self.recurring is not None:
            return "recurring"
        return "whole" if self.steady is None else "steady"

    @figure.named("sample_ns")
    def sample_ns(self) -> float | None:
        """Wall time of a sample; null where samples were not counted."""
        window = self.window
        return window.wall_ns / window.n_samples if window.n_samples else None

    @figure
    def workers(self) -> int:
        """Processes or threads that load."""
        return self.run.workers

    @figure
    def prefetch(self) -> int:
        """Batches that they may be ahead."""
        return self.run.prefetch

    @figure
    def batch_size(self) -> int | None:
        """Samples of a batch."""
        return self.run.batch_size

    @figure
    def wait_fraction(self) -> float | None:
        """Share of its time that the training loop waits."""
        return self.window.wait_fraction

    @figure
    def hidden_fraction(self) -> float | None:
        """Share of the loading work that is hidden behind compute."""
        return hidden_fraction(self.window)

    def all_nbytes(self, files_nbytes: int | None) -> int | None:
        """Return how much is read in an epoch over all samples: of a store all of it."""
        store = self.store
        if store is None:
            return files_nbytes
        return store.nbytes * store.n_samples_all // store.n_samples if store.n_samples else None


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What a training is like beside its way of loading; None is unknown.

    Parameters
    ----------
    facts : RunFacts
        Of its run.
    cpus : int or None
        Usable ones, for this rank.
    n_samples_all : int or None
        Samples of the whole dataset: an epoch.
    sample_nbytes : int or None
        A finished sample.
    files_nbytes : int or None
        The original files.
    resident_fraction, cold_fraction : float or None
        Share of the files in the page cache before; of the bytes read, share from the device.
    own_order : bool
        Whether samples cannot be asked for by number.
    machine : Machine or None
        What the workers and the loop share in a replay; None for all that they could use.
    loop_fraction : float or None
        Share of its process's time that a script's training loop is.
    folder : str or None
        What has all files in it that were read; None where that is not known.
    epoch_nbytes : int or None
        Read in an epoch of a script, over all its processes.
    epochs : int or None
        Of the training, as somebody said; else of a script, as it had.
    n_loaders : int
        Of the rank that waits longest.
    n_summed : int
        Batches of that rank before those it is about, of which there are sums only.
    """

    facts: RunFacts = msgspec.field(default_factory=lambda: RunFacts.from_config({}))
    cpus: int | None = None
    memory_nbytes: int | None = None
    n_samples_all: int | None = None
    sample_nbytes: int | None = None
    files_nbytes: int | None = None
    resident_fraction: float | None = None
    cold_fraction: float | None = None
    own_order: bool = False
    machine: Machine | None = None
    loop_fraction: float | None = None
    folder: str | None = None
    epoch_nbytes: int | None = None
    epochs: int | None = None
    n_loaders: int = 1
    n_summed: int = 0


class Evidence(Enum):
    """What a predicted gain rests on."""

    MEASURED = "measured"
    """It was run, in turns with the baseline."""
    REPLAYED = "replayed"
    """The loader's own rule over stage times that were measured."""
    BOUND = "bound"
    """It cannot gain more; what it does gain has to be measured."""


class Gain(msgspec.Struct, frozen=True):
    """What a change saves, as shares of the time a sample takes now.

    Parameters
    ----------
    evidence : Evidence
        What it rests on: measured in turns, replayed, or a bound.
    saved : float or None
        None where only a bound is known.
    low, high : float or None
        Between which it lies in another run, with what is known of errors; None where too few
        batches were measured for one. Of a bound 0 and the bound.
    waiting : float or None
        Of a bound, the part that cannot exceed the loop's waiting. The rest would be training steps
        that all become as short as their shortest tenth, which is not proven.
    is_proven : bool or None
        Whether noise does not explain it: what is unknown is not proven.
    """

    evidence: Evidence
    saved: float | None
    low: float | None
    high: float | None
    is_proven: bool | None = None
    waiting: float | None = None
    JSON_KEYS: ClassVar = {
        "saved": key("saved_fraction"),
        "low": key("low_fraction"),
        "high": key("high_fraction"),
        "waiting": key("waiting_fraction"),
    }

    @property
    def expected(self) -> float:
        """What is said of it and what to rank it by: the gain, or how much waiting may go."""
        if self.saved is not None:
            return self.saved
        return (self.high or 0.0) if self.waiting is None else self.waiting


class Cost(msgspec.Struct, frozen=True):
    """What a change takes; None is unknown, 0 is nothing.

    Parameters
    ----------
    at_least : bool
        Whether ``convert_s`` is only what making the samples takes.
    starts : bool
        Whether workers have to start, which takes a time that no run told.
    stage_s : float or None
        Seconds that copying the files takes once.
    """

    convert_s: float | None = 0.0
    at_least: bool = False
    disk_nbytes: int | None = 0
    memory_nbytes: int | None = 0
    starts: bool = False
    stage_s: float | None = 0.0

    @property
    def spent_s(self) -> float | None:
        """What is spent once, before the epochs."""
        unknown = self.convert_s is None or self.stage_s is None
        return None if unknown else (self.convert_s or 0.0) + (self.stage_s or 0.0)


class AdvisedChange(msgspec.Struct, frozen=True):
    """A change with its price.

    Parameters
    ----------
    saved_s : float or None
        Seconds an epoch is shorter, by ``gain.expected``; None where an epoch is unknown.
    break_even : BreakEven or None
        None for what costs no conversion.
    commands : tuple of str
        The lines that make it, and for a profile those that measure it.
    """

    candidate: Candidate
    gain: Gain
    cost: Cost
    saved_s: float | None
    break_even: BreakEven | None = None
    commands: tuple[str, ...] = ()
    JSON_KEYS: ClassVar = {
        "candidate": INLINE,
        "gain": INLINE,
    }


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was really made, in turns with the baseline: shares of a sample's time saved.

    Parameters
    ----------
    rounds : int
        Turns of each.
    saved_fraction, low_fraction, high_fraction : float or None
        What it saved, and with 95 % between which; unknown of fewer than six rounds.
    band_low_fraction, band_high_fraction : float or None
        Between which the unchanged baseline saved when it was run again.
    is_noise : bool or None
        Whether the change is not to be told from that.
    staging_s, predicted_staging_s : float or None
        Of staging, what the first turn copied for, and what was predicted of it; else None.
    """

    title: str
    settings: Mapping[str, str | int]
    predicted: Gain
    rounds: int
    saved_fraction: float
    low_fraction: float | None
    high_fraction: float | None
    band_low_fraction: float | None
    band_high_fraction: float | None
    is_noise: bool | None
    staging_s: float | None = None
    predicted_staging_s: float | None = None
    JSON_KEYS: ClassVar = {
        "predicted": HIDDEN,
    }

    @classmethod
    def of(cls, change: AdvisedChange, ratio: RoundRatio) -> TriedChange:
        """Return a change with what came of it: its time a sample over that of the baseline."""
        return cls(
            title=change.candidate.title,
            settings=change.candidate.settings,
            predicted=change.gain,
            predicted_staging_s=change.cost.stage_s or None,
            rounds=ratio.n_rounds,
            saved_fraction=1 - ratio.ratio,
            low_fraction=_saved(ratio.high),
            high_fraction=_saved(ratio.low),
            band_low_fraction=_saved(ratio.band_high),
            band_high_fraction=_saved(ratio.band_low),
            is_noise=None if ratio.low is None else not (ratio.faster or ratio.slower),
        )

    @figure
    def predicted_fraction(self) -> float | None:
        """What it was predicted to save; null where only a bound was."""
        return self.predicted.saved

    @figure
    def predicted_low_fraction(self) -> float | None:
        """What at least, in another run."""
        return self.predicted.low

    @figure
    def predicted_high_fraction(self) -> float | None:
        """What at most."""
        return self.predicted.high


def _saved(ratio: float | None) -> float | None:
    return None if ratio is None else 1 - ratio


class AdviceOutcome(Enum):
    """What comes of looking for advice."""

    NO_BATCH = "no batch"
    NOTHING_TO_GAIN = "nothing to gain"
    """The training loop hardly waits."""
    WITHHELD = "withheld"
    """The replay misses this run's own time."""
    OPAQUE = "opaque"
    """Nobody saw who made the batches."""
    NO_SINGLE_STAGE = "no single stage"
    """Only several stages together gain: no one of them is worth speeding up."""
    NOTHING_FOUND = "nothing found"
    """It waits, but nothing that is known to iobench is predicted to help."""
    ADVICE = "advice"


class Advice(msgspec.Struct, frozen=True):
    """What would help a run, and what it costs.

    Parameters
    ----------
    baseline : LoadingWay
        What everything is compared with.
    error_fraction : float or None
        Of the replay on the unmodified baseline; None where it cannot be replayed.
    payoffs : Payoffs or None
        What faster stages would gain.
    changes : tuple of AdvisedChange
        Best first; first those with a prediction.
    to_measure : tuple of AdvisedChange
        Of which only a bound is known, or what too few batches tell; the largest first.
    epoch_s : float or None
        Seconds of an epoch over all samples now.
    """

    outcome: AdviceOutcome
    baseline: LoadingWay
    circumstances: Circumstances
    error_fraction: float | None = None
    payoffs: Payoffs | None = None
    changes: tuple[AdvisedChange, ...] = ()
    to_measure: tuple[AdvisedChange, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    epoch_s: float | None = None
    JSON_KEYS: ClassVar = {
        "baseline": HIDDEN,
        "circumstances": HIDDEN,
        "error_fraction": key("replay_error_fraction"),
        "epoch_s": HIDDEN,
    }
