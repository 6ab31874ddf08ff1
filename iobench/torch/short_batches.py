"""Batches too short to be recorded one by one: how often one is, and what the others were.

A batch recorded in full takes a hundred microseconds of ours, which is more than tiny samples take
to make. So after each such batch others follow of which only the beginning and end of the wait are
noted (`WaitNotes`), until what it took is a small part of the time that has passed. Their waits are
as exact as any; how they are split among stages is estimated from the batches recorded in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.loaders.stage_timer import BUDGET_FRACTION
from iobench.recording import span_file
from iobench.recording.kinds import Kind
from iobench.recording.span_file import SPAN_DTYPE, Flag
from iobench.recording.wait_notes import MOST_NS

if TYPE_CHECKING:
    from collections.abc import Sized

    from numpy.typing import NDArray

    from iobench.recording.wait_notes import NotedWaits
    from iobench.torch.batch_maker import BatchMaker

FULL_FRACTION: Final = BUDGET_FRACTION / 2
"""The part of a loop's time that batches recorded in full may take of ours: noting and writing the
others takes the rest of what recording may take."""
FULL_FIRST: Final = 3
"""Batches of a loader that are recorded in full before any is not: the first one is never usual."""
NOTE_LIGHT_SPANS: Final = 1.0
"""What noting a batch costs in light spans: 0.8 to 1.1 between batches of 42 us, by the medians of
20,000 batches each with and without it."""
pack: Final = span_file.SPAN.pack
START, END = range(2)
SUMMED, ESTIMATED = int(Flag.SUMMED), int(Flag.ESTIMATED)


class Pace:
    """What batches of one loader took to record, over all its passes.

    Parameters
    ----------
    batch_size : int
        Samples of each batch but the last one of a pass.

    Attributes
    ----------
    batch_size
        As given.
    nbytes : int
        Bytes of a batch of that size; -1 where they differ, or are not known.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
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


class EstimatedSpans:
    """Writes the spans of batches whose waits were only noted, in the proportions of the others.

    Parameters
    ----------
    maker : BatchMaker
        Of the loop's own thread; knows the proportions.

    Attributes
    ----------
    drawn : sized
        The indices of the batch that was noted last: fewer in the last one of a pass.
    """

    def __init__(self, maker: BatchMaker, pace: Pace) -> None:
        self.drawn: Sized = ()
        self._maker, self._recorder = maker, maker.recorder
        self._pace = pace
        light_ns = maker.unit_costs.get("light_ns") or 0
        self._note_ns = int(NOTE_LIGHT_SPANS * light_ns)

    def write(self, noted: NotedWaits) -> None:
        """Record them: of each batch its stages, one after the other, and the wait around them."""
        began_ns = self._recorder.clock.now_ns()
        n_batches, times = len(noted.batches), noted.times_ns
        asked, waited = times[:, :1], times[:, 1:] - times[:, :1]
        rows, ends = self._rows(noted)
        spans = np.empty((n_batches, *rows.shape), np.int64)
        spans[:] = rows
        bounds = asked + (waited * ends).astype(np.int64)
        spans[:, 0, START] = times[:, 0]
        spans[:, 1:-1, START] = bounds[:, :-1]
        spans[:, :-1, END] = bounds
        spans[:, -1, :2] = times
        spans = spans.reshape(-1, rows.shape[1]).view(SPAN_DTYPE).reshape(n_batches, -1)
        spans["batch"] = np.array(noted.batches)[:, np.newaxis]
        if noted.is_latest and len(self.drawn) < self._pace.batch_size:
            last = spans[-1]
            last["pieces"] = np.where(last["pieces"] > 1, min(len(self.drawn), 65535), 1)
            last["nbytes"] = -1
        self._recorder.lane().write_all(spans.reshape(-1))
        spent_ns = self._recorder.clock.now_ns() - began_ns
        self._recorder.own_ns += n_batches * self._note_ns + spent_ns

    def _rows(self, noted: NotedWaits) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the spans of a batch but for its times and number, and where its stages end."""
        nbytes = -1 if self._pace.nbytes is None else self._pace.nbytes
        parts = self._maker.parts_of(self._pace.batch_size, nbytes)
        packed = [
            pack(0, 0, of_stage, -1, -1, -1, noted.epoch, 0, 0, kind,
                 ESTIMATED | (SUMMED if pieces > 1 else 0), min(pieces, 65535), 0)
            for kind, _, of_stage, pieces in parts
        ]  # fmt: skip
        maker = self._recorder.string("consumer")
        wait = pack(0, 0, nbytes, -1, noted.number, -1, noted.epoch, maker, 0, Kind.WAIT, 0, 1, 0)
        rows = np.frombuffer(b"".join([*packed, wait]), np.int64).reshape(len(parts) + 1, -1)
        ends = np.cumsum([part for _, part, _, _ in parts])
        return rows, np.minimum(ends, 1.0)
