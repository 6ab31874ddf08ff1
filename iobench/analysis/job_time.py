"""Where all the time of a job went, from the start of its process to its end: one part each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.deliveries import EVALUATION
from iobench.analysis.job_figures import PARTS, JobPart, JobTime
from iobench.analysis.read_spans import names_interpreter
from iobench.analysis.time_intervals import covered, union
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun
    from iobench.recording.facts import ProcessFacts

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

IMPORTED_NBYTES: Final = 200_000_000
"""What imports read is less, of the largest frameworks, too."""
HARDLY_ANY: Final = 1000
"""Reads at either end of an initial load that bring less than this part of its bytes are none of it
unless they take a fifth of the time in reads."""
LITTLE: Final = 5
ALIKE: Final = 10
"""Two reads are of one load where each brings at least this part of its bytes."""
SETTINGS_NBYTES: Final = 1 << 16
SELDOM: Final = 100
"""Reads that bring less, in less than this part of the time from the first to the last, are of
settings."""


class _Clock:
    """The time of a process, given away once: each instant to the first part that asks for it."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self._start = self._end = np.zeros(0, dtype=np.int64)
        self._given_ns = 0

    def give(self, start: Integers, end: Integers) -> int:
        """Return how much of some intervals nobody had yet."""
        start = np.clip(start.astype(np.int64), self.start_ns, self.end_ns)
        end = np.clip(end.astype(np.int64), self.start_ns, self.end_ns)
        some = end > start
        self._start, self._end = union(
            np.concatenate((self._start, start[some])), np.concatenate((self._end, end[some]))
        )
        before, self._given_ns = self._given_ns, int((self._end - self._start).sum())
        return self._given_ns - before

    def rest(self) -> int:
        """Return what is left."""
        return self.end_ns - self.start_ns - self._given_ns


def job_time_of(run: RankRun) -> JobTime | None:
    """Return where the time of a script's training process went.

    None of ``iobench profile``; where the start of the process is not known; where recording
    stopped, or was of a part of the steps alone; and where it was of so many that sums of several
    processes are all that is left.
    """
    profile, loop = run, run.loop
    if not profile.is_script or profile.run_facts.steps is not None or profile.stopped:
        return None
    if profile.folded is not None and len(run.ranks) > 1:
        return None
    process = loop.process if loop.process >= 0 else _consumer(run)
    told = profile.facts_of(process) if process >= 0 else None
    if told is None or told.started_ns is None:
        return None
    closed_ns, end_ns, unknown = _ends(run, process, told)
    clock = _Clock(told.started_ns, max(end_ns, told.started_ns))
    found = {name: JobPart(name, 0) for name in PARTS}

    def give(part: str, start: Integers, end: Integers) -> None:
        found[part] = replace(found[part], ns=found[part].ns + clock.give(start, end))

    deliveries = run.deliveries
    evaluates = deliveries.evaluates
    ends = _computing_ends(deliveries)
    loops = (("train_wait", ~evaluates), ("validation_wait", evaluates))
    for part, rows in loops:
        give(part, deliveries.asked_ns[rows], deliveries.delivered_ns[rows])
    spans = _spans_of_loop(run, process)
    for part, kind in (
        ("checkpoint", Kind.CHECKPOINT), ("stage_in", Kind.STAGE_IN),
        ("validation_compute", Kind.EVALUATE),
    ):  # fmt: skip
        chosen = spans[spans["kind"] == kind]
        give(part, chosen["start_ns"], chosen["end_ns"])
        if part != "validation_compute":
            found[part] = replace(found[part], nbytes=_known_bytes(chosen))
    for part, rows in (("train_compute", ~evaluates), ("validation_compute", evaluates)):
        give(part, deliveries.from_ns[rows], ends[rows])
    # Between a validation that ended and the next batch of the training that it is a part of.
    give("train_compute", *_inside_passes(deliveries, ~evaluates))
    if profile.folded is not None:
        _give_folded(run, give, told.started_ns)
        unknown.append(
            "what of the batches of which there are sums alone was validation: all of their time "
            "counts as training"
        )
    imports = _imports(told)
    if len(imports):
        give("imports", imports[:, 0], imports[:, 1])
    else:
        unknown.append("imports, which cannot be separated from other work outside of loops")
    first_ns = int(deliveries.from_ns.min(initial=end_ns if closed_ns is None else closed_ns))
    steps = spans[spans["kind"] == Kind.STEP]
    first_ns = min(first_ns, int(steps["start_ns"].min(initial=first_ns)))  # training has begun
    if len(steps) and not len(deliveries):
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.STEP):
            chosen = spans[(spans["kind"] == kind) & (spans["start_ns"] >= first_ns)]
            give("train_compute", chosen["start_ns"], chosen["end_ns"])
        unknown.append(
            "what the training waited for: it used no loader that iobench follows; its work "
            "besides forward, backward and optimiser counts as outside of loops"
        )
    if len(deliveries):
        outside = steps[deliveries.at(steps["start_ns"].astype(np.int64)) < 0]
        few = 2 * len(outside) > len(steps)
        for kind in (Kind.BACKWARD, Kind.STEP, *((Kind.FORWARD,) if few else ())):
            chosen = spans[spans["kind"] == kind]
            give("train_compute", chosen["start_ns"], chosen["end_ns"])
        if few:
            unknown.append(
                f"what {len(outside)} of {len(steps)} optimiser's steps waited for: they follow no "
                "batch of a loader. Work besides forward, backward and optimiser counts as "
                "outside of loops, and the waits of the loop cover few of its steps"
            )
    reads = _reads_of(run, process, imports)
    load = _initial_load(run, reads, first_ns)
    load_nbytes = None if load is None else load.nbytes
    if load is not None:
        give("initial_load", load.start_ns, load.end_ns)
        found["initial_load"] = replace(
            found["initial_load"], nbytes=load_nbytes, n_files=load.n_files
        )
    if profile.lost_spans:
        unknown.append("what was in spans that were lost; its time stands elsewhere")
    roles = deliveries.role[deliveries.batch >= 0]
    if profile.folded is None and len(roles) and (roles == EVALUATION).all():
        unknown.append("whether any pass trains: none took an optimiser's step, so all validate")
    if (roles == "").any():
        unknown.append("what some passes over loaders are for; they count as training")
    beside = (reads["process"] != process) | (reads["thread"] != run.loop.thread)
    beside &= reads["nbytes"] > SETTINGS_NBYTES
    beside &= deliveries.at(reads["start_ns"].astype(np.int64)) < 0
    if run.loop.thread >= 0 and beside.any():
        unknown.append(
            "whether the training process waited for what other threads and processes read outside "
            "of its loops, or worked meanwhile: it counts as getting data, with what is between "
            "these reads"
        )
    if closed_ns is not None:
        give("shutdown", np.array([closed_ns]), np.array([end_ns]))
    again_ns, again_nbytes = 0, None
    if len(deliveries):
        start, end, again_nbytes = _read_between(reads, deliveries, ends)
        again_ns = clock.give(start, end)
    found["between"] = replace(found["between"], ns=again_ns + clock.rest(), nbytes=again_nbytes)
    for part, rows in loops:
        found[part] = replace(found[part], nbytes=_delivered(run, rows))
    last_ns = int(spans["end_ns"].max(initial=told.started_ns))
    return JobTime(
        clock.end_ns - clock.start_ns,
        tuple(found[name] for name in PARTS),
        read_by=_read_by(told, load_nbytes or 0),
        calls_ns=0 if load is None else load.calls_ns,
        unknown=tuple(unknown),
        unseen_nbytes=max(0, (told.initial_nbytes or 0) - IMPORTED_NBYTES - (load_nbytes or 0)),
        rank=run.rank,
        first_batch_ns=_first_batch_ns(deliveries),
        lost_end_ns=0 if closed_ns is not None else max(0, clock.end_ns - last_ns),
        reload_ns=again_ns,
        comm_ns=_communicating(spans, deliveries, ends),
    )


def _consumer(run: RankRun) -> int:
    """Return the training process of a run in which nobody asked a loader; -1 without one."""
    for index, each in enumerate(run.processes):
        if each.role == "consumer" and each.rank == run.rank:
            return index
    return -1


def _ends(run: RankRun, process: int, told: ProcessFacts) -> tuple[int | None, int, list[str]]:
    """Return when a process ended its recording, when it ended, and what of that is not known."""
    who = run.processes[process]
    spans = run.spans
    last_ns = int(spans["end_ns"][spans["process"] == process].max(initial=told.started_ns or 0))
    closed_ns = who.anchors[-1].monotonic_ns if who.closed else None
    last_ns = max(last_ns, closed_ns or 0, who.anchors[-1].monotonic_ns)
    unknown = []
    launched = next(
        (
            each.ended_ns
            for each in run.facts
            if each.role == "launcher" and each.ended_ns is not None
            and (each.pid, each.host) == (told.ppid, told.host)
        ),
        None,
    )  # fmt: skip
    if launched is None or launched < last_ns:
        end_ns = last_ns
        what = "its recording ended" if who.closed else "its last span"
        unknown.append(f"when the process ended; its time is until {what}")
    else:
        end_ns = launched
    if closed_ns is None:
        how = told.ended or next(
            (each.ended for each in run.facts if each.role == "launcher"), None
        )
        by = f" ({how})" if how not in (None, "closed", "exit 0") else ""
        unknown.append(
            "what the process did after its last span, as it ended without ending its recording"
            f"{by}; that stands outside of loops"
        )
    return closed_ns, end_ns, unknown


def _computing_ends(deliveries: Deliveries) -> Integers:
    """Return until when the loop computes after each delivery.

    After the end of a pass, not at all. After the last batch of one that was left before, at most
    as long as after any other batch of that pass, or of any where it has too few: the iterator may
    be kept, and live on, while nobody trains.
    """
    _, of_round = np.unique(deliveries.round, return_inverse=True)
    rows = np.arange(len(of_round))
    last = np.zeros(of_round.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(last, of_round, rows)
    inner = (deliveries.batch >= 0) & (rows != last[of_round])
    computed = deliveries.until_ns - deliveries.delivered_ns
    longest = np.zeros(len(last), dtype=np.int64)
    np.maximum.at(longest, of_round[inner], computed[inner])
    few = np.bincount(of_round[inner], minlength=len(last)) < 2
    longest[few] = computed[inner].max() if inner.any() else computed.max(initial=0)
    longest[deliveries.batch[last] < 0] = 0
    ends = deliveries.until_ns.copy()
    ends[last] = np.minimum(ends[last], deliveries.delivered_ns[last] + longest)
    return ends


def _inside_passes(deliveries: Deliveries, rows: Marks) -> tuple[Integers, Integers]:
    """Return from when until when some passes went on, to their last delivery."""
    numbers, of_round = np.unique(deliveries.round[rows], return_inverse=True)
    start = np.full(len(numbers), np.iinfo(np.int64).max)
    end = np.zeros(len(numbers), dtype=np.int64)
    np.minimum.at(start, of_round, deliveries.asked_ns[rows])
    np.maximum.at(end, of_round, deliveries.delivered_ns[rows])
    return start, end


def _communicating(spans: NDArray[Any], deliveries: Deliveries, ends: Integers) -> int:
    """Return for how long of what loops compute collective operations hold them."""
    chosen = (spans["kind"] == Kind.COMM) & ((spans["flags"] & Flag.DETAIL) == 0)
    comm = [spans[name][chosen].astype(np.int64) for name in ("start_ns", "end_ns")]
    loops = [deliveries.delivered_ns, np.maximum(ends, deliveries.delivered_ns)]
    both = [np.concatenate(each) for each in zip(comm, loops, strict=True)]
    return covered(*comm) + covered(*loops) - covered(*both)


def _spans_of_loop(run: RankRun, process: int) -> NDArray[Any]:
    """Return the spans of the thread that trains; of a process without one, all of its."""
    spans = run.spans
    mine = (spans["process"] == process) & ((spans["flags"] & Flag.DEVICE) == 0)
    if run.loop.thread >= 0:
        mine &= spans["thread"] == run.loop.thread
    found: NDArray[Any] = spans[mine]
    return found


def _known_bytes(spans: NDArray[Any]) -> int | None:
    known = spans["nbytes"][spans["nbytes"] >= 0]
    return int(known.sum()) if len(known) else None


def _n_files(names: Iterable[str]) -> int | None:
    """Return how many files what was read is of, as ``"a.nc"`` or ``"a.nc:variable"``.

    None where a name may be that of an array of a store.
    """
    files = set()
    for name in names:
        file, _, variable = name.rpartition(":")
        files.add(file if file and not variable.startswith("//") else name)
    known = bool(files) and all("." in each.rpartition("/")[2] for each in files)
    return len(files) if known else None


def _delivered(run: RankRun, rows: Marks) -> int | None:
    deliveries = run.deliveries
    nbytes = deliveries.nbytes[rows & (deliveries.batch >= 0)]
    return int(nbytes.sum()) if len(nbytes) and (nbytes >= 0).all() else None


def _give_folded(
    run: RankRun, give: Callable[[str, Integers, Integers], None], started_ns: int
) -> None:
    """Add batches of which there are sums alone: in one piece before all others, not in order."""
    folded = run.folded
    assert folded is not None
    end = folded.until_ns
    start = max(end - folded.wall_ns, started_ns)
    split = min(start + folded.wait_ns, end)
    give("train_wait", np.array([start]), np.array([split]))
    give("train_compute", np.array([split]), np.array([end]))


def _imports(told: ProcessFacts) -> Integers:
    """Return from when until when a process imported, shape (n, 2); the first is its start."""
    table = np.array(told.imports_ns, dtype=np.int64).reshape(-1, 2)
    if len(table) and told.started_ns is not None:
        table[0, 0] = min(table[0, 0], told.started_ns)
    return table


def _first_batch_ns(deliveries: Deliveries) -> int | None:
    """Return from when the first batch was asked for until it came; None without one."""
    came = np.flatnonzero(deliveries.batch >= 0)
    if not len(came):
        return None
    first = came[np.argmin(deliveries.delivered_ns[came])]
    asked_ns = deliveries.asked_ns[deliveries.round == deliveries.round[first]].min()
    return int(deliveries.delivered_ns[first] - asked_ns)


class _InitialLoad(msgspec.Struct, frozen=True):
    start_ns: Integers
    end_ns: Integers
    calls_ns: int
    nbytes: int | None
    n_files: int | None


def _initial_load(run: RankRun, reads: NDArray[Any], first_ns: int) -> _InitialLoad | None:
    """Return what was read before the first loader was asked; None if nothing was.

    What follows the last of several reads belongs to it as long as what is between them usually
    takes.
    """
    reads = _without_small_ends(reads[reads["start_ns"] < first_ns])
    if not len(reads):
        return None
    start, end, calls_ns = _stretches(reads, first_ns)
    gaps = start[1:] - end[:-1]
    joined = end.copy()
    whole = _joined(reads, start, end)
    joined[:-1] = np.where(whole, start[1:], end[:-1])
    if whole.sum() > 1:
        joined[-1] = min(first_ns, int(end[-1]) + int(np.median(gaps[whole])))
    names = {run.strings[number] for number in np.unique(reads["detail"]).tolist()}
    return _InitialLoad(start, joined, calls_ns, _known_bytes(reads), _n_files(names - {""}))


def _reads_of(run: RankRun, process: int, imports: Integers) -> NDArray[Any]:
    """Return what a process and those beside it read, in order, but for Python's own files."""
    spans = run.spans
    helps = [
        index
        for index, each in enumerate(run.processes)
        if index == process or (each.role == "child" and each.rank == run.rank)
    ]
    reads = spans[
        np.isin(spans["process"], helps)
        & is_one_of(spans["kind"], READING_KINDS | MIXED_KINDS)
        & ((spans["flags"] & (Flag.DETAIL | Flag.IO | Flag.DEVICE)) == 0)
        & ~names_interpreter(run)  # as what versions packages have
    ]
    if len(imports):  # what is read to import is no data
        place = np.searchsorted(imports[:, 0], reads["start_ns"], side="right") - 1
        inside = (place >= 0) & (reads["start_ns"] < imports[np.maximum(place, 0), 1])
        reads = reads[~inside]
    found: NDArray[Any] = reads[np.argsort(reads["start_ns"], kind="stable")]
    return found


def _stretches(reads: NDArray[Any], until_ns: int) -> tuple[Integers, Integers, int]:
    """Return from when until when something was read, and how long that is in all."""
    start, end = union(reads["start_ns"].astype(np.int64), reads["end_ns"].astype(np.int64))
    end = np.minimum(end, until_ns)
    return start, end, int((end - start).sum())


def _joined(reads: NDArray[Any], start: Integers, end: Integers) -> Marks:
    """Tell which gaps between reads are of one load: what is done between reads belongs to it.

    One gap twice as long as all the rest is none of it. Of a single gap that is not known: it is
    where about as much was read before it as after it. Reads that bring hardly anything in no time
    are of settings: what lies between them is something else.
    """
    gaps = start[1:] - end[:-1]
    nbytes = np.cumsum(np.maximum(reads["nbytes"], 0).astype(np.int64))
    total = int(nbytes[-1])
    before = nbytes[np.searchsorted(reads["start_ns"], start[1:]) - 1]
    took_ns = np.cumsum(end - start)
    settings = _are_settings(before, took_ns[:-1], start[1:] - start[0]) | _are_settings(
        total - before, took_ns[-1] - took_ns[:-1], end[-1] - end[:-1]
    )
    if len(gaps) == 1:
        alike = np.minimum(before, total - before) * ALIKE >= total > 0
    else:
        alike = gaps <= 2 * (gaps.sum() - gaps + took_ns[-1])
    joined: Marks = alike & ~settings
    return joined


def _are_settings(nbytes: Integers, took_ns: Integers, within_ns: Integers) -> Marks:
    """Tell where reads bring so little, in so little of a stretch of time."""
    few: Marks = (nbytes < SETTINGS_NBYTES) & (took_ns * SELDOM < within_ns)
    return few


def _read_between(
    reads: NDArray[Any], deliveries: Deliveries, ends: Integers
) -> tuple[Integers, Integers, int | None]:
    """Return from when until when data was read between loops and after them, and its bytes."""
    begun, over = deliveries.from_ns, np.maximum.accumulate(ends)
    place = np.searchsorted(begun, reads["start_ns"], side="right") - 1
    outside = (place >= 0) & (reads["start_ns"] >= over[np.maximum(place, 0)])
    reads, place = reads[outside], place[outside]
    found, nbytes = [], []
    for each in np.unique(place).tolist():
        some = _without_small_ends(reads[place == each])
        until_ns = int(begun[each + 1]) if each + 1 < len(begun) else np.iinfo(np.int64).max
        start, end, _ = _stretches(some, until_ns)
        end[:-1] = np.where(_joined(some, start, end), start[1:], end[:-1])
        found.append((start, end))
        nbytes.append(_known_bytes(some) or 0)
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), None
    start, end = (np.concatenate(each) for each in zip(*found, strict=True))
    return start, end, sum(nbytes) or None


def _without_small_ends(reads: NDArray[Any]) -> NDArray[Any]:
    """Leave out what was read in no time before and after nearly all bytes: settings, and such."""
    nbytes = np.maximum(reads["nbytes"], 0).astype(np.int64)
    total = int(nbytes.sum())
    if not total:
        return reads
    so_far = np.cumsum(nbytes)
    matters = (so_far * HARDLY_ANY >= total) & ((total - so_far + nbytes) * HARDLY_ANY >= total)
    first, last = np.flatnonzero(matters)[[0, -1]].tolist()
    took_ns = (reads["end_ns"] - reads["start_ns"]).astype(np.int64)
    # Opening thousands of files brings no bytes, and is what such a load waits for.
    begin = 0 if took_ns[:first].sum() * LITTLE >= took_ns.sum() else first
    end = len(reads) if took_ns[last + 1 :].sum() * LITTLE >= took_ns.sum() else last + 1
    found: NDArray[Any] = reads[begin:end]
    return found


def _read_by(told: ProcessFacts, nbytes: int) -> str:
    """Return the function that read most of so many bytes, where one did."""
    best = max(told.initial_reads.items(), key=lambda each: each[1][1], default=("", (0, 0)))
    return best[0] if nbytes and 2 * best[1][1] >= nbytes else ""
