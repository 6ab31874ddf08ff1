"""Runs too long to be kept whole: which batches have details, and the sums of those between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.kinds import (
    QUEUED_KINDS,
    ROUND,
    STARTUP,
    TRAINS,
    WHOLE,
    Kind,
    stage_name,
)
from iobench.recording.span_file import Flag
from iobench.recording.sums import LaneSums, Sums, union
from iobench.runs.contents import Summed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.recording.span_reader import SpanFile
    from iobench.recording.sums import GapOfBatches


def without_gaps(
    spans: NDArray[Any], files: Sequence[SpanFile], strings: Sequence[str]
) -> tuple[NDArray[Any], Summed | None]:
    """Return the spans of batches that have all details, and the sums of the others."""
    if all(file.sums is None for file in files):
        return spans, None
    total, loops, retained = Sums(), [], []
    for process, file in enumerate(files):
        mine = spans[spans["process"] == process]
        gap = _gap_of(file, files)
        sums = file.sums or Sums()
        if gap is not None:
            held = ~gap.precede(mine) & ~gap.follow(mine)
            if file.role == "consumer":  # what it does for later batches is time of these as well
                held |= (mine["end_ns"] > gap.from_ns) & (mine["end_ns"] <= gap.until_ns)
            _take(sums, file, held)
            mine = mine[~held]
            if file.role == "consumer":
                loops.append(_Loop(file, gap, sums, mine))
                mine = loops[-1].cut(strings)
        total.merge(sums)
        retained.append(mine)
    return np.concatenate(retained), _summed(total, loops)


def _gap_of(file: SpanFile, files: Sequence[SpanFile]) -> GapOfBatches | None:
    """Return what has no details of a process: as its training process says."""
    loops = {
        each.pid: each.sums.gap
        for each in files
        if each.rank == file.rank and each.role == "consumer" and each.sums is not None
    }
    only = next(iter(loops.values())) if len(loops) == 1 else None
    return loops.get(file.pid, loops.get(file.ppid, only))


def _take(sums: Sums, file: SpanFile, held: NDArray[np.bool_]) -> None:
    """Add spans that are still there, in the order of their ends."""
    for thread, lane in enumerate(file.lanes):
        chosen = file.spans[held & (file.threads == thread)]
        known = sums.lanes.get(lane)
        before = chosen["sequence"] < (0 if known is None else known.begin)
        if known is not None and before.any():
            first = Sums()
            first.add(lane, chosen[before], file.strings)
            sums.merge(first)
            waits = first.lanes[lane]
            known.n_batches += waits.n_batches
            known.wait_ns += waits.wait_ns
            known.between_ns += waits.between_ns
            known.wall_ns += waits.wall_ns
            known.covered = union([*known.covered, *waits.covered])
        sums.add(lane, chosen[~before], file.strings)


class _Loop:
    """What a training process waited for, with details and without; ``spans`` have details."""

    def __init__(self, file: SpanFile, gap: GapOfBatches, sums: Sums, spans: NDArray[Any]) -> None:
        self.gap = gap
        self._spans = spans
        waits = (spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0) & (spans["flags"] == 0)
        n_batches = [
            int((waits & (spans["thread"] == thread)).sum())
            + (sums.lanes[lane].n_batches if lane in sums.lanes else 0)
            for thread, lane in enumerate(file.lanes)
        ]
        main = int(np.argmax(n_batches)) if n_batches else -1
        self.sums = sums.lanes.get(file.lanes[main] if n_batches else -1, LaneSums(0, 0))
        self._covered = [*self.sums.covered]

    @property
    def wall_ns(self) -> int:
        """The time of passes over loaders without details."""
        begin, end = self.gap.from_ns, self.gap.until_ns
        clipped = [(max(start, begin), min(stop, end)) for start, stop in self._covered]
        return self.sums.wall_ns + sum(b - a for a, b in union([s for s in clipped if s[0] < s[1]]))

    def cut(self, strings: Sequence[str]) -> NDArray[Any]:
        """Return the spans; a pass across the gap is one before and another one after it."""
        gap, spans = self.gap, self._spans.copy()
        number = {text: place for place, text in enumerate(strings)}
        waits, before = spans["kind"] == Kind.WAIT, spans["end_ns"] <= gap.from_ns
        other = (spans["kind"] == Kind.OTHER) & (spans["sample"] >= 0)
        begins, rounds, trains = (
            marks & (spans["label"] == number.get(text, -1))
            for marks, text in ((waits, STARTUP), (other, ROUND), (other, TRAINS))
        )
        of_pass = waits | rounds | trains
        passes = dict(self.sums.passes)
        open_ = _passes(spans[waits & before]) - _passes(spans[rounds & before])
        go_on = _passes(spans[of_pass & ~before]) & (open_ | passes.keys())
        next_number = int(spans["sample"].max(initial=0)) + 1
        added: list[NDArray[Any]] = []
        for pass_ in sorted(open_ | go_on):
            mine = of_pass & (spans["sample"] == pass_)
            early, late = mine & before, mine & ~before
            begun, summed = spans[early], passes.pop(pass_, None)
            text = summed.text if summed is not None else ""
            for detail in spans["detail"][early & begins][:1]:
                text = strings[detail]
            if len(begun):
                loader = number.get(text.partition(" ")[0], 0)
                added.append(_mark(begun[:1], number.get(ROUND, 0), loader, pass_))
                added[-1]["start_ns"], added[-1]["end_ns"] = begun["start_ns"].min(), gap.from_ns
                added[-1]["nbytes"] = 0
            start_ns = gap.from_ns if summed is None or len(begun) else summed.start_ns
            end_ns = gap.from_ns if summed is None else summed.end_ns
            if late.any():
                end_ns = gap.until_ns
                n_before = int((begun["batch"] >= 0).sum()) + (summed.n_batches if summed else 0)
                ends = late & rounds
                spans["start_ns"][ends] = gap.until_ns
                spans["nbytes"][ends] += max(n_before, 1)
                first = spans[late][:1]
                if len(begun):
                    spans["sample"][late] = next_number
                    pass_, next_number = next_number, next_number + 1
                marks = []
                is_begun = (early & begins).any() if len(begun) else text in number
                if is_begun and STARTUP in number:
                    marks.append(_mark(first, number[STARTUP], number[text], pass_))
                    marks[-1]["kind"] = Kind.WAIT
                if (early & trains).any() or (summed is not None and summed.trains):
                    marks.append(_mark(first, number[TRAINS], 0, pass_))
                    marks[-1]["flags"] = Flag.DETAIL
                for mark in marks:
                    mark["start_ns"] = mark["end_ns"] = gap.until_ns
                added += marks
            self._covered.append((start_ns, end_ns))
        self._covered += [(each.start_ns, each.end_ns) for each in passes.values()]
        table = np.concatenate([spans, *added])
        cut: NDArray[Any] = table[np.lexsort((table["end_ns"], table["thread"]))]
        return cut


def _passes(spans: NDArray[Any]) -> set[int]:
    return {*spans["sample"].tolist()} - {-1}


def _mark(row: NDArray[Any], label: int, detail: int, pass_: int) -> NDArray[Any]:
    """Return a span of kind ``other`` of a pass, shape (1,), by the thread of another one."""
    mark = row.copy()
    mark["kind"], mark["label"], mark["detail"], mark["sample"] = Kind.OTHER, label, detail, pass_
    mark["batch"] = mark["nbytes"] = mark["cpu_ns"] = -1
    mark["flags"] = 0
    return mark


def _summed(total: Sums, loops: Sequence[_Loop]) -> Summed | None:
    if not loops:
        return None
    busy_ns: dict[str, int] = {}
    for key, sums in sorted(total.stages.items()):
        number, _, label = key.partition(":")
        kind = Kind(int(number))
        if kind == Kind.WAIT and label == WHOLE:  # the loop made all of the batch in it
            kind = Kind.FUSED
        if kind != Kind.WAIT and kind not in QUEUED_KINDS:
            name = stage_name(kind, label)
            busy_ns[name] = busy_ns.get(name, 0) + sums.own_ns
    return Summed(
        from_ns=min(loop.gap.from_ns for loop in loops),
        until_ns=max(loop.gap.until_ns for loop in loops),
        n_batches=sum(loop.sums.n_batches for loop in loops),
        wait_ns=sum(loop.sums.wait_ns for loop in loops),
        wall_ns=sum(loop.wall_ns for loop in loops),
        busy_ns=busy_ns,
        workers_own_ns=total.own_ns,
        own_ns=sum(loop.sums.between_ns for loop in loops),
    )
