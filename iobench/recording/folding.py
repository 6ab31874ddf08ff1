"""Spans folded into sums, so that a recording of any length stays within a bound.

The oldest spans of a process go first, a chunk of its file or a whole file of an ended worker at a
time; what is kept of them is, for each stage, how many there were, their own time, and their bytes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from iobench.recording import span_file as layout
from iobench.recording.kinds import WAITING_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import halves, stage_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


# They lie beside what the thread does, or around it: not reduced by what is inside.
AROUND: Final = WAITING_KINDS
NEVER_SUMMED: Final = int(Flag.DETAIL | Flag.IO | Flag.DEVICE)
OTHERS: Final = (int(Kind.OTHER), 0)
"""Where stages go that have no place of their own."""
OPEN_LIMIT: Final = 64
KINDS: Final = frozenset(kind.value for kind in Kind)
LARGEST: Final = 2**61


def fold_name(name: str) -> int:
    """Return what ``pending`` says of a file that was folded whole: never the place of a chunk."""
    return -1 - zlib.crc32(name.encode("utf-8", "surrogateescape"))


@dataclass(slots=True)
class LoopSums:
    """What one thread waited, of the batches that are no longer there one by one.

    Parameters
    ----------
    n_batches : int
        Waits that brought a batch.
    wait_ns : int
        Of all waits.
    wall_ns : int
        Of its passes over loaders, from their first wait on; where they overlap, once.
    going_on : dict of int to int
        Of each pass that has not ended, by number, the end of its last wait; the last one last.
    """

    n_batches: int = 0
    wait_ns: int = 0
    wall_ns: int = 0
    going_on: dict[int, int] = field(default_factory=dict)
    _covered: list[tuple[int, int]] = field(default_factory=list)

    def add(self, spans: NDArray[Any]) -> None:
        """Add waits and passes, in the order of their ends."""
        rows = (spans[name].tolist() for name in ("start_ns", "end_ns", "sample", "batch", "kind"))
        for start_ns, end_ns, round_, batch, kind in zip(*rows, strict=True):
            begun_ns = self.going_on.pop(round_, None)
            if kind == Kind.WAIT:
                self.n_batches += batch >= 0
                self.wait_ns += end_ns - start_ns
                self.going_on[round_] = end_ns
                if len(self.going_on) > OPEN_LIMIT:  # left alone, and never ended
                    del self.going_on[next(iter(self.going_on))]
            elif begun_ns is None:
                continue
            self.go_on(start_ns if begun_ns is None else begun_ns, end_ns)

    def until(self, round_: int, time_ns: int) -> None:
        """Count a pass that goes on up to some time."""
        if round_ in self.going_on:
            self.go_on(self.going_on[round_], time_ns)

    def go_on(self, start_ns: int, end_ns: int) -> None:
        """Count a stretch of a pass, but for what was counted of another one."""
        covered = self._covered
        while covered and covered[-1][1] >= start_ns:
            first_ns, last_ns = covered.pop()
            self.wall_ns -= last_ns - first_ns
            start_ns, end_ns = min(start_ns, first_ns), max(end_ns, last_ns)
        covered.append((start_ns, end_ns))
        self.wall_ns += end_ns - start_ns
        del covered[:-OPEN_LIMIT]

    @property
    def packed(self) -> tuple[int, ...]:
        """What `unpacked` makes the same of, but for passes inside passes inside passes."""
        last_ns = self._covered[-1][1] if self._covered else 0
        open_ = [(-1, last_ns), (-1, last_ns), *self.going_on.items()][-2:]
        since_ns = min(end_ns for _, end_ns in open_)
        inside_ns = sum(max(0, end - max(start, since_ns)) for start, end in self._covered)
        sums = self.n_batches, self.wait_ns, self.wall_ns
        return *sums, last_ns, inside_ns, *open_[0], *open_[1]

    @classmethod
    def unpacked(cls, numbers: Sequence[int]) -> Self:
        """Return what can be gone on with."""
        n_batches, wait_ns, wall_ns, last_ns, inside_ns, *open_ = numbers
        going_on = {open_[0]: open_[1], open_[2]: open_[3]}
        return cls(n_batches, wait_ns, wall_ns, going_on, [(last_ns - inside_ns, last_ns)])


@dataclass(slots=True)
class Fold:
    """Sums of the spans that one process, or its ended workers, no longer have one by one.

    Parameters
    ----------
    turn : int
        How often it was written; 0 is never.
    pending : int
        What is in the sums and may still be there: the place of a chunk, or `fold_name` of a file.
    until_ns : int
        The end of the last span in it.
    n_spans : int
        Spans in it.
    own_ns : int
        What recording took in the workers whose files are gone.
    loop : LoopSums
        Of the thread that waited for most batches.
    sums : dict
        (kind, label number): [spans, nanoseconds, bytes or -1]. A stage's own time, without that
        of stages inside it; waits are whole, those of all threads.
    """

    turn: int = 0
    pending: int = 0
    until_ns: int = 0
    n_spans: int = 0
    own_ns: int = 0
    loop: LoopSums = field(default_factory=LoopSums)
    sums: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _loops: dict[int, LoopSums] = field(default_factory=dict)
    _open: dict[int, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)

    def add(self, spans: NDArray[Any], lane: int) -> None:
        """Add the spans of one thread, in the order of their ends, after those added before."""
        for first in range(0, len(spans), layout.SPANS_PER_CHUNK):
            self._add(spans[first : first + layout.SPANS_PER_CHUNK], lane)

    def _add(self, spans: NDArray[Any], lane: int) -> None:
        self.n_spans += len(spans)
        spans = spans[(spans["flags"] & NEVER_SUMMED) == 0]
        if not len(spans):
            return
        self.until_ns = max(self.until_ns, int(spans["end_ns"].max()))
        kind = spans["kind"]
        is_pass = (kind == Kind.OTHER) & (spans["label"] != 0)  # around everything in it
        of_loop = (kind == Kind.WAIT) | (is_pass & (spans["sample"] >= 0))
        if of_loop.any():
            loop = self._loops.setdefault(lane, LoopSums())
            loop.add(spans[of_loop])
            if loop.n_batches >= self.loop.n_batches:
                self.loop = loop
        counted = spans[~is_pass]
        spent_ns = counted["end_ns"] - counted["start_ns"]
        inside = ~is_one_of(counted["kind"], AROUND)
        spent_ns[inside] = self._alone_ns(counted["start_ns"][inside], spent_ns[inside], lane)
        stages = stage_keys(counted)
        for stage in np.unique(stages).tolist():
            rows = stages == stage
            nbytes = counted["nbytes"][rows]
            self._count(
                halves(stage),
                int(rows.sum()),
                int(spent_ns[rows].sum()),
                -1 if (nbytes < 0).any() else int(nbytes.sum()),
            )

    def _alone_ns(self, start_ns: NDArray[Any], spent_ns: NDArray[Any], lane: int) -> NDArray[Any]:
        """Return the time of each span without that of those directly inside it."""
        # What ended before and has no span around it yet, oldest first, is asked once more.
        none = np.empty(0, np.int64)
        open_start_ns, open_ns = self._open.get(lane, (none, none))
        start_ns = np.concatenate([open_start_ns, start_ns])
        all_ns = np.concatenate([open_ns, spent_ns])
        around = _around(start_ns)
        own_ns = all_ns.copy()
        within = around >= 0
        np.subtract.at(own_ns, around[within], all_ns[within])
        left = np.flatnonzero(~within)[-OPEN_LIMIT:]
        self._open[lane] = start_ns[left], all_ns[left]
        found: NDArray[Any] = np.maximum(own_ns[len(open_ns) :], 0)
        return found

    def _count(self, stage: tuple[int, int], n_spans: int, spent_ns: int, nbytes: int) -> None:
        found = self.sums.get(stage)
        if found is None:
            if len(self.sums) >= layout.FOLD_LIMIT - 1 and stage != OTHERS:
                self._count(OTHERS, n_spans, spent_ns, nbytes)
                return
            found = self.sums[stage] = [0, 0, 0]
        found[0] += n_spans
        found[1] += spent_ns
        found[2] = -1 if nbytes < 0 or found[2] < 0 else found[2] + nbytes

    def merge(self, other: Fold, labels: Mapping[int, int]) -> None:
        """Add stages that another process folded; ``labels`` are our numbers for its texts."""
        for (kind, label), (n_spans, spent_ns, nbytes) in other.sums.items():
            self._count((kind, labels.get(label, 0)), n_spans, spent_ns, nbytes)
        self.n_spans += other.n_spans
        self.own_ns += other.own_ns
        self.until_ns = max(self.until_ns, other.until_ns)

    def packed(self) -> bytes:
        """Return what goes into the header of the span file."""
        sums = (layout.FOLD_SUM.pack(*stage, *found) for stage, found in self.sums.items())
        head = layout.FOLD_HEAD.pack(
            0, self.turn, self.pending, self.until_ns, self.n_spans, self.own_ns,
            *self.loop.packed, len(self.sums),
        )  # fmt: skip
        body = head[4:] + b"".join(sums)
        return zlib.crc32(body).to_bytes(4, "little") + body


def _around(start_ns: NDArray[Any]) -> NDArray[np.int64]:
    """Return for each of spans in the order of their ends the next one that is around it, or -1."""
    found = np.full(len(start_ns), -1, np.int64)
    if not len(start_ns):
        return found
    least_after = np.minimum.accumulate(start_ns[:0:-1])[::-1]
    asked = np.flatnonzero(least_after <= start_ns[:-1])
    later = asked + 1
    while len(asked):
        is_around = start_ns[later] <= start_ns[asked]
        found[asked[is_around]] = later[is_around]
        asked, later = asked[~is_around], later[~is_around] + 1
    return found


def _can_be(fold: Fold) -> bool:
    """Return whether a process can have folded this: the sum of a file's bytes says little."""
    counts = [fold.until_ns, fold.n_spans, fold.own_ns]
    counts += [number + 1 for number in fold.loop.packed]
    counts += [count for sums in fold.sums.values() for count in (*sums[:2], sums[2] + 1)]
    return all(0 <= count < LARGEST for count in counts) and KINDS.issuperset(
        kind for kind, _ in fold.sums
    )


def unpacked_fold(header: bytes) -> Fold | None:
    """Return what the header of a span file says was folded; None if nothing was."""
    found: Fold | None = None
    for offset in layout.FOLD_OFFSETS:
        crc, *numbers, n_sums = layout.FOLD_HEAD.unpack_from(header, offset)
        end = offset + layout.FOLD_HEAD.size + n_sums * layout.FOLD_SUM.size
        if not numbers[0] or n_sums > layout.FOLD_LIMIT or end > len(header):
            continue
        if zlib.crc32(header[offset + 4 : end]) != crc or (found and numbers[0] < found.turn):
            continue
        turn, pending, until_ns, n_spans, own_ns, *of_loop = numbers
        loop = LoopSums.unpacked(of_loop)
        fold = Fold(turn, pending, until_ns, n_spans, own_ns, loop)
        for place in range(offset + layout.FOLD_HEAD.size, end, layout.FOLD_SUM.size):
            kind, label, *counts = layout.FOLD_SUM.unpack_from(header, place)
            fold.sums[kind, label] = counts
        if _can_be(fold):
            found = fold
    return found
