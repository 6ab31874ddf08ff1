"""Which thread of which process is the training loop, its loaders, and its passes over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.own_passes import OWN_PASS, outermost, with_own_passes
from iobench.analysis.time_intervals import covered, groups
from iobench.errors import ProfileError
from iobench.recording.delivery_log import LOADER, RESUMED
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import (
    BETWEEN,
    LOOP_KINDS,
    RECEIVED,
    STARTUP,
    TRAINS,
    Kind,
    halves,
    is_one_of,
    lane_keys,
)
from iobench.recording.span_file import Flag
from iobench.runs.received import lanes_that_train

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

ONLY: Final = -1
"""Number of the loader of a run that has one, or of rounds whose loader is unknown."""
LATEST: Final = int(np.iinfo(np.int64).max)


class TrainingLoop(msgspec.Struct, frozen=True):
    """The thread whose waits are counted, and everything that works for it."""

    rank: int
    process: int  # -1 where nothing waited, as `thread`
    thread: int
    mine: Marks  # by process: its own, and those that load for it
    loaders: Mapping[int, LoaderFacts]  # `ONLY` is always there, of rounds of unknown loaders
    waits: NDArray[Any]  # its spans of waits, in order of time, and what it read by itself
    initial: NDArray[Any]  # waits for batches that it took before its first step, to keep them
    unjoined_ns: int | None  # between steps that nobody knows the waits of, in no stage

    @property
    def has_loaders(self) -> bool:
        """Whether its process has a loader."""
        return any(number not in (ONLY, OWN_PASS) for number in self.loaders)

    def spans_of(self, profile: RunData) -> NDArray[Any]:
        """Return the spans of its process, and of those that load for it."""
        spans = profile.spans
        return spans if self.mine.all() else spans[self.mine[spans["process"]]]


def find_loop(profile: RunData, *, rank: int) -> TrainingLoop:
    """Return the training loop of a rank: of a script's threads the one that trains.

    Where none does, or several do, it is the one that waited most often. One that trains on what
    it did not wait for, as far as is recorded, has no waits, those of others are not its own.
    """
    spans = profile.spans
    consumers = np.array(
        [each.role == "consumer" and each.rank == rank for each in profile.processes], dtype=bool
    )
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)]
    waits = waits[consumers[waits["process"]]]
    waits = waits[np.argsort(waits["start_ns"], kind="stable")]
    key = lane_keys(waits)
    lanes, number, counts = np.unique(key, return_inverse=True, return_counts=True)
    if len(lanes) > 1 and not profile.is_script:
        raise ProfileError(
            f"{profile.path}: {len(lanes)} threads waited for batches, expected one training loop"
        )
    loops = spans[consumers[spans["process"]] & (spans["flags"] == 0)]
    trains = lanes_that_train(loops, lane_keys(loops)) if profile.is_script else lanes[:0]
    with_batch = np.unique(key[waits["batch"] >= 0])
    asks = np.isin(trains, with_batch if len(with_batch) else lanes)
    unjoined = len(trains) > 0 and not asks.any()
    counts = counts + np.isin(lanes, trains[asks]) * len(waits)
    chosen = int(np.argmax(counts)) if len(lanes) and not unjoined else -1
    waits = waits[number.reshape(-1) == chosen]
    if (waits["start_ns"][1:] < waits["end_ns"][:-1]).any():
        raise ProfileError(
            f"{profile.path}: the waits of the training loop overlap, expected one after another"
        )
    lane = trains[:1] if unjoined else lanes[chosen : chosen + 1]
    process, thread = halves(int(lane[0])) if len(lane) else (-1, -1)
    # Where others draw the batches their process has the loaders.
    described = halves(int(lanes[np.argmax(counts)]))[0] if len(lanes) else process
    described = described if described >= 0 else _first_with_loaders(profile, consumers)
    initial, own = waits[:0], {}
    if len(lane) and profile.is_script and profile.summed is None and len(lanes) * unjoined == 0:
        mine = spans[(lane_keys(spans) == lane) & ((spans["flags"] & Flag.DEVICE) == 0)]
        waits, initial = with_own_passes(profile, waits, mine)
    if ((waits["flags"] != 0) & (waits["batch"] >= 0)).any():
        own, unjoined = {OWN_PASS: LoaderFacts(OWN_PASS, "", "", "the loop itself")}, False
    return TrainingLoop(
        rank=rank,
        process=process,
        thread=thread,
        mine=_mine(profile, rank, process, consumers),
        loaders={**_loaders(profile, described), **own},
        waits=waits,
        initial=initial,
        unjoined_ns=_between_steps(loops[lane_keys(loops) == lane]) if unjoined else None,
    )


def _between_steps(lane: NDArray[Any]) -> int:
    """Return how long a thread was in no stage from its first step to its last one."""
    stages = lane[is_one_of(lane["kind"], LOOP_KINDS - {Kind.OTHER, Kind.BLOCKED})]
    steps = lane[is_one_of(lane["kind"], {Kind.BACKWARD, Kind.STEP})]
    first, last = int(steps["start_ns"].min()), int(steps["end_ns"].max())
    bounds = (stages[name].astype(np.int64).clip(first, last) for name in ("start_ns", "end_ns"))
    return last - first - covered(*bounds)


def _mine(profile: RunData, rank: int, process: int, consumers: Marks) -> Marks:
    """Tell which processes work for the loop: all of the rank, unless they are another's."""
    mine = np.array([each.rank == rank for each in profile.processes], dtype=bool)
    if process < 0 or consumers.sum() < 2:
        return mine
    # Several training processes of one rank: each has those it started itself.
    owner = {profile.processes[index].pid: index for index in np.flatnonzero(consumers).tolist()}
    for index in np.flatnonzero(consumers).tolist():
        facts = profile.facts_of(index)
        for loader in facts.loaders if facts else ():
            owner.update(dict.fromkeys(loader.worker_pids, index))
    parent = {each.pid: each.ppid for each in profile.processes if each.rank == rank}
    for index in np.flatnonzero(mine).tolist():
        pid, passed = profile.processes[index].pid, set[int]()
        while pid not in owner and pid in parent and pid not in passed:
            passed.add(pid)
            pid = parent[pid]
        mine[index] = owner.get(pid, process) == process
    return mine


def _first_with_loaders(profile: RunData, consumers: Marks) -> int:
    """Return the first training process that made a loader, though nobody asked it; else -1."""
    for index in np.flatnonzero(consumers).tolist():
        facts = profile.facts_of(index)
        if facts is not None and facts.loaders:
            return int(index)
    return -1


def _loaders(profile: RunData, process: int) -> dict[int, LoaderFacts]:
    facts = profile.facts_of(process) if process >= 0 else None
    result = {
        each.number: replace(each, prefetch=each.prefetch or int(bool(each.workers)))
        for each in (facts.loaders if facts else ())
    }
    if len(result) == 1:
        return {ONLY: next(iter(result.values())), **result}
    return {ONLY: _configured(profile), **result}


def _configured(profile: RunData) -> LoaderFacts:
    """Return the loader of a run's configuration; what nobody wrote down is as it was seen."""
    about = profile.run_facts
    workers = about.workers
    if workers is None:
        workers = sum(process.role == "worker" for process in profile.processes)
    return LoaderFacts(
        ONLY, "", "", "", workers=workers,
        prefetch=about.prefetch or int(bool(workers)), batch_size=about.batch_size,
    )  # fmt: skip


class Rounds(msgspec.Struct, frozen=True):
    """Passes of a training loop over its loaders, by their starts; those of several may overlap."""

    of_wait: Integers  # the round of each wait; all else is by round
    start_ns: Integers
    end_ns: Integers
    loader: Integers  # its number, `ONLY` where it is not known
    n_before: Integers  # deliveries before the recording began
    numbered: Marks  # whether its waits name it; others belong to it by their time
    role: NDArray[np.str_]  # as it said itself; "trains" where an optimiser took a step in it
    resumed: Marks  # whether it goes on where one of an earlier process was
    # The generator that asked, "" where none did; None where nobody noted it
    generator: NDArray[np.object_]

    @property
    def stretch(self) -> Integers:
        """For each round the number of its stretch: rounds that overlap share one."""
        return groups(self.start_ns, self.end_ns)


def find_rounds(profile: RunData, loop: TrainingLoop) -> Rounds:
    """Return the rounds of a training loop that have a wait."""
    waits = loop.waits
    labels = np.array([text == "round" for text in profile.strings], dtype=bool)
    spans = profile.spans[profile.spans["process"] == loop.process]
    # Where a loader is forgotten, another thread may be the one to say so.
    marks = spans[(spans["kind"] == Kind.OTHER) & labels[spans["label"]]]
    lane = spans[spans["thread"] == loop.thread]
    named = waits["sample"] >= 0
    by_number = np.isin(marks["sample"], np.unique(waits["sample"][named]))
    # Of passes that other threads ask for: batches come from these (`iobench.runs.received`).
    requests = spans[(spans["kind"] == Kind.WAIT) & (spans["flags"] == Flag.DETAIL)]
    requests = requests[requests["label"] != profile.string_number(RECEIVED)]
    parts = (
        _by_number(profile, waits[named], marks[by_number], lane, requests),
        _by_time(waits[~named], marks[~by_number & (marks["thread"] == loop.thread)], lane),
    )
    of_wait = np.empty(len(waits), dtype=np.int64)
    of_wait[named] = parts[0].of_wait
    of_wait[~named] = parts[1].of_wait + len(parts[0].start_ns)
    start_ns = np.concatenate([part.start_ns for part in parts])
    end_ns = np.concatenate([part.end_ns for part in parts])
    n_batches = np.bincount(of_wait[waits["batch"] >= 0], minlength=len(start_ns))
    end_ns = _with_what_followed(lane, start_ns, end_ns, n_batches)
    order = np.argsort(start_ns, kind="stable")
    rest = {
        name: np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("loader", "n_before", "numbered", "role", "resumed", "generator")
    }
    return Rounds(
        of_wait=np.argsort(order, kind="stable")[of_wait],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        **rest,
    )


def _with_what_followed(
    lane: NDArray[Any], start_ns: Integers, end_ns: Integers, n_batches: Integers
) -> Integers:
    """Return the ends of rounds with the training on batches that were drawn ahead."""
    backward = outermost(lane, {Kind.BACKWARD})
    if not len(backward):
        return end_ns
    ends, began = end_ns.copy(), backward["start_ns"].astype(np.int64)
    work = lane[is_one_of(lane["kind"], {Kind.BACKWARD, Kind.STEP}) & (lane["flags"] == 0)]
    for index in np.flatnonzero(n_batches > 0).tolist():
        later = start_ns[start_ns >= end_ns[index]]
        until = int(later.min()) if len(later) else LATEST
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
    waits: NDArray[Any],
    marks: NDArray[Any],
    lane: NDArray[Any],
    requests: NDArray[Any],
) -> Rounds:
    """Return the rounds of waits that name theirs; ``requests`` are waits of other threads."""
    numbers, of_wait = np.unique(waits["sample"], return_inverse=True)
    of_wait = of_wait.reshape(-1).astype(np.int64)
    n_rounds = len(numbers)
    starts, ends = np.full(n_rounds, LATEST), np.full(n_rounds, -LATEST)
    place = np.searchsorted(numbers, marks["sample"])
    # Threads that ask ahead begin and end their passes before the loop is there.
    ahead = np.isin(marks["sample"], requests["sample"])
    for at, spans in ((of_wait, waits), (place[~ahead], marks[~ahead])):
        np.minimum.at(starts, at, spans["start_ns"])
        np.maximum.at(ends, at, spans["end_ns"])
    recorded = np.isin(np.arange(n_rounds), place[~ahead])
    # The first wait of a round says "loader-2 validation resumed", as far as it is known.
    begins = np.concatenate((waits, requests[np.isin(requests["sample"], numbers)]))
    begins = begins[begins["label"] == profile.string_number(STARTUP)]
    words: list[list[str]] = [[""]] * n_rounds
    for index, mark in zip(np.searchsorted(numbers, begins["sample"]), begins, strict=True):
        words[index] = profile.strings[mark["detail"]].split(" ")
    loader = np.array([_loader_number(each[0]) for each in words], dtype=np.int64)
    n_before = np.zeros(n_rounds, dtype=np.int64)
    for index, mark in zip(place.tolist(), marks, strict=True):
        loader[index] = _loader_number(profile.strings[mark["detail"]])
        n_before[index] = max(int(mark["nbytes"]), 0)
    for index in np.flatnonzero(~recorded).tolist():
        same = (loader == loader[index]) | (loader == ONLY) | (loader[index] == ONLY)
        later = starts[(starts > starts[index]) & same]
        until = lane["end_ns"][lane["end_ns"] <= (int(later.min()) if len(later) else LATEST)]
        last = waits[of_wait == index][-1]
        over = last["batch"] < 0 and profile.strings[last["label"]] in ("shutdown", "failed")
        over |= bool(last["flags"])
        if not over:
            ends[index] = max(int(ends[index]), int(until.max(initial=0)))
    role = np.array([each[1] if each[1:] and each[1] != RESUMED else "" for each in words], "U16")
    # An optimiser's step says more than what was looked for as the pass began.
    steps = (lane["kind"] == Kind.OTHER) & (lane["label"] == profile.string_number(TRAINS))
    role[np.isin(numbers, lane["sample"][steps])] = TRAINS
    own = np.isin(numbers, waits["sample"][(waits["flags"] != 0) & (waits["batch"] >= 0)])
    role[own], loader[own] = TRAINS, OWN_PASS
    generator = np.full(n_rounds, None, dtype=object)
    generator[own] = ""
    asks = lane[(lane["kind"] == Kind.OTHER) & (lane["label"] == profile.string_number(BETWEEN))]
    for number, detail in zip(asks["sample"].tolist(), asks["detail"].tolist(), strict=True):
        generator[numbers == number] = profile.strings[detail]
    return Rounds(
        of_wait=of_wait,
        start_ns=starts,
        end_ns=ends,
        loader=loader,
        n_before=n_before,
        numbered=np.ones(n_rounds, dtype=bool),
        role=role,
        resumed=np.array([RESUMED in each[1:] for each in words], dtype=bool),
        generator=generator,
    )


def _loader_number(text: str) -> int:
    number = text.removeprefix(LOADER)
    return int(number) if number != text and number.isdecimal() else ONLY


def _by_time(waits: NDArray[Any], marks: NDArray[Any], lane: NDArray[Any]) -> Rounds:
    """Return the rounds of waits that do not name theirs: each lies in the marked one around it."""
    requested, delivered = waits["start_ns"].astype(np.int64), waits["end_ns"].astype(np.int64)
    marks = marks[np.argsort(marks["start_ns"], kind="stable")]
    starts, ends = marks["start_ns"].astype(np.int64), marks["end_ns"].astype(np.int64)
    place = np.searchsorted(starts, delivered, side="right") - 1
    inside = (
        (place >= 0) & (requested <= ends[place]) if len(starts) else np.zeros(len(requested), bool)
    )
    key = np.where(inside, 2 * place, 2 * place + 1)
    keys, first, number = np.unique(key, return_index=True, return_inverse=True)
    last = np.append(first[1:], len(requested)) - 1 if len(keys) else first
    round_starts, round_ends = requested[first], delivered[last]
    recorded = keys % 2 == 0
    round_starts[recorded] = np.minimum(round_starts[recorded], starts[keys[recorded] // 2])
    round_ends[recorded] = np.maximum(round_ends[recorded], ends[keys[recorded] // 2])
    for index in np.flatnonzero(~recorded):
        until = lane["end_ns"]
        if index + 1 < len(keys):
            until = until[until <= round_starts[index + 1]]
        round_ends[index] = max(int(round_ends[index]), int(until.max()))
    return Rounds(
        of_wait=number.reshape(-1).astype(np.int64),
        start_ns=round_starts,
        end_ns=round_ends,
        loader=np.full(len(keys), ONLY, dtype=np.int64),
        n_before=np.zeros(len(keys), dtype=np.int64),
        numbered=np.zeros(len(keys), dtype=bool),
        role=np.full(len(keys), "", dtype="U16"),
        resumed=np.zeros(len(keys), dtype=bool),
        generator=np.full(len(keys), None, dtype=object),
    )
