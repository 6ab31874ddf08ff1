"""What advice is made of: ways of loading that were measured, changes, their gain and price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.analysis.advice.break_even import BreakEven, DeviceBill
    from iobench.analysis.advice.levers import AdviceOutcome, Evidence, Lever, Reason
    from iobench.analysis.figures import PartExposure, Window
    from iobench.analysis.replay.loader_run import RecordedRun
    from iobench.analysis.replay.payoffs import Payoffs
    from iobench.analysis.replay.simulated_run import Machine
    from iobench.analysis.step_sums import StepSums

__all__ = [
    "Advice",
    "AdvisedChange",
    "Candidate",
    "Circumstances",
    "Cost",
    "Gain",
    "LoadingWay",
    "RuledOut",
    "StoreProbe",
]


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """The store a way of loading reads: part of a dataset, converted."""

    n_samples: int
    nbytes: int
    convert_s: float | None
    n_samples_all: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingWay:
    """One way of loading samples, as it was measured.

    Parameters
    ----------
    label : str
        What reports call it.
    format, framework, pipeline : str
        ``""`` where it is not known.
    run : RecordedRun
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
    run: RecordedRun
    whole: PartExposure
    steady: PartExposure | None
    sums: Mapping[Window, StepSums] = field(default_factory=dict)
    store: StoreProbe | None = None
    recurring: PartExposure | None = None

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

    @property
    def sample_ns(self) -> float | None:
        """Wall time of a sample; None where samples were not counted."""
        window = self.window
        return window.wall_ns / window.n_samples if window.n_samples else None

    def all_nbytes(self, files_nbytes: int | None) -> int | None:
        """Return how much is read in an epoch over all samples: of a store all of it."""
        store = self.store
        if store is None:
            return files_nbytes
        return store.nbytes * store.n_samples_all // store.n_samples if store.n_samples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the machine and the data allow; None is unknown.

    Parameters
    ----------
    cpus : int or None
        Usable ones, for this rank.
    memory_nbytes : int or None
    n_samples_all : int or None
        Samples of the whole dataset: an epoch.
    sample_nbytes : int or None
        A finished sample.
    files_nbytes : int or None
        The original files.
    resident_fraction, cold_fraction : float or None
        Share of the files in the page cache before; of the bytes read, share from the device.
    has_device : bool
        Whether work of an accelerator was seen.
    is_script : bool
        Whether it is of a user's own script.
    own_order : bool
        Whether samples cannot be asked for by number.
    machine : Machine or None
        What the workers and the loop share in a replay; None for all that they could use.
    loop_fraction : float or None
        Share of its process's time that a script's training loop is.
    """

    cpus: int | None = None
    memory_nbytes: int | None = None
    n_samples_all: int | None = None
    sample_nbytes: int | None = None
    files_nbytes: int | None = None
    resident_fraction: float | None = None
    cold_fraction: float | None = None
    has_device: bool = False
    is_script: bool = False
    own_order: bool = False
    machine: Machine | None = None
    loop_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to change.

    Parameters
    ----------
    levers : tuple of Lever
    settings : mapping of str to str or int
        As the fields of a profile's configuration are called; more where only a script has it.
    """

    levers: tuple[Lever, ...]
    settings: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change saves, as shares of the time a sample takes now.

    Parameters
    ----------
    evidence : Evidence
    saved : float or None
        None where only a bound is known.
    low, high : float or None
        Between which it lies in another run, with what is known of errors; None where too few
        batches were measured to tell. Of a bound 0 and the bound.
    is_proven : bool or None
        Whether noise does not explain it: what is unknown is not proven.
    """

    evidence: Evidence
    saved: float | None
    low: float | None
    high: float | None
    is_proven: bool | None = None

    @property
    def expected(self) -> float:
        """What to rank it by: the gain, or the bound."""
        return (self.high or 0.0) if self.saved is None else self.saved


@dataclass(frozen=True, slots=True)
class Cost:
    """What a change takes; None is unknown, 0 is nothing.

    Parameters
    ----------
    convert_s : float or None
    at_least : bool
        Whether ``convert_s`` is only what making the samples takes.
    disk_nbytes, memory_nbytes : int or None
    starts : bool
        Whether workers have to start, which takes a time that no run told.
    """

    convert_s: float | None = 0.0
    at_least: bool = False
    disk_nbytes: int | None = 0
    memory_nbytes: int | None = 0
    starts: bool = False


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """A change with its price.

    Parameters
    ----------
    candidate : Candidate
    gain : Gain
    cost : Cost
    saved_s : float or None
        Seconds an epoch is shorter, by ``gain.expected``; None where an epoch is unknown.
    break_even : BreakEven or None
        None for what costs no conversion.
    """

    candidate: Candidate
    gain: Gain
    cost: Cost
    saved_s: float | None
    break_even: BreakEven | None = None


@dataclass(frozen=True, slots=True)
class RuledOut:
    """Something not proposed, and the figures that say why.

    Parameters
    ----------
    candidate : Candidate
    reason : Reason
    needed, there : float or None
        What it takes and what there is, in bytes or CPUs; or a gain and its error.
    """

    candidate: Candidate
    reason: Reason
    needed: float | None = None
    there: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What would help a run, and what it costs.

    Parameters
    ----------
    outcome : AdviceOutcome
    baseline : LoadingWay
        What everything is compared with.
    error_fraction : float or None
        Of the replay on the unmodified baseline; None where it cannot be replayed.
    wait_fraction, hidden_fraction : float or None
        Of the baseline: share of its time spent waiting; of the loading work, share hidden.
    payoffs : Payoffs or None
        What faster stages would gain.
    changes : tuple of AdvisedChange
        Best first; first those with a prediction.
    to_measure : tuple of AdvisedChange
        Of which only a bound is known, or what too few batches tell; the largest first.
    ruled_out : tuple of RuledOut
    epoch_s : float or None
        Seconds of an epoch over all samples now.
    bill : DeviceBill or None
    n_loaders : int
        How many loaders the run has; the advice is for the one waited for most.
    in_script : bool
        Whether the training loop is part of a user's own script.
    loop_fraction : float or None
        Share of its process's time that it is.
    """

    outcome: AdviceOutcome
    baseline: LoadingWay
    error_fraction: float | None
    wait_fraction: float | None
    hidden_fraction: float | None
    payoffs: Payoffs | None = None
    changes: tuple[AdvisedChange, ...] = ()
    to_measure: tuple[AdvisedChange, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    epoch_s: float | None = None
    bill: DeviceBill | None = None
    n_loaders: int = 1
    in_script: bool = False
    loop_fraction: float | None = None
