"""Batches too short to be recorded one by one: two times each, told many at a time.

A batch recorded in full takes a hundred microseconds of ours, which is more than tiny samples take
to make. So after each such batch others follow of which only the beginning and end of the wait are
noted, until what it took is a small part of the time that has passed. Their waits are as exact as
any; how they are split among stages is estimated from the batches recorded in full.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.recording import span_file
from iobench.recording.kinds import Kind
from iobench.recording.span_file import SPAN_DTYPE, Flag

if TYPE_CHECKING:
    from collections.abc import Sized

    from numpy.typing import NDArray

    from iobench.recording.delivery_log import DeliveryLog
    from iobench.torch.making import BatchMaker

__all__ = ["Pace", "Stamps"]

FULL_FRACTION: Final = 0.005
"""The part of a loop's time that batches recorded in full may take of ours."""
FULL_FIRST: Final = 3
"""Batches of a loader that are recorded in full before any is not: the first one is never usual."""
STAMP_LIGHT_SPANS: Final = 1.5
"""What noting a batch costs in light spans, when it has been in no cache."""
pack: Final = span_file.SPAN.pack
START, END = range(2)
SUMMED, ESTIMATED = int(Flag.SUMMED), int(Flag.ESTIMATED)
MOST: Final = 512
MOST_NS: Final = 1_000_000_000
"""No longer than this is anything kept that a kill would lose."""


class Pace:
    """What batches of one loader took to record, over all its passes.

    Parameters
    ----------
    batch_size : int
        Samples of each batch but the last one of a pass.
    sampler : sized
        As long as a pass.

    Attributes
    ----------
    batch_size, sampler
        As given.
    nbytes : int
        Bytes of a batch of that size; -1 where they differ, or are not known.
    """

    def __init__(self, batch_size: int, sampler: Sized) -> None:
        self.batch_size, self.sampler = batch_size, sampler
        self.nbytes: int | None = None
        self._costs_ns: tuple[int, ...] = ()

    def recorded(self, cost_ns: int, n_samples: int, nbytes: int) -> None:
        """Note a batch recorded in full."""
        self._costs_ns = (*self._costs_ns[-4:], cost_ns)
        if n_samples == self.batch_size:
            self.nbytes = nbytes if self.nbytes in (None, nbytes) else -1

    @property
    def rest_ns(self) -> int:
        """For how long no batch is to be recorded in full, after one that was."""
        known = sorted(self._costs_ns)
        if len(known) < FULL_FIRST:
            return 0
        return min(int(known[len(known) // 2] / FULL_FRACTION), MOST_NS)


class Stamps:
    """When a loop waited in one pass, where that was only noted.

    Parameters
    ----------
    maker : BatchMaker
        Of the loop's own thread.
    pace : Pace
    stamp_cost_ns : int
        What noting a batch costs.

    Attributes
    ----------
    times_ns : array of int
        Of each batch when it was asked for and when it was there.
    due_ns : int
        From then on a batch is to be recorded in full again.
    limit : int
        When there are so many times likewise.
    """

    def __init__(self, maker: BatchMaker, pace: Pace, stamp_cost_ns: int) -> None:
        self.now_ns = maker.recorder.clock.now_ns
        self.times_ns = array("q")
        self.limit = 2 * MOST
        self.due_ns = 0
        self._n_taken = 0  # batches of the pass so far
        self._n_samples = -1
        self._last_size = 0  # of the last batch that was noted, where that is the pass's last
        self._batches: list[int] = []
        self._maker, self._recorder = maker, maker.recorder
        self._pace = pace
        self._stamp_cost_ns = stamp_cost_ns

    def begin(self, n_taken: int) -> bool:
        """Return whether to note batches only from now on, after so many of the pass."""
        rest_ns = self._pace.rest_ns
        if rest_ns > 0 and self._n_samples < 0:
            self._n_samples = len(self._pace.sampler)
        self._n_taken, self.due_ns = n_taken, self.now_ns() + rest_ns
        return rest_ns > 0

    @property
    def within(self) -> bool:
        """Whether a batch is being made."""
        return len(self.times_ns) % 2 == 1

    def take_back(self) -> int:
        """Forget the wait that goes on; return when it began."""
        return self.times_ns.pop()

    def pause(self, log: DeliveryLog) -> None:
        """Give those that were noted their numbers."""
        self.due_ns = 0
        n_new = len(self.times_ns) // 2 - len(self._batches)
        if n_new:
            self._n_taken += n_new
            rest = self._n_samples - self._n_taken * self._pace.batch_size
            if rest < 0:
                self._last_size = self._pace.batch_size + rest
            batches = log.recording.next_batches(n_new)
            self._batches += batches
            log.noted(batches, self.times_ns[2 * len(self._batches) - 1])

    def tell(self, log: DeliveryLog, *, few: bool = True) -> None:
        """Record what was noted; unless ``few``, only where that is much by now."""
        n_batches = len(self._batches)
        began_ns = self.now_ns()
        if not n_batches or not (
            few or n_batches > MOST // 2 or began_ns > self.times_ns[0] + MOST_NS
        ):
            return
        times = np.array(self.times_ns[: 2 * n_batches]).reshape(n_batches, 2)
        del self.times_ns[: 2 * n_batches]
        batches, self._batches = self._batches, []
        asked, waited = times[:, :1], times[:, 1:] - times[:, :1]
        rows, ends = self._rows(log)
        spans = np.empty((n_batches, *rows.shape), np.int64)
        spans[:] = rows
        bounds = asked + (waited * ends).astype(np.int64)
        spans[:, 0, START] = times[:, 0]
        spans[:, 1:-1, START] = bounds[:, :-1]
        spans[:, :-1, END] = bounds
        spans[:, -1, :2] = times
        spans = spans.reshape(-1, rows.shape[1]).view(SPAN_DTYPE).reshape(n_batches, -1)
        spans["batch"] = np.array(batches)[:, np.newaxis]
        if self._last_size:
            last = spans[-1]
            last["pieces"] = np.where(last["pieces"] > 1, min(self._last_size, 65535), 1)
            last["nbytes"] = -1
        self._recorder.lane().write_all(spans.reshape(-1))
        self._recorder.own_ns += n_batches * self._stamp_cost_ns + self.now_ns() - began_ns

    def _rows(self, log: DeliveryLog) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the spans of a batch but for its times and number, and where its stages end."""
        nbytes = -1 if self._pace.nbytes is None else self._pace.nbytes
        parts = self._maker.parts_of(self._pace.batch_size, nbytes)
        packed = [
            pack(0, 0, of_stage, -1, -1, -1, log.epoch, 0, 0, kind,
                 ESTIMATED | (SUMMED if pieces > 1 else 0), min(pieces, 65535), 0)
            for kind, _, of_stage, pieces in parts
        ]  # fmt: skip
        maker = self._recorder.string("consumer")
        wait = pack(0, 0, nbytes, -1, log.number, -1, log.epoch, maker, 0, Kind.WAIT, 0, 1, 0)
        rows = np.frombuffer(b"".join([*packed, wait]), np.int64).reshape(len(parts) + 1, -1)
        ends = np.cumsum([part for _, part, _, _ in parts])
        return rows, np.minimum(ends, 1.0)
