"""Rounds: passes of the training loop over a loader, one after another or several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.loop import ONLY
from iobench.analysis.time_intervals import groups
from iobench.recording.delivery_log import LOADER, RESUMED, STARTUP, TRAINS
from iobench.recording.kinds import Kind, is_one_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.analysis.loop import TrainingLoop
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]


class Rounds(msgspec.Struct, frozen=True):
    """The rounds of a training loop, by their starts.

    Parameters
    ----------
    of_wait : ndarray of int64, shape (n_waits,)
        The round of each wait.
    start_ns, end_ns : ndarray of int64, shape (n_rounds,)
        They contain their waits. Rounds of several loaders may overlap.
    loader : ndarray of int64, shape (n_rounds,)
        Number of the loader, `ONLY` where it is not known.
    n_before : ndarray of int64, shape (n_rounds,)
        Deliveries before the recording began.
    numbered : ndarray of bool, shape (n_rounds,)
        Whether its waits name it; others belong to it by their time.
    recorded : ndarray of bool, shape (n_rounds,)
        Whether its end was recorded.
    role : ndarray of str, shape (n_rounds,)
        What it was for, as it told itself; ``"trains"`` where an optimiser took a step in it, and
        ``""`` where nothing is known.
    resumed : ndarray of bool, shape (n_rounds,)
        Whether it goes on where one of an earlier process was.
    """

    of_wait: Integers
    start_ns: Integers
    end_ns: Integers
    loader: Integers
    n_before: Integers
    numbered: NDArray[np.bool_]
    recorded: NDArray[np.bool_]
    role: NDArray[np.str_]
    resumed: NDArray[np.bool_]

    @property
    def stretch(self) -> Integers:
        """For each round the number of its stretch: rounds that overlap share one."""
        return groups(self.start_ns, self.end_ns)


def find_rounds(profile: RunData, loop: TrainingLoop) -> Rounds:
    """Return the rounds of a training loop.

    Rounds without a wait have nothing to say and are left out. A killed process leaves no span of
    its last rounds: they end with the last span of the training loop.
    """
    waits = loop.waits
    labels = np.array([text == "round" for text in profile.strings], dtype=bool)
    spans = profile.spans[profile.spans["process"] == loop.process]
    # Where a loader is forgotten, another thread may be the one to say so.
    marks = spans[(spans["kind"] == Kind.OTHER) & labels[spans["label"]]]
    lane = spans[spans["thread"] == loop.thread]
    named = waits["sample"] >= 0
    by_number = np.isin(marks["sample"], np.unique(waits["sample"][named]))
    parts = [
        _by_number(profile, loop, waits[named], marks[by_number], lane),
        _by_time(waits[~named], marks[~by_number & (marks["thread"] == loop.thread)], lane),
    ]
    offset = len(parts[0].start_ns)
    of_wait = np.empty(len(waits), dtype=np.int64)
    of_wait[named], of_wait[~named] = parts[0].of_wait, parts[1].of_wait + offset
    start_ns = np.concatenate([part.start_ns for part in parts])
    n_batches = np.bincount(of_wait[waits["batch"] >= 0], minlength=len(start_ns))
    end_ns = np.concatenate([part.end_ns for part in parts])
    end_ns = _with_what_followed(lane, start_ns, end_ns, n_batches)
    order = np.argsort(start_ns, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return Rounds(
        of_wait=place[of_wait],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        loader=np.concatenate([part.loader for part in parts])[order],
        n_before=np.concatenate([part.n_before for part in parts])[order],
        numbered=np.concatenate([part.numbered for part in parts])[order],
        recorded=np.concatenate([part.recorded for part in parts])[order],
        role=np.concatenate([part.role for part in parts])[order],
        resumed=np.concatenate([part.resumed for part in parts])[order],
    )


def outermost(spans: NDArray[Any], kinds: Iterable[Kind]) -> NDArray[Any]:
    """Return the spans of one thread of some kinds, in order of time, but those inside others."""
    found = spans[is_one_of(spans["kind"], kinds) & (spans["flags"] == 0)]
    found = found[np.lexsort((-found["end_ns"].astype(np.int64), found["start_ns"]))]
    before = np.maximum.accumulate(found["end_ns"].astype(np.int64))
    inside = np.append(False, found["end_ns"][1:] <= before[:-1])[: len(found)]
    outer: NDArray[Any] = found[~inside]
    return outer


def _with_what_followed(
    lane: NDArray[Any], start_ns: Integers, end_ns: Integers, n_batches: Integers
) -> Integers:
    """Return the ends of rounds with the training on batches that were drawn ahead.

    Lightning and accelerate ask for one more before they train on the last one, to know that it
    is: so the round is over by then. As many backward passes as it has batches are its own, where
    so many come before another round.
    """
    backward = outermost(lane, {Kind.BACKWARD})
    if not len(backward):
        return end_ns
    ends, began = end_ns.copy(), backward["start_ns"].astype(np.int64)
    work = lane[is_one_of(lane["kind"], {Kind.BACKWARD, Kind.STEP}) & (lane["flags"] == 0)]
    for index in np.flatnonzero(n_batches > 0).tolist():
        later = start_ns[start_ns >= end_ns[index]]
        until = int(later.min()) if len(later) else np.iinfo(np.int64).max
        first, after, last = np.searchsorted(began, (start_ns[index], end_ns[index], until))
        missing = int(n_batches[index]) - (after - first)
        if missing <= 0 or last - after < missing:
            continue  # else what followed may be anything
        if last - after > missing:
            until = int(began[after + missing])
        own = (work["start_ns"] >= end_ns[index]) & (work["start_ns"] < until)
        ends[index] = max(int(ends[index]), int(work["end_ns"][own].max(initial=0)))
    return ends


def _by_number(
    profile: RunData,
    loop: TrainingLoop,
    waits: NDArray[Any],
    marks: NDArray[Any],
    lane: NDArray[Any],
) -> Rounds:
    """Return the rounds of waits that name theirs."""
    numbers, of_wait = np.unique(waits["sample"], return_inverse=True)
    of_wait = of_wait.reshape(-1).astype(np.int64)
    starts = np.full(len(numbers), np.iinfo(np.int64).max)
    ends = np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(starts, of_wait, waits["start_ns"])
    np.maximum.at(ends, of_wait, waits["end_ns"])
    place = np.searchsorted(numbers, marks["sample"])
    np.minimum.at(starts, place, marks["start_ns"])
    np.maximum.at(ends, place, marks["end_ns"])
    recorded = np.zeros(len(numbers), dtype=bool)
    recorded[place] = True
    loader = np.full(len(numbers), ONLY, dtype=np.int64)
    n_before = np.zeros(len(numbers), dtype=np.int64)
    known = [_loader_number(text) for text in profile.strings]
    for mark, index in zip(marks, place.tolist(), strict=True):
        loader[index] = known[mark["detail"]]
        n_before[index] = max(int(mark["nbytes"]), 0)
    begins = waits["label"] == profile.string_number(STARTUP)
    told = {
        index: profile.strings[detail]
        for index, detail in zip(
            of_wait[begins].tolist(), waits["detail"][begins].tolist(), strict=True
        )
    }
    for index in np.flatnonzero(~recorded).tolist():
        loader[index] = _loader_number(told.get(index, "").partition(" ")[0])
        if loader[index] == ONLY:
            loader[index] = _loader_by_makers(profile, loop, waits["batch"][of_wait == index])
    for index in np.flatnonzero(~recorded).tolist():
        later = starts[(starts > starts[index]) & _could_be_same(loader, loader[index])]
        seen = lane["end_ns"][lane["end_ns"] <= later.min()] if len(later) else lane["end_ns"]
        last = waits[of_wait == index][-1]
        over = last["batch"] < 0 and profile.strings[last["label"]] in ("shutdown", "failed")
        if not over and len(seen):
            ends[index] = max(int(ends[index]), int(seen.max()))
    numbered = np.ones(len(numbers), dtype=bool)
    words = [told.get(index, "").split(" ")[1:] for index in range(len(numbers))]
    resumed = np.array([RESUMED in each for each in words], dtype=bool)
    role = np.array([each[0] if each and each[0] != RESUMED else "" for each in words], dtype="U16")
    # An optimiser's step says more than what was looked for as the pass began.
    steps = (lane["kind"] == Kind.OTHER) & (lane["label"] == profile.string_number(TRAINS))
    role[np.isin(numbers, lane["sample"][steps])] = TRAINS
    return Rounds(of_wait, starts, ends, loader, n_before, numbered, recorded, role, resumed)


def _could_be_same(loader: Integers, number: int) -> NDArray[np.bool_]:
    """Tell which rounds may be of the loader with this number."""
    if number == ONLY:
        return np.ones(len(loader), dtype=bool)
    same: NDArray[np.bool_] = (loader == number) | (loader == ONLY)
    return same


def _loader_number(text: str) -> int:
    number = text.removeprefix(LOADER)
    return int(number) if number != text and number.isdecimal() else ONLY


def _loader_by_makers(profile: RunData, loop: TrainingLoop, batches: NDArray[Any]) -> int:
    """Return the loader whose processes worked on these batches; `ONLY` where unknown."""
    of_pid = {pid: each.number for each in loop.loaders.values() for pid in each.worker_pids}
    spans = profile.spans[loop.mine[profile.spans["process"]]]
    spans = spans[spans["process"] != loop.process]
    makers = np.unique(spans["process"][np.isin(spans["batch"], batches[batches >= 0])])
    numbers = {of_pid.get(profile.processes[maker].pid, ONLY) for maker in makers.tolist()}
    return numbers.pop() if len(numbers) == 1 else ONLY


def _by_time(waits: NDArray[Any], marks: NDArray[Any], lane: NDArray[Any]) -> Rounds:
    """Return the rounds of waits that do not name theirs: each lies in the marked one around it.

    Waits outside every marked round make up one round for each stretch between marked ones.
    """
    asked, delivered = waits["start_ns"].astype(np.int64), waits["end_ns"].astype(np.int64)
    marks = marks[np.argsort(marks["start_ns"], kind="stable")]
    starts, ends = marks["start_ns"].astype(np.int64), marks["end_ns"].astype(np.int64)
    place = np.searchsorted(starts, delivered, side="right") - 1
    inside = (place >= 0) & (asked <= ends[place]) if len(starts) else np.zeros(len(asked), bool)
    key = np.where(inside, 2 * place, 2 * place + 1)
    keys, first, number = np.unique(key, return_index=True, return_inverse=True)
    last = np.append(first[1:], len(asked)) - 1 if len(keys) else first
    round_starts, round_ends = asked[first], delivered[last]
    recorded = keys % 2 == 0
    round_starts[recorded] = np.minimum(round_starts[recorded], starts[keys[recorded] // 2])
    round_ends[recorded] = np.maximum(round_ends[recorded], ends[keys[recorded] // 2])
    for index in np.flatnonzero(~recorded):
        seen = lane["end_ns"]
        if index + 1 < len(keys):
            seen = seen[seen <= round_starts[index + 1]]
        round_ends[index] = max(int(round_ends[index]), int(seen.max()))
    return Rounds(
        of_wait=number.reshape(-1).astype(np.int64),
        start_ns=round_starts,
        end_ns=round_ends,
        loader=np.full(len(keys), ONLY, dtype=np.int64),
        n_before=np.zeros(len(keys), dtype=np.int64),
        numbered=np.zeros(len(keys), dtype=bool),
        recorded=recorded,
        role=np.full(len(keys), "", dtype="U16"),
        resumed=np.zeros(len(keys), dtype=bool),
    )
