"""What a training loop gets without asking a loader, as waits: what it reads itself, and keeps.

Batches that were taken before the first step, with nothing done between them, are no pass but an
initial load; the steps on what was kept of them are a pass that waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.recording.delivery_log import RESUMED
from iobench.recording.kinds import (
    BETWEEN,
    GRAPH,
    MIXED_KINDS,
    READING_KINDS,
    Kind,
    is_one_of,
)
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import is_of_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]
OWN_PASS: Final = -2
"""Number of the loader that a loop is to itself."""
READS: Final = READING_KINDS | MIXED_KINDS | {Kind.DECODE, Kind.LOCK}
AROUND: Final = frozenset({Kind.WAIT, Kind.CHECKPOINT, Kind.STAGE_IN})
"""What is read in these is of theirs."""
USES: Final = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.STEP})
TAKEN: Final = 0.05
"""Of the time of a pass, below what is done between its batches: they are taken, not used."""


def outermost(spans: NDArray[Any], kinds: Iterable[Kind]) -> NDArray[Any]:
    """Return the spans of one thread of some kinds, in order of time, but those inside others."""
    result = spans[is_one_of(spans["kind"], kinds) & (spans["flags"] == 0)]
    result = result[np.lexsort((-result["end_ns"].astype(np.int64), result["start_ns"]))]
    before = np.maximum.accumulate(result["end_ns"].astype(np.int64))
    inside = np.append(False, result["end_ns"][1:] <= before[:-1])[: len(result)]
    outer: NDArray[Any] = result[~inside]
    return outer


def with_own_passes(
    profile: RunData, waits: NDArray[Any], lane: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the waits of a thread with what it got without a loader, and those of initial loads.

    ``lane`` has all its spans.
    """
    used = outermost(lane, USES)
    initial = _initial(profile, waits, used)
    number, first = (int(waits[name].max(initial=-1)) + 1 for name in ("sample", "batch"))
    initial_waits, waits = waits[initial], waits[~initial]
    reads = _reads(profile, lane)
    own = None
    if len(used):
        has_initial = bool(initial.any())
        own = _own_pass(lane, waits, reads, int(used["start_ns"][0]), has_initial=has_initial)
    if own is not None:
        own["sample"] = number
        own["batch"][own["batch"] >= 0] += first
    else:
        own = _in_passes(profile, lane, waits, reads)
    result = np.concatenate((waits, own))
    return result[np.argsort(result["start_ns"], kind="stable")], initial_waits


def _step_ends(lane: NDArray[Any]) -> Integers:
    """Return when each step ended, of several optimisers of that one which steps least often."""
    for kind in (Kind.STEP, Kind.BACKWARD):
        steps = outermost(lane, {kind})
        if len(steps):
            _, number, counts = np.unique(steps["detail"], return_inverse=True, return_counts=True)
            rarest: Integers = steps["end_ns"][number == int(np.argmin(counts))].astype(np.int64)
            return rarest
    return np.zeros(0, dtype=np.int64)


def _initial(profile: RunData, waits: NDArray[Any], used: NDArray[Any]) -> Marks:
    """Tell which waits are of passes that were taken whole before anything was done with them.

    None are where a later pass that evaluates nothing brings batches: what is taken may be so for
    each epoch.
    """
    result = np.zeros(len(waits), dtype=bool)
    before = waits["end_ns"] <= used["start_ns"][0] if len(used) else result
    for number in np.unique(waits["sample"][before]).tolist():
        mine = waits["sample"] == number
        each = waits[mine]
        spent_ns = int(each["end_ns"][-1]) - int(each["start_ns"][0])
        waited_ns = int((each["end_ns"] - each["start_ns"]).sum())
        if (
            before[mine].all()
            and number >= 0
            and (each["batch"] >= 0).sum() > 1
            and spent_ns - waited_ns < TAKEN * spent_ns
            and not _evaluates(profile, each)
        ):
            result |= mine
    rest = waits[~result & (waits["batch"] >= 0)] if result.any() else waits[:0]
    later = (waits[waits["sample"] == number] for number in np.unique(rest["sample"]).tolist())
    return result & all(_evaluates(profile, each) for each in later)


def _evaluates(profile: RunData, waits: NDArray[Any]) -> bool:
    """Tell whether a pass says that it does, as the detail of its first wait has it."""
    role = profile.strings[waits["detail"][0]].split(" ")[1:2]
    return waits["batch"][0] < 0 and role not in ([], ["training"], [RESUMED])


def _reads(profile: RunData, lane: NDArray[Any]) -> NDArray[Any]:
    """Return what a thread reads outside of its waits, in order."""
    if not len(lane):
        return lane
    graphs = (lane["kind"] == Kind.PREPROCESS) & (lane["label"] == profile.string_number(GRAPH))
    reads = lane.copy()
    reads["kind"][graphs] = Kind.READ
    own = [is_of_interpreter(text) for text in profile.strings]
    reads = reads[~np.array(own, dtype=bool)[reads["detail"]]]
    # What takes all of a wait lies in it.
    reads = reads[np.argsort(~is_one_of(reads["kind"], AROUND), kind="stable")]
    reads = outermost(reads, READS | AROUND)
    timed = is_one_of(reads["kind"], READS) & (reads["end_ns"] > reads["start_ns"])
    return reads[timed]


def _as_waits(spans: NDArray[Any], number: Integers | int) -> NDArray[Any]:
    """Return waits that bring no batch where there are spans, of a pass."""
    result = spans.copy()
    for name in ("nbytes", "cpu_ns", "batch", "epoch"):
        result[name] = -1
    result["kind"], result["flags"], result["sample"] = Kind.WAIT, Flag.ESTIMATED, number
    result["label"] = result["detail"] = 0
    return result


def _in_passes(
    profile: RunData, lane: NDArray[Any], waits: NDArray[Any], reads: NDArray[Any]
) -> NDArray[Any]:
    """Return what a loop reads within its passes, between two waits of one, as waits of it.

    Not of passes that were recorded before it was noted who asks: their figures stay.
    """
    noted = lane["sample"][lane["label"] == profile.string_number(BETWEEN)]
    numbers, of_wait = np.unique(waits["sample"], return_inverse=True)
    last = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(last, of_wait.reshape(-1), waits["start_ns"].astype(np.int64))
    at = np.searchsorted(waits["start_ns"], reads["start_ns"], side="right") - 1
    reads, at = reads[at >= 0], at[at >= 0]
    inside = (reads["start_ns"] < last[of_wait.reshape(-1)[at]]) & np.isin(
        waits["sample"][at], noted
    )
    return _as_waits(reads[inside], waits["sample"][at[inside]])


def _own_pass(
    lane: NDArray[Any],
    waits: NDArray[Any],
    reads: NDArray[Any],
    start_ns: int,
    *,
    has_initial: bool,
) -> NDArray[Any] | None:
    """Return the pass of a loop that reads by itself, or has all in memory; None of any other.

    Each step has a wait that brings its batch: the last read since the step before, else none that
    takes time. So it is where at least half of the steps read, or an initial load went before, and
    no loader brought a batch for them.
    """
    ends = _step_ends(lane)
    if not len(ends):
        return None
    reads = reads[(reads["start_ns"] >= start_ns) & (reads["start_ns"] < ends[-1])]
    turn = np.searchsorted(ends, reads["start_ns"], side="right")
    brought = waits[waits["batch"] >= 0]
    served = np.unique(np.searchsorted(ends, brought["end_ns"], side="right"))
    if 2 * len(served) > len(ends) or not (has_initial or 2 * len(np.unique(turn)) > len(ends)):
        return None
    own = _as_waits(reads, 0)
    last = np.append(turn[1:] != turn[:-1], True)[: len(turn)]
    own["batch"][last] = turn[last]
    bare = np.setdiff1d(np.arange(len(ends)), turn)
    begins = np.append(start_ns, ends[:-1])[bare]
    at = np.searchsorted(waits["end_ns"], ends[bare], side="right") - 1
    begins = np.maximum(begins, np.where(at >= 0, np.append(waits["end_ns"], 0)[at], 0))
    empty = _as_waits(np.repeat(lane[:1], len(bare) + 1), 0)
    empty["start_ns"] = empty["end_ns"] = np.append(begins, ends[-1])  # and the end of the pass
    empty["batch"][:-1] = bare
    return np.concatenate((own, empty))
