"""What is said of a job of several training processes: frozen values, without formatting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from iobench.json_keys import HIDDEN, figure, key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RankExposure(msgspec.Struct, frozen=True):
    """One training process of a job.

    Parameters
    ----------
    rank, host : int and str
        Which one, and the machine it ran on.
    n_batches, wait_ns, wall_ns : int
        As in its own `Exposure`, whole run.
    n_last : int
        Steps in which it was the last to have its batch.
    exposed_ns : int
        In these steps: its wait while all others had theirs.
    comm_held_ns : int or None
        Time for which collective operations held the training loop, from its first wait to the
        end of its last step, waiting for other ranks in them included; None where no such
        operation was recorded, as for the next ones.
    n_operations, comm_nbytes : int or None
        Operations of the training loop, and the bytes that they carry: of each the larger of what
        the rank hands in and what it gets. None where one does not say.
    """

    rank: int
    host: str
    n_batches: int
    wait_ns: int
    wall_ns: int
    n_last: int
    exposed_ns: int
    comm_held_ns: int | None = None
    n_operations: int | None = None
    comm_nbytes: int | None = None
    JSON_KEYS: ClassVar = {
        "n_batches": key("batches"),
        "n_last": key("steps_last"),
        "n_operations": key("collective_operations"),
    }

    @figure
    def wait_fraction(self) -> float | None:
        """Share of its time spent waiting; None without time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None


class MissingRank(msgspec.Struct, frozen=True):
    """A training process that did not start, left nothing, or did not end as it should.

    Parameters
    ----------
    rank, host : int and str
        Which one, and the machine; None where unknown.
    what : str
        ``"never started"``, ``"left no spans"``, ``"killed, left by os._exit, or still running"``,
        or ``"ended with <exception>"``.
    """

    rank: int
    host: str | None
    what: str


class JobExposure(msgspec.Struct, frozen=True):
    """What a job of several training processes waited for, step by step.

    A step has the same place in the same round of the same loader on all ranks. Its last rank is
    the one that has its batch last.

    Parameters
    ----------
    world_size : int
        Training processes it was to have.
    ranks : tuple of RankExposure
        Those that recorded.
    n_steps, n_single_steps : int
        Steps that several ranks took; steps that one rank alone took, in no other figure.
    steps_wall_ns : int
        From the first rank's first wait to the end of the last one's last step.
    wait_ns : int
        The wait of the last rank, over all steps: what the job waited. The end of the round
        before, and the start of its own, are part of the first step of a round.
    exposed_ns : int
        Of that, the wait while all other ranks had their batch (``E_job``): what is the
        imbalance of one rank, and not a wait that others share.
    imbalance : float or None
        The largest wait of a rank over the mean one; None where nothing was waited for, or one rank
        alone asked a loader.
    hosts : tuple of str
        The machines.
    clock_uncertainty_ns : int or None
        How far apart instants of different machines may be shown, by the pairs of monotonic and
        wall-clock time of each, whose wall clocks are taken to agree. None where all ran on one
        machine, where times are exact.
    n_uncertain_steps : int
        Steps whose last two ranks are on different machines and closer than that.
    bin_ns : int
        Width of a column of ``matrix_ns``.
    matrix_ns : tuple of tuple of int
        By rank (as in ``ranks``) and time: the wait in each bin.
    step_wait_ns, step_exposed_ns, step_last : ndarray of int64, shape (n_steps,)
        By step, in order of time: the last rank's wait, ``E_job``, and which rank it was.
    n_folded : int
        Batches before all others, of which there are sums only.
    """

    world_size: int
    ranks: tuple[RankExposure, ...]
    missing: tuple[MissingRank, ...]
    n_steps: int
    n_single_steps: int
    steps_wall_ns: int
    wait_ns: int
    exposed_ns: int
    imbalance: float | None
    hosts: tuple[str, ...]
    clock_uncertainty_ns: int | None
    n_uncertain_steps: int
    bin_ns: int
    matrix_ns: tuple[tuple[int, ...], ...]
    step_wait_ns: NDArray[np.int64]
    step_exposed_ns: NDArray[np.int64]
    step_last: NDArray[np.int64]
    n_folded: int = 0
    JSON_KEYS: ClassVar = {
        "missing": key("missing_ranks"),
        "n_steps": key("steps"),
        "n_single_steps": key("single_rank_steps"),
        "n_uncertain_steps": key("uncertain_steps"),
        "matrix_ns": key("wait_matrix_s"),
        "step_wait_ns": HIDDEN,
        "step_exposed_ns": HIDDEN,
        "step_last": HIDDEN,
        "n_folded": HIDDEN,
    }

    @figure
    def wait_fraction(self) -> float | None:
        """Share of the time of its steps that the last ranks waited; None without time."""
        return self.wait_ns / self.steps_wall_ns if self.steps_wall_ns else None

    @figure
    def exposed_fraction(self) -> float | None:
        """Share of the time of its steps that one rank waited alone; None without time."""
        return self.exposed_ns / self.steps_wall_ns if self.steps_wall_ns else None
