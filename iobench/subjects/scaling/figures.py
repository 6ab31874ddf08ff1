"""What a job does on more ranks: points of a curve, and where storage saturates."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from iobench.frozen import frozen
from iobench.json_keys import INLINE, figure, key
from iobench.subjects.scaling.verdict import scaling_verdict

if TYPE_CHECKING:
    from iobench.analysis.break_even import BreakEven
    from iobench.subjects.scaling.measured_job import MeasuredJob
    from iobench.subjects.scaling.target import CacheUse, Hosts, MeasuredLimit, SharedStorage

SCALING_VERSION: Final = 1


@frozen
class Spread:
    """A figure over repeated simulations.

    Parameters
    ----------
    median, low, high : float
        The median, the smallest and the largest one.
    """

    median: float
    low: float
    high: float


@frozen
class ScalingPoint:
    """A job of so many ranks, in steady state.

    Parameters
    ----------
    ranks, hosts : int
        Training processes, and machines that they lie on.
    cache : CacheUse or None
        None in the first epoch, and without caches.
    samples_per_s : Spread
        Of all ranks together.
    efficiency : float
        Samples per second of a rank, over those of a job of one rank in the same epoch; above 1
        where caches together serve more than one alone.
    exposed_fraction : Spread
        The share of the job's time in which its last rank waited for its batch.
    storage_fraction : float or None
        The share of storage's time that was used; None where it has no bound.
    bytes_per_s, reads_per_s : float
        What storage gave.
    step_ns : int
        Mean time from step to step.
    free_step_ns : int
        The same if storage had no bound.
    is_bound : bool
        Whether it lies so far beyond what was measured that it is a bound: samples per second
        are at most these, and the exposed share at least this.
    """

    ranks: int
    hosts: int = field(metadata=key("nodes"))
    cache: CacheUse | None
    samples_per_s: Spread
    efficiency: float
    exposed_fraction: Spread
    storage_fraction: float | None
    bytes_per_s: float
    reads_per_s: float
    step_ns: int = field(metadata=key("step_ns"))
    free_step_ns: int = field(metadata=key("free_step_ns"))
    is_bound: bool

    @figure
    def free_samples_per_s(self) -> float | None:
        """Of all ranks together, if storage had no bound."""
        rate = self.samples_per_s.median
        return rate * self.step_ns / self.free_step_ns if self.free_step_ns else None


@frozen
class Saturation:
    """From how many ranks on storage, or a node's link, cannot give what they would read.

    Parameters
    ----------
    ranks : int or None
        The smallest number; None if not even a million do.
    by : str
        ``"bandwidth"`` or ``"reads"`` of storage, whichever ends first; ``"node bandwidth"``.
    """

    ranks: int | None
    by: str


@frozen
class ScalingCurve:
    """What a run would do on more ranks.

    Parameters
    ----------
    first_epoch : tuple of ScalingPoint
        Nothing cached.
    later_epochs : tuple of ScalingPoint
        With warm caches; empty without any.
    saturation, later_saturation : Saturation or None
        None where storage has no bound, and without caches.
    host_saturation, later_host_saturation : Saturation or None
        The same of what reaches one node.
    model_error_fraction : float or None
        Step time that the model gives for the measured run, over the measured one, less 1.
    n_seeds : int
        Simulations for each point.
    """

    first_epoch: tuple[ScalingPoint, ...]
    later_epochs: tuple[ScalingPoint, ...]
    saturation: Saturation | None
    later_saturation: Saturation | None
    host_saturation: Saturation | None = field(metadata=key("node_saturation"))
    later_host_saturation: Saturation | None = field(metadata=key("later_node_saturation"))
    model_error_fraction: float | None
    n_seeds: int = field(metadata=key("seeds"))


@frozen(kw_only=True)
class StagedPoint:
    """A job of so many ranks whose nodes read copies of their own.

    Parameters
    ----------
    staging_s, epoch_s : float
        T_staging of all nodes at once, and T_epoch after it.
    shared_epoch_s : float
        T_epoch without it, from the storage that all share, once its caches are warm.
    break_even : BreakEven
        When staging has paid.
    """

    ranks: int
    hosts: int = field(metadata=key("nodes"))
    staging_s: float
    epoch_s: float
    shared_epoch_s: float
    break_even: BreakEven = field(metadata=INLINE)


@frozen(kw_only=True)
class StagedScenario:
    """What staging on every node would do.

    Parameters
    ----------
    near_bytes_per_s : float
        What a node's own storage gives, and takes.
    read_latency_ns : int
        What each read takes there, whatever its bytes.
    copy_nbytes : tuple of float
        Bytes of each copy, by number of ranks.
    is_part : bool
        Whether a node stages what its own ranks read; else all.
    """

    near_bytes_per_s: float
    read_latency_ns: int = field(metadata=key("read_latency_ns"))
    copy_nbytes: tuple[float, ...]
    is_part: bool
    points: tuple[StagedPoint, ...]


@frozen
class ScalingFigures:
    """What ``iobench simulate`` says: the curve, and what it was made from.

    Parameters
    ----------
    job : MeasuredJob
        The run that was measured.
    allreduce_ms : float
        Of a step, beyond what the run's own steps hold.
    limit : MeasuredLimit or None
        Where storage's bound is what a probe of it found.
    staged : StagedScenario or None
        Where each node's own storage was asked about.
    schema_version : int
        Raised when a key changes its meaning or goes.
    """

    curve: ScalingCurve = field(metadata=INLINE)
    job: MeasuredJob = field(metadata=key("measured"))
    storage: SharedStorage
    hosts: Hosts = field(metadata=key("nodes"))
    allreduce_ms: float
    limit: MeasuredLimit | None = field(default=None, metadata=key("measured_limit"))
    staged: StagedScenario | None = None
    schema_version: int = SCALING_VERSION

    @figure
    def run(self) -> str:
        """What was measured, by its name."""
        return self.job.name

    @figure
    def verdict(self) -> list[str]:
        """Where storage saturates, and what else more ranks lose: sentences."""
        known = None if self.limit is None else self.limit.first_unknown(self.job.demand)
        return scaling_verdict(self.curve, unknown_from=known)
