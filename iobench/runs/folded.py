"""Runs too long to be kept whole: where their spans begin, and the sums of what was before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.folding import Fold, LoopSums
from iobench.recording.kinds import QUEUED_KINDS, WHOLE, Kind, stage_name
from iobench.runs.contents import Folded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.recording.facts import ProcessFacts
    from iobench.recording.span_reader import SpanFile


def without_folded(
    spans: NDArray[Any],
    files: Sequence[SpanFile],
    strings: Sequence[str],
    facts: Sequence[ProcessFacts],
) -> tuple[NDArray[Any], Folded | None]:
    """Return the spans from the first batch on that all processes still have whole.

    Processes fold at different times; what is left of earlier batches goes into the sums as well,
    so that no batch is seen in part.

    Parameters
    ----------
    files : sequence of SpanFile
        By number of the process.
    strings : sequence of str
        Texts of the spans' labels.

    Returns
    -------
    (ndarray, Folded or None)
        None where nothing was folded, and all spans.
    """
    if all(file.fold is None for file in files):
        return spans, None
    number = {text: place for place, text in enumerate(strings)}
    total, gone = Fold(), np.zeros(len(spans), dtype=bool)
    for rank in sorted({file.rank for file in files if file.fold is not None}):
        mine = np.array([file.rank == rank for file in files])[spans["process"]]
        until_ns = 0
        for file in files:
            if file.rank == rank and file.fold is not None:
                labels = {key: number.get(text, 0) for key, text in file.strings.items()}
                total.merge(file.fold, labels)
                until_ns = max(until_ns, file.fold.until_ns)
        ahead = max(
            (each.workers * each.prefetch for told in facts if told.rank == rank
             for each in told.loaders), default=0,
        )  # fmt: skip
        gone |= mine & _before(spans, files, mine, until_ns, ahead)
    loops = _loops(spans, files, gone)
    for process in np.unique(spans["process"][gone]).tolist():
        of_process = spans[gone & (spans["process"] == process)]
        for thread in np.unique(of_process["thread"]).tolist():
            total.add(of_process[of_process["thread"] == thread], process << 16 | thread)
    return _rounds_cut(spans, gone, total.until_ns), _folded(total, loops, strings)


def _loops(
    spans: NDArray[Any], files: Sequence[SpanFile], gone: NDArray[np.bool_]
) -> list[LoopSums]:
    """Return what each training process waited in what was folded, and in what is left of it."""
    found = []
    for rank in sorted({file.rank for file in files}):
        of_rank = [
            (file.fold.loop if file.fold is not None else LoopSums(), process)
            for process, file in enumerate(files)
            if file.rank == rank and file.role == "consumer"
        ]
        if not of_rank:
            continue
        loop, process = max(of_rank, key=lambda each: each[0].n_batches)
        mine = spans["process"] == process
        waits = mine & (spans["kind"] == Kind.WAIT)
        threads = spans["thread"][waits]
        if len(threads):
            mine &= spans["thread"] == np.bincount(threads).argmax()
        rounds = mine & _is_round(spans)
        loop.add(spans[mine & gone & (waits | rounds)])
        kept = spans[mine & ~gone & (waits | rounds)]
        asked_ns = kept["start_ns"][kept["kind"] == Kind.WAIT]
        for round_ in [*loop.going_on]:
            ends_ns = kept["end_ns"][kept["sample"] == round_]
            if len(ends_ns):
                loop.until(round_, int(min(asked_ns.min(initial=ends_ns.max()), ends_ns.max())))
        found.append(loop)
    return found


def _before(
    spans: NDArray[Any],
    files: Sequence[SpanFile],
    mine: NDArray[np.bool_],
    until_ns: int,
    ahead: int,
) -> NDArray[np.bool_]:
    """Return a mark for the spans of one training process that are left of folded batches.

    A batch that was asked for before ``until_ns`` is one of the next ``ahead`` to be delivered.
    """
    before = spans["start_ns"] < until_ns
    delivered = mine & (spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)
    asked = np.sort(spans["start_ns"][delivered & ~before])
    first_ns = asked[min(ahead, len(asked) - 1)] if len(asked) else until_ns
    of_loop = np.array([file.role == "consumer" for file in files])[spans["process"]]
    before |= of_loop & (spans["start_ns"] < first_ns)
    going_on = _is_round(spans) & (spans["end_ns"] > first_ns)
    marks: NDArray[np.bool_] = before & ~going_on
    return marks


def _is_round(spans: NDArray[Any]) -> NDArray[np.bool_]:
    marks: NDArray[np.bool_] = (spans["kind"] == Kind.OTHER) & (spans["label"] != 0)
    return marks & (spans["sample"] >= 0)


def _rounds_cut(spans: NDArray[Any], gone: NDArray[np.bool_], until_ns: int) -> NDArray[Any]:
    """Return what is left, with passes that go on as if the recording had begun within them."""
    left = spans[~gone]
    for row in np.flatnonzero(_is_round(left) & (left["start_ns"] <= until_ns)).tolist():
        one = left[row]
        waits = (spans["kind"] == Kind.WAIT) & (spans["process"] == one["process"])
        begins_ns = spans["start_ns"][waits & ~gone].min(initial=one["end_ns"])
        waits &= spans["sample"] == one["sample"]
        if begins_ns > one["start_ns"]:  # a pass begins with a wait, its own or of one inside it
            left["start_ns"][row] = begins_ns
            left["nbytes"][row] = max(int(one["nbytes"]), 0) + max(int((waits & gone).sum()), 1)
    return left


def _folded(total: Fold, loops: Sequence[LoopSums], strings: Sequence[str]) -> Folded:
    busy_ns: dict[str, int] = {}
    for (kind, label), (_, spent_ns, _) in sorted(total.sums.items()):
        if kind == Kind.WAIT and strings[label] == WHOLE:  # the loop made all of the batch in it
            kind = Kind.FUSED
        if kind != Kind.WAIT and kind not in QUEUED_KINDS:
            name = stage_name(Kind(kind), strings[label])
            busy_ns[name] = busy_ns.get(name, 0) + spent_ns
    return Folded(
        until_ns=total.until_ns,
        n_batches=sum(loop.n_batches for loop in loops),
        wait_ns=sum(loop.wait_ns for loop in loops),
        wall_ns=sum(loop.wall_ns for loop in loops),
        busy_ns=busy_ns,
        workers_own_ns=total.own_ns,
    )
