"""Where all the time of a job went, from the start of its process to its end: one part each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.exposure_figures import PARTS, JobPart, JobTime
from iobench.analysis.read_spans import names_interpreter
from iobench.analysis.time_intervals import covered, union
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun
    from iobench.recording.facts import ProcessFacts

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

IMPORTED_NBYTES: Final = 200_000_000
"""What imports read is less, of the largest frameworks, too."""
STEP_KINDS: Final = (Kind.FORWARD, Kind.BACKWARD, Kind.STEP)
RELOAD: Final = "reload"
"""Reading outside of loops after the first loader was asked: of ``between``."""


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
    """Return where the time of a script's training process went."""
    loop = run.loop
    if not run.is_script or run.run_facts.steps is not None or run.stopped:
        return None
    if run.summed is not None and len(run.ranks) > 1:
        return None
    consumers = (
        index
        for index, each in enumerate(run.processes)
        if each.role == "consumer" and each.rank == run.rank
    )
    process = loop.process if loop.process >= 0 else next(consumers, -1)
    known = run.facts_of(process) if process >= 0 else None
    if known is None or known.started_ns is None:
        return None
    closed_ns, end_ns, unknown = _ends(run, process, known)
    clock = _Clock(known.started_ns, max(end_ns, known.started_ns))
    deliveries, spans = run.deliveries, _spans_of_loop(run, process)
    ends, trains = _computing_ends(deliveries), ~deliveries.evaluates
    imports, steps = _imports(known), spans[spans["kind"] == Kind.STEP]
    first_ns = int(deliveries.from_ns.min(initial=end_ns if closed_ns is None else closed_ns))
    first_ns = min(first_ns, int(steps["start_ns"].min(initial=first_ns)))  # training has begun
    reads = _reads_of(run, process, imports)
    if loop.unjoined_ns is not None:  # else of loaders or threads, and maybe hidden
        own = (reads["process"] != process) | (reads["thread"] == loop.thread)
        reads = reads[(reads["batch"] < 0) & (own | (reads["start_ns"] < first_ns))]
    if not len(steps) and not len(deliveries) and closed_ns is not None and len(reads):
        first_ns = clock.start_ns
        unknown.append("whether data is read once or in a loop: no step and no loader was seen")
    before = reads[reads["start_ns"] < first_ns]
    place = deliveries.at(reads["start_ns"].astype(np.int64))
    is_outside = (place < 0) | (reads["start_ns"] >= np.append(ends, 0)[place])
    later = reads[(reads["start_ns"] >= first_ns) & is_outside]
    claims: list[tuple[str, Integers, Integers]] = [
        ("train_wait", deliveries.requested_ns[trains], deliveries.delivered_ns[trains]),
        ("validation_wait", deliveries.requested_ns[~trains], deliveries.delivered_ns[~trains]),
        ("checkpoint", *_times(spans, Kind.CHECKPOINT)),
        ("stage_in", *_times(spans, Kind.STAGE_IN)),
        ("validation_compute", *_times(spans, Kind.EVALUATE)),
        ("train_compute", deliveries.from_ns[trains], ends[trains]),
        ("validation_compute", deliveries.from_ns[~trains], ends[~trains]),
        # Between a validation that ended and the next batch of the training that it is a part of.
        ("train_compute", *_inside_passes(deliveries, trains)),
        *_summed(run, known.started_ns),
        ("imports", imports[:, 0], imports[:, 1]),
        *(("train_compute", *_times(spans, kind)) for kind in STEP_KINDS),
        ("initial_load", before["start_ns"], np.minimum(before["end_ns"], first_ns)),
        ("initial_load", run.loop.initial["start_ns"], run.loop.initial["end_ns"]),
        ("shutdown", np.array([closed_ns or end_ns]), np.array([end_ns])),
        (RELOAD, later["start_ns"], later["end_ns"]),
    ]
    part_ns = dict.fromkeys((*PARTS, RELOAD), 0)
    for part, start, end in claims:
        part_ns[part] += clock.give(start, end)
    part_ns["between"] = part_ns[RELOAD] + clock.rest()
    nbytes = {
        "initial_load": _known_bytes(before),
        "stage_in": _known_bytes(spans[spans["kind"] == Kind.STAGE_IN]),
        "checkpoint": _known_bytes(spans[spans["kind"] == Kind.CHECKPOINT]),
        "train_wait": _delivered(run, trains),
        "validation_wait": _delivered(run, ~trains),
        "between": _known_bytes(later),
    }
    if not len(imports):
        unknown.append("imports, which cannot be separated from other work outside of loops")
    if run.lost_spans:
        unknown.append("what was in spans that were lost; its time stands elsewhere")
    if run.summed is not None or (deliveries.role[deliveries.batch >= 0] == "").any():
        unknown.append("what some passes over loaders are for; they count as training")
    unseen_nbytes = (known.initial_nbytes or 0) - IMPORTED_NBYTES - (nbytes["initial_load"] or 0)
    if unseen_nbytes > 0 and first_ns > clock.start_ns:
        unknown.append(
            f"how long it took to read at least {unseen_nbytes / 1e6:.0f} MB before the first "
            "batch, which iobench did not see; that time counts as outside of loops"
        )
    bound_by = max(PARTS, key=lambda each: part_ns[each])
    lost_end_ns = clock.end_ns - int(spans["end_ns"].max(initial=known.started_ns))
    lost = closed_ns is None and bound_by == "between" and 2 * lost_end_ns > part_ns[bound_by]
    return JobTime(
        clock.end_ns - clock.start_ns,
        tuple(JobPart(each, part_ns[each], nbytes.get(each)) for each in PARTS),
        bound_by=None if lost else bound_by,
        unknown=tuple(unknown),
        reload_ns=part_ns[RELOAD],
        unfed_fraction=_unfed(steps["start_ns"].astype(np.int64), deliveries),
        unjoined_ns=loop.unjoined_ns,
        comm_ns=_communicating(spans, deliveries, ends),
        rank=run.rank,
    )


def _times(spans: NDArray[Any], kind: Kind) -> tuple[Integers, Integers]:
    chosen = spans[spans["kind"] == kind]
    return chosen["start_ns"], chosen["end_ns"]


def _ends(run: RankRun, process: int, facts: ProcessFacts) -> tuple[int | None, int, list[str]]:
    """Return when a process ended its recording, when it ended, and what of that is not known."""
    owner = run.processes[process]
    spans = run.spans
    last_ns = int(spans["end_ns"][spans["process"] == process].max(initial=facts.started_ns or 0))
    closed_ns = owner.anchors[-1].monotonic_ns if owner.closed else None
    last_ns = max(last_ns, closed_ns or 0, owner.anchors[-1].monotonic_ns)
    unknown = []
    launchers = [each for each in run.facts if each.role == "launcher"]
    parent = facts.ppid, facts.host
    ended = (each.ended_ns for each in launchers if (each.pid, each.host) == parent)
    end_ns = next((each for each in ended if each is not None), -1)
    if end_ns < last_ns:
        end_ns = last_ns
        unknown.append("when the process ended; its time is until the last that was recorded")
    if closed_ns is None:
        how = facts.ended or next((each.ended for each in launchers), None) or "unknown end"
        unknown.append(f"what the process did after its last span ({how}): outside of loops")
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


def _unfed(steps_ns: Integers, deliveries: Deliveries) -> float:
    """Return the share of some steps that lie in no pass; 0 where no batch was delivered."""
    known = len(steps_ns) > 0 and (deliveries.batch >= 0).any()
    return float((deliveries.at(steps_ns) < 0).mean()) if known else 0.0


def _inside_passes(deliveries: Deliveries, rows: Marks) -> tuple[Integers, Integers]:
    """Return from when until when some passes went on, to their last delivery."""
    numbers, of_round = np.unique(deliveries.round[rows], return_inverse=True)
    start = np.full(len(numbers), np.iinfo(np.int64).max)
    end = np.zeros(len(numbers), dtype=np.int64)
    np.minimum.at(start, of_round, deliveries.requested_ns[rows])
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
    result: NDArray[Any] = spans[mine]
    return result


def _known_bytes(spans: NDArray[Any]) -> int | None:
    known = spans["nbytes"][spans["nbytes"] >= 0]
    return int(known.sum()) if len(known) else None


def _delivered(run: RankRun, rows: Marks) -> int | None:
    deliveries = run.deliveries
    nbytes = deliveries.nbytes[rows & (deliveries.batch >= 0)]
    return int(nbytes.sum()) if len(nbytes) and (nbytes >= 0).all() else None


def _summed(run: RankRun, started_ns: int) -> Iterator[tuple[str, Integers, Integers]]:
    """Yield batches of which there are sums alone: in one piece."""
    summed = run.summed
    if summed is not None:
        start = max(summed.from_ns, started_ns)
        split = min(start + summed.wait_ns, summed.until_ns)
        end = min(start + summed.wall_ns, summed.until_ns)
        yield "train_wait", np.array([start]), np.array([split])
        yield "train_compute", np.array([split]), np.array([end])


def _imports(facts: ProcessFacts) -> Integers:
    """Return from when until when a process imported, shape (n, 2); the first is its start."""
    table = np.array(facts.imports_ns, dtype=np.int64).reshape(-1, 2)
    if len(table) and facts.started_ns is not None:
        table[0, 0] = min(table[0, 0], facts.started_ns)
    return table


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
    result: NDArray[Any] = reads[np.argsort(reads["start_ns"], kind="stable")]
    return result
