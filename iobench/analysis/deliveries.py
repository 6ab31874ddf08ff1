"""What the training loop asked for and when it held it, in rounds; the frame of every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.errors import ProfileError
from iobench.recording import Kind

if TYPE_CHECKING:
    from iobench.profiles import Profile

__all__ = ["PHASES", "Deliveries", "find_deliveries"]

Integers = NDArray[np.int64]

PHASES: Final = ("startup", "fill", "steady", "drain")
STARTUP, FILL, STEADY, DRAIN = range(4)

SERIAL: Final = "consumer"
"""What a delivery's detail says where the training loop made the batch itself."""
IN_THREADS: Final = "threads"
"""And where other threads of its process did."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The deliveries of one training process, in order of time; arrays of one row per delivery.

    Parameters
    ----------
    asked_ns, delivered_ns : ndarray of int64
        The wait is ``[asked_ns, delivered_ns)``.
    from_ns, until_ns : ndarray of int64
        The delivery's share of its round: from being asked for it (the round's start for the
        first) to being asked for the next (the round's end for the last). They tile the rounds.
    batch : ndarray of int64
        -1 for a last call that found no batch.
    epoch : ndarray of int64
    nbytes : ndarray of int64
        Of the batch, -1 where unknown.
    made_by : tuple of str
        ``"worker-<n>"``, ``"consumer"``, ``"threads"``, or ``""`` where unknown.
    round : ndarray of int64
        Position of the round in time, from 0.
    phase : ndarray of int64
        Index into `PHASES`.
    process, thread : int
        Where the training loop runs; -1 if it never waited.
    n_unfinished_rounds : int
        Rounds without a recorded end.
    """

    asked_ns: Integers
    delivered_ns: Integers
    from_ns: Integers
    until_ns: Integers
    batch: Integers
    epoch: Integers
    nbytes: Integers
    made_by: tuple[str, ...]
    round: Integers
    phase: Integers
    process: int
    thread: int
    n_unfinished_rounds: int

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def wait_ns(self) -> Integers:
        """Length of each wait."""
        return self.delivered_ns - self.asked_ns

    @property
    def wall_ns(self) -> Integers:
        """Each delivery's share of the wall time."""
        return self.until_ns - self.from_ns

    def at(self, time_ns: Integers) -> Integers:
        """Return the delivery in whose share of a round each instant lies, -1 outside rounds."""
        if not len(self):
            return np.full(len(time_ns), -1, dtype=np.int64)
        place = np.searchsorted(self.from_ns, time_ns, side="right") - 1
        inside = (place >= 0) & (time_ns < self.until_ns[place])
        return np.where(inside, place, -1).astype(np.int64)

    def waiting_at(self, time_ns: Integers) -> Integers:
        """Return the delivery being waited for at each instant, -1 where none that brought one."""
        place = self.at(time_ns)
        if not len(self):
            return place
        waiting = (place >= 0) & (self.batch[place] >= 0)
        waiting &= (time_ns >= self.asked_ns[place]) & (time_ns < self.delivered_ns[place])
        return np.where(waiting, place, -1)


def find_deliveries(profile: Profile, *, rank: int, filled_after: int) -> Deliveries:
    """Return what a training process waited for.

    Parameters
    ----------
    profile : Profile
        The run.
    rank : int
        Which training process.
    filled_after : int
        Deliveries of a round before its steady state, at least 1.

    Raises
    ------
    ProfileError
        If two threads of it waited for batches, or its waits overlap.
    """
    spans = profile.spans
    of_rank = np.array(
        [process.role == "consumer" and process.rank == rank for process in profile.processes],
        dtype=bool,
    )
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)]
    waits = waits[of_rank[waits["process"]]]
    waits = waits[np.argsort(waits["start_ns"], kind="stable")]
    lanes = np.unique(waits[["process", "thread"]])
    if len(lanes) > 1:
        raise ProfileError(
            f"{profile.path}: {len(lanes)} threads waited for batches, expected one training loop"
        )
    asked, delivered = waits["start_ns"].astype(np.int64), waits["end_ns"].astype(np.int64)
    if (asked[1:] < delivered[:-1]).any():
        raise ProfileError(
            f"{profile.path}: the waits of the training loop overlap, expected one after another"
        )
    process, thread = (int(lanes[0][name]) if len(lanes) else -1 for name in ("process", "thread"))
    on_lane = spans[(spans["process"] == process) & (spans["thread"] == thread)]
    number, starts, ends, n_unfinished = _rounds(profile, on_lane, asked, delivered)
    shutdown = waits["batch"] < 0
    first = np.diff(number, prepend=-1) > 0
    position = np.arange(len(waits)) - np.flatnonzero(first)[number] if len(waits) else number
    return Deliveries(
        asked_ns=asked,
        delivered_ns=delivered,
        from_ns=np.where(first, starts[number], asked),
        until_ns=np.where(np.append(first[1:], True), ends[number], np.append(asked[1:], 0)),
        batch=waits["batch"].astype(np.int64),
        epoch=waits["epoch"].astype(np.int64),
        nbytes=waits["nbytes"].astype(np.int64),
        made_by=tuple(profile.strings[detail] for detail in waits["detail"].tolist()),
        round=number,
        phase=_phases(position, shutdown, filled_after),
        process=process,
        thread=thread,
        n_unfinished_rounds=n_unfinished,
    )


def _phases(position: Integers, shutdown: NDArray[np.bool_], filled_after: int) -> Integers:
    phase = np.full(len(position), STEADY, dtype=np.int64)
    phase[position < filled_after] = FILL
    phase[position == 0] = STARTUP
    phase[shutdown] = DRAIN
    return phase


def _rounds(
    profile: Profile, on_lane: NDArray[Any], asked: Integers, delivered: Integers
) -> tuple[Integers, Integers, Integers, int]:
    """Return each wait's round, the rounds' starts and ends, and how many have no end recorded.

    A killed process leaves no span of its last round: that round then ends with the last span of
    the training loop. Rounds without a delivery have nothing to say and are left out.
    """
    labels = np.array([text == "round" for text in profile.strings], dtype=bool)
    marked = on_lane[(on_lane["kind"] == Kind.OTHER) & labels[on_lane["label"]]]
    marked = marked[np.argsort(marked["start_ns"], kind="stable")]
    starts, ends = marked["start_ns"].astype(np.int64), marked["end_ns"].astype(np.int64)
    place = np.searchsorted(starts, delivered, side="right") - 1
    inside = (place >= 0) & (asked <= ends[place]) if len(starts) else np.zeros(len(asked), bool)
    # Waits outside every marked round: one round for each stretch between marked ones.
    key = np.where(inside, 2 * place, 2 * place + 1)
    keys, first, number = np.unique(key, return_index=True, return_inverse=True)
    last = np.append(first[1:], len(asked)) - 1 if len(keys) else first
    round_starts, round_ends = asked[first], delivered[last]
    recorded = keys % 2 == 0
    round_starts[recorded] = np.minimum(round_starts[recorded], starts[keys[recorded] // 2])
    round_ends[recorded] = np.maximum(round_ends[recorded], ends[keys[recorded] // 2])
    for index in np.flatnonzero(~recorded):
        seen = on_lane["end_ns"]
        if index + 1 < len(keys):
            seen = seen[seen <= round_starts[index + 1]]
        round_ends[index] = max(int(round_ends[index]), int(seen.max()))
    return number.astype(np.int64), round_starts, round_ends, int((~recorded).sum())
