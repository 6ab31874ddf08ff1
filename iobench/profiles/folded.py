"""Runs too long to be kept whole: where their spans begin, and the sums of what was before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.profiles.contents import Folded
from iobench.recording import Kind, stage_name
from iobench.recording.folding import Fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.recording import ProcessFacts, SpanFile

__all__ = ["without_folded"]


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
    spans : ndarray of PROFILE_DTYPE
    files : sequence of SpanFile
        By number of the process.
    strings : sequence of str
        Texts of the spans' labels.
    facts : sequence of ProcessFacts

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
    for process in np.unique(spans["process"][gone]).tolist():
        of_process = spans[gone & (spans["process"] == process)]
        for thread in np.unique(of_process["thread"]).tolist():
            total.add(of_process[of_process["thread"] == thread], process << 16 | thread)
    return _rounds_cut(spans, gone, total.until_ns), _folded(total, strings)


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
        waits &= spans["sample"] == one["sample"]
        kept = spans["start_ns"][waits & ~gone]
        begins_ns = kept.min() if len(kept) else one["end_ns"]
        if begins_ns > one["start_ns"]:  # a pass begins with its first wait
            left["start_ns"][row] = begins_ns
            left["nbytes"][row] = max(int(one["nbytes"]), 0) + max(int((waits & gone).sum()), 1)
    return left


def _folded(total: Fold, strings: Sequence[str]) -> Folded:
    wait_ns = 0
    busy_ns: dict[str, int] = {}
    for (kind, label), (_, spent_ns, _) in sorted(total.sums.items()):
        if kind == Kind.WAIT:
            wait_ns += spent_ns
        else:
            name = stage_name(Kind(kind), strings[label])
            busy_ns[name] = busy_ns.get(name, 0) + spent_ns
    return Folded(total.until_ns, total.n_batches, wait_ns, busy_ns)
