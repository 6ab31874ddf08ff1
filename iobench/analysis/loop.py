"""Which thread of which process is the training loop, its loaders, and its passes over them.

What it gets without asking a loader are waits too: what it reads itself, and keeps. Batches that
were taken before the first step, with nothing done between them, are no pass but an initial load;
the steps on what was kept of them are a pass that waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.exposure_figures import HANDED, ITSELF
from iobench.analysis.time_intervals import covered, groups
from iobench.errors import ProfileError
from iobench.recording.delivery_log import LOADER, RESUMED
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import (
    BETWEEN,
    GRAPH,
    LOOP_KINDS,
    MIXED_KINDS,
    READING_KINDS,
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
from iobench.storage.storage_trace import is_of_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

ONLY: Final = -1
"""Number of the loader of a run that has one, or of rounds whose loader is unknown."""
LATEST: Final = int(np.iinfo(np.int64).max)
OWN_PASS: Final = -2
"""Number of the loader that a loop is to itself, or that hands it batches without a loader."""
READS: Final = READING_KINDS | MIXED_KINDS | {Kind.DECODE, Kind.LOCK}
AROUND: Final = frozenset({Kind.WAIT, Kind.CHECKPOINT, Kind.STAGE_IN})
"""What is read in these is of theirs."""
USES: Final = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.STEP})
TAKEN: Final = 0.05
"""Of the time of a pass, below what is done between its batches: they are taken, not used."""


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
    blocked_ns: int  # for other threads and processes, between its stages

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
    if unjoined:  # what does not train loads for the loop
        consumers &= np.isin(np.arange(len(consumers)), trains >> 32)
    mine = _mine(profile, rank, process, consumers)
    if len(lane) and profile.is_script and profile.summed is None:
        is_handed = bool(len(lanes) and unjoined)
        helps = mine[profile.spans["process"]]
        waits, initial = with_own_passes(profile, waits, lane, helps, is_handed=is_handed)
    steps = loops[lane_keys(loops) == lane] if len(lane) else loops[:0]
    blocked = steps[steps["kind"] == Kind.BLOCKED]
    blocked_ns = int((blocked["end_ns"] - blocked["start_ns"]).sum())
    if ((waits["flags"] != 0) & (waits["batch"] >= 0)).any():
        facts = LoaderFacts(OWN_PASS, "", "", ITSELF)
        waited = waits[np.isin(waits["start_ns"], blocked["start_ns"])]
        if 2 * (waited["end_ns"] - waited["start_ns"]).sum() > blocked_ns > 0:
            facts = replace(facts, name=HANDED, unreplayed=f"its batches are of {HANDED}")
        own, unjoined = {OWN_PASS: facts}, False
    return TrainingLoop(
        rank=rank,
        process=process,
        thread=thread,
        mine=mine,
        loaders={**_loaders(profile, described), **own},
        waits=waits,
        initial=initial,
        unjoined_ns=_between_steps(steps) if unjoined else None,
        blocked_ns=blocked_ns,
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


def outermost(spans: NDArray[Any], kinds: Iterable[Kind]) -> NDArray[Any]:
    """Return the spans of one thread of some kinds, in order of time, but those inside others."""
    result = spans[is_one_of(spans["kind"], kinds) & (spans["flags"] == 0)]
    result = result[np.lexsort((-result["end_ns"].astype(np.int64), result["start_ns"]))]
    before = np.maximum.accumulate(result["end_ns"].astype(np.int64))
    inside = np.append(False, result["end_ns"][1:] <= before[:-1])[: len(result)]
    outer: NDArray[Any] = result[~inside]
    return outer


def with_own_passes(
    profile: RunData, waits: NDArray[Any], key: Integers, mine: Marks, *, is_handed: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the waits of a thread with what it got without a loader, and those of initial loads.

    ``key`` is its lane, ``mine`` marks spans of processes that work for it. One that ``is_handed``
    what others draw from loaders has that of what it blocks for alone.
    """
    spans, lanes = profile.spans, lane_keys(profile.spans)
    lane = spans[(lanes == key) & ((spans["flags"] & Flag.DEVICE) == 0)]
    used = outermost(lane, USES)
    initial = _initial(profile, waits, used)
    numbered = spans if is_handed else waits
    number, first = (int(numbered[name].max(initial=-1)) + 1 for name in ("sample", "batch"))
    initial_waits, waits = waits[initial], waits[~initial]
    reads = _reads(profile, lane, READS)
    own = None
    if len(used):
        kinds = set() if is_handed else set(READS)
        if (lane["kind"] == Kind.BLOCKED).any() and _loads(profile, (lanes != key) & mine):
            kinds.add(Kind.BLOCKED)
        has_initial = bool(initial.any())
        some, start_ns = _reads(profile, lane, kinds), int(used["start_ns"][0])
        own = _own_pass(lane, waits, some, start_ns, has_initial=has_initial)
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


def _reads(profile: RunData, lane: NDArray[Any], kinds: Iterable[Kind]) -> NDArray[Any]:
    """Return what a thread reads outside of its waits, in order: spans of some kinds."""
    if not len(lane):
        return lane
    graphs = (lane["kind"] == Kind.PREPROCESS) & (lane["label"] == profile.string_number(GRAPH))
    reads = lane.copy()
    reads["kind"][graphs] = Kind.READ
    reads = reads[~_of_interpreter(profile, reads)]
    # What takes all of a wait lies in it.
    reads = reads[np.argsort(~is_one_of(reads["kind"], AROUND), kind="stable")]
    reads = outermost(reads, {*kinds, *AROUND})
    timed = is_one_of(reads["kind"], kinds) & (reads["end_ns"] > reads["start_ns"])
    return reads[timed]


def _loads(profile: RunData, among: Marks) -> bool:
    """Tell whether any of some spans reads data: else what a loop blocks for may be anything."""
    spans = profile.spans[among & is_one_of(profile.spans["kind"], READS - {Kind.LOCK})]
    return not _of_interpreter(profile, spans).all()


def _of_interpreter(profile: RunData, spans: NDArray[Any]) -> Marks:
    own = [is_of_interpreter(text) for text in profile.strings]
    marks: Marks = np.array(own, dtype=bool)[spans["detail"]]
    return marks


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
