"""Runs too long to be kept whole: which batches have details, and the sums of those between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.kinds import QUEUED_KINDS, WHOLE, Kind, stage_name
from iobench.recording.sums import ROUND, STARTUP, TRAINS, LaneSums, PassSums, Sums, union
from iobench.runs.contents import Summed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.recording.span_reader import SpanFile
    from iobench.recording.sums import GapOfBatches


def without_gaps(
    spans: NDArray[Any], files: Sequence[SpanFile], strings: Sequence[str]
) -> tuple[NDArray[Any], Summed | None]:
    """Return the spans of batches that have all details, and the sums of the others.

    Processes drop segments as they come to it; what is left of the same batches goes into the sums
    as well, so that no batch is shown in part.

    Parameters
    ----------
    files : sequence of SpanFile
        By number of the process.
    strings : sequence of str
        Texts of the spans' labels.
    """
    if all(file.sums is None for file in files):
        return spans, None
    total, loops = Sums(), []
    retained = []
    for process, file in enumerate(files):
        mine = spans[spans["process"] == process]
        gap = _gap_of(file, files)
        sums = file.sums or Sums()
        if gap is not None:
            held = gap.hold(mine)
            if file.role == "consumer":  # what it does for later batches is time of these as well
                held |= (mine["end_ns"] > gap.from_ns) & (mine["end_ns"] <= gap.until_ns)
            _take(sums, file, held)
            if file.role == "consumer":
                loops.append(_Loop(file, gap, sums, mine, held))
                mine = loops[-1].passes_cut(strings)
            else:
                mine = mine[~held]
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
        if before.any():
            first = Sums()
            first.add(lane, chosen[before], file.strings)
            sums.merge(first)
            if known is not None:
                _add_waits(known, first.lanes[lane])
        sums.add(lane, chosen[~before], file.strings)


def _add_waits(sums: LaneSums, other: LaneSums) -> None:
    sums.n_batches += other.n_batches
    sums.wait_ns += other.wait_ns
    sums.wall_ns += other.wall_ns
    sums.covered = union([*sums.covered, *other.covered])


class _Loop:
    """What a training process waited for, with details and without."""

    def __init__(
        self,
        file: SpanFile,
        gap: GapOfBatches,
        sums: Sums,
        spans: NDArray[Any],
        held: NDArray[np.bool_],
    ) -> None:
        self.gap = gap
        self._kept = spans[~held]
        waits = (self._kept["kind"] == Kind.WAIT) & (self._kept["batch"] >= 0)
        n_batches = [
            int((waits & (self._kept["thread"] == thread)).sum())
            + (sums.lanes[lane].n_batches if lane in sums.lanes else 0)
            for thread, lane in enumerate(file.lanes)
        ]
        main = int(np.argmax(n_batches)) if n_batches else -1
        lane = file.lanes[main] if n_batches else -1
        self.sums = sums.lanes.get(lane, LaneSums(0, 0))
        before = waits & (self._kept["thread"] == main) & (self._kept["end_ns"] <= gap.from_ns)
        self.n_before = int(before.sum())
        self._passes = dict(self.sums.passes)

    @property
    def wall_ns(self) -> int:
        """The time of passes over loaders without details."""
        gap = self.gap
        covered = [*self.sums.covered, *((each.start_ns, each.end_ns) for each in self._covered)]
        clipped = [(max(start, gap.from_ns), min(end, gap.until_ns)) for start, end in covered]
        return self.sums.wall_ns + sum(end - start for start, end in union(clipped) if end > start)

    def passes_cut(self, strings: Sequence[str]) -> NDArray[Any]:
        """Return the kept spans; a pass across the gap is one before and another one after it."""
        gap, retained = self.gap, self._kept.copy()
        text = {word: strings.index(word) if word in strings else -1
                for word in (ROUND, STARTUP, TRAINS)}  # fmt: skip
        waits = retained["kind"] == Kind.WAIT
        other = (retained["kind"] == Kind.OTHER) & (retained["sample"] >= 0)
        rounds = other & (retained["label"] == text[ROUND])
        before = retained["end_ns"] <= gap.from_ns
        ended = {*retained["sample"][rounds & before].tolist()}
        open_ = {*retained["sample"][waits & before].tolist()} - ended - {-1}
        after = {*retained["sample"][(waits | rounds) & ~before].tolist()} - {-1}
        added: list[NDArray[Any]] = []
        self._covered: list[PassSums] = []
        number = int(retained["sample"].max(initial=0)) + 1
        for pass_ in sorted(open_):
            mine = retained[before & (waits | other) & (retained["sample"] == pass_)]
            end = mine[:1].copy()
            end["kind"], end["label"], end["flags"] = Kind.OTHER, text[ROUND], 0
            end["start_ns"], end["end_ns"] = mine["start_ns"].min(), gap.from_ns
            end["batch"], end["nbytes"], end["cpu_ns"] = -1, 0, -1
            end["detail"] = _loader_text(mine, strings, text[STARTUP])
            added.append(end)
        for pass_ in sorted(after & (open_ | self._passes.keys())):
            mine = retained[before & (retained["sample"] == pass_)]
            summed = self._passes.get(pass_)
            later = ~before & (retained["sample"] == pass_)
            n_before = (summed.n_batches if summed else 0) + int((mine["batch"] >= 0).sum())
            marks = later & rounds
            retained["start_ns"][marks] = gap.until_ns
            retained["nbytes"][marks] += max(n_before, 1)
            if pass_ in open_:
                retained["sample"][later & (waits | other)] = number
                new, number = number, number + 1
            else:
                new = pass_
            begins = mine[(mine["kind"] == Kind.WAIT) & (mine["label"] == text[STARTUP])][:1].copy()
            steps = mine[(mine["kind"] == Kind.OTHER) & (mine["label"] == text[TRAINS])][:1].copy()
            if summed is not None and not len(mine):
                row = retained[later][:1].copy()
                row["batch"] = row["nbytes"] = row["cpu_ns"] = -1
                if summed.text in strings and text[STARTUP] >= 0:
                    begins = row.copy()
                    begins["kind"], begins["label"] = Kind.WAIT, text[STARTUP]
                    begins["detail"] = strings.index(summed.text)
                if summed.trains and text[TRAINS] >= 0:
                    steps = row.copy()
                    steps["kind"], steps["label"] = Kind.OTHER, text[TRAINS]
                    steps["detail"] = 0
            for row in (begins, steps):
                row["start_ns"] = row["end_ns"] = gap.until_ns
                row["sample"] = new
                added.append(row)
        for pass_ in open_ | (after & self._passes.keys()):
            start = gap.from_ns if pass_ in open_ else self._passes[pass_].start_ns
            known = self._passes.get(pass_)
            end_ns = gap.until_ns if pass_ in after else (known.end_ns if known else gap.from_ns)
            self._covered.append(PassSums(start, end_ns))
        self._covered += [each for pass_, each in self._passes.items() if pass_ not in after]
        table = np.concatenate([retained, *added])
        order = np.lexsort((table["end_ns"], table["thread"]))
        cut: NDArray[Any] = table[order]
        return cut


def _loader_text(spans: NDArray[Any], strings: Sequence[str], startup: int) -> int:
    """Return the number of the text that names the loader of a pass, by its first wait."""
    begins = spans[(spans["kind"] == Kind.WAIT) & (spans["label"] == startup)]
    text = strings[begins["detail"][0]].partition(" ")[0] if len(begins) else ""
    return strings.index(text) if text in strings else 0


def _summed(total: Sums, loops: Sequence[_Loop]) -> Summed | None:
    busy_ns: dict[str, int] = {}
    for key, sums in sorted(total.stages.items()):
        number, _, label = key.partition(":")
        kind = Kind(int(number))
        if kind == Kind.WAIT and label == WHOLE:  # the loop made all of the batch in it
            kind = Kind.FUSED
        if kind != Kind.WAIT and kind not in QUEUED_KINDS:
            name = stage_name(kind, label)
            busy_ns[name] = busy_ns.get(name, 0) + sums.own_ns
    if not loops:
        return None
    return Summed(
        from_ns=min(loop.gap.from_ns for loop in loops),
        until_ns=max(loop.gap.until_ns for loop in loops),
        n_before=sum(loop.n_before for loop in loops),
        n_batches=sum(loop.sums.n_batches for loop in loops),
        wait_ns=sum(loop.sums.wait_ns for loop in loops),
        wall_ns=sum(loop.wall_ns for loop in loops),
        busy_ns=busy_ns,
        workers_own_ns=total.own_ns,
    )
