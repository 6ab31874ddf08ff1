"""The attribution once more, straight from its definition: plain loops, exact fractions, no numpy.

Written from the text alone (iobench/docs/numbers.md, 2 and 4), to be compared
with `iobench.analysis`: on random schedules, and on what real loaders really did.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from iobench.recording.kinds import LIFE_KINDS, LOOP_KINDS, Kind, stage_name
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

NO_WORK = LIFE_KINDS | {
    Kind.SUBMIT_QUEUE, Kind.IPC_WAIT, Kind.HEAD_OF_LINE, Kind.HANDOVER, Kind.WAIT,
}  # fmt: skip
Lane = tuple[int, int]


@dataclass(eq=False)
class Work:
    """A stretch of a thread that belongs to one span."""

    lane: Lane
    stage: str
    batch: int
    item: int
    start: int
    end: int
    span: int = -1
    place: int = -1
    # Once it lies on the path of a delivery: that path, oldest last, and up to when.
    path: list[Part] | None = None
    until: int = 0


@dataclass(frozen=True)
class Part:
    """A part of a path: of some work, or of the time between two."""

    stage: str
    low: int
    high: int
    work: Work | None = None


@dataclass
class Seen:
    """The spans of a profile as this module looks at them."""

    waits: list[dict] = field(default_factory=list)
    own: list[Work] = field(default_factory=list)
    lanes: dict[Lane, list[Work]] = field(default_factory=dict)
    submitted: dict[int, int] = field(default_factory=dict)
    ready_since: dict[int, int] = field(default_factory=dict)
    releases: dict[int, tuple[int, Lane | None]] = field(default_factory=dict)
    lossy: set[int] = field(default_factory=set)
    consumer: int = -1
    workers: int = 0


def without_cpu_waits(profile: Any) -> Any:
    """Return a run as before anybody looked at run queues: how long they were is up to others."""
    return replace(profile, spans=profile.spans[profile.spans["kind"] != Kind.CPU_WAIT])


def look_at(profile: RunData) -> Seen:
    """Return the spans of the only training loop of a profile and of all that load for it."""
    rows = []
    for number, row in enumerate(profile.spans.tolist()):
        span = dict(zip(profile.spans.dtype.names, row, strict=True))
        span["kind"], span["number"] = Kind(span["kind"]), number
        span["name"] = stage_name(span["kind"], profile.strings[span["label"]])
        span["lane"] = (span["process"], span["thread"])
        rows.append(span)
    timed = [span for span in rows if not span["flags"] & (Flag.DETAIL | Flag.IO)]
    seen = Seen()
    seen.waits = sorted(
        (s for s in timed if s["kind"] == Kind.WAIT), key=lambda span: span["start_ns"]
    )
    for wait in seen.waits:
        wait["made_by"] = profile.strings[wait["detail"]]
        wait["said"] = profile.strings[wait["label"]]
    loop = seen.waits[0]["lane"]
    seen.consumer = loop[0]
    facts = profile.facts_of(loop[0])
    told = facts.loaders[0].workers if facts and facts.loaders else profile.config.get("workers")
    seen.workers = told or 0
    seen.lossy = {n for n, each in enumerate(profile.processes) if each.lost or each.damaged}
    names = {(n, text): (n, t) for n, each in enumerate(profile.processes)
             for t, text in enumerate(each.threads)}  # fmt: skip
    by_lane: dict[Lane, list[dict]] = defaultdict(list)
    held = []
    for span in timed:
        kind, loading = span["kind"], profile.processes[span["process"]].role != "consumer"
        if kind == Kind.SUBMIT_QUEUE and not span["detail"]:
            first = seen.submitted.get(span["batch"], span["start_ns"])
            seen.submitted[span["batch"]] = min(first, span["start_ns"])
        elif kind == Kind.SUBMIT_QUEUE:
            text = profile.strings[span["detail"]]
            held.append((span, names.get((span["process"], text))))
        elif kind == Kind.STARTUP:
            last = seen.ready_since.get(span["process"], span["end_ns"])
            seen.ready_since[span["process"]] = max(last, span["end_ns"])
        if span["lane"] == loop:
            counts = kind not in LOOP_KINDS | {Kind.WAIT} | LIFE_KINDS
        else:
            counts = kind not in NO_WORK and (kind not in LOOP_KINDS | {Kind.WAIT} or loading)
        if counts:
            by_lane[span["lane"]].append(span)
    pieces = {lane: innermost(spans) for lane, spans in by_lane.items()}
    seen.own = pieces.pop(loop, [])
    seen.lanes = pieces
    for span, other in held:
        later = [w for w in pieces.get(span["lane"], ()) if w.start >= span["end_ns"]]
        if later:
            seen.releases[id(later[0])] = (span["start_ns"], other if other in pieces else None)
    return seen


def work_of(span: dict, batch: int, low: int, high: int, number: int) -> Work:
    several = span["flags"] & Flag.SUMMED and span["pieces"] > 1
    item = -1 if several else span["sample"]
    return Work(span["lane"], span["name"], batch, item, low, high, number)


def innermost(spans: list[dict]) -> list[Work]:
    """Return each instant of a thread as its innermost span's, by time."""
    spans = sorted(spans, key=lambda s: (s["start_ns"], -s["end_ns"], -s["sequence"]))
    batches = [span["batch"] for span in spans]
    for inner, span in enumerate(spans):
        around = [
            outer
            for outer in range(inner)
            if spans[outer]["end_ns"] > span["start_ns"] and batches[inner] < 0
        ]
        if around:
            batches[inner] = batches[around[-1]]
    edges = sorted({time for span in spans for time in (span["start_ns"], span["end_ns"])})
    pieces: list[Work] = []
    alive: list[int] = []
    upcoming = 0
    found = set()
    for low, high in itertools.pairwise(edges):
        while upcoming < len(spans) and spans[upcoming]["start_ns"] <= low:
            alive.append(upcoming)
            upcoming += 1
        alive = [number for number in alive if spans[number]["end_ns"] > low]
        if alive:
            inner = alive[-1]
            found.add(inner)
            last = pieces[-1] if pieces else None
            if last and last.span == inner and last.end == low:
                last.end = high
            else:
                span = spans[inner]
                pieces.append(work_of(span, batches[inner], low, high, inner))
    for number, span in enumerate(spans):
        if number not in found:
            start = span["start_ns"]
            pieces.append(work_of(span, batches[number], start, start, number))
    pieces.sort(key=lambda work: (work.start, work.end, work.span))
    known = [work for work in pieces if work.batch >= 0]
    for place, work in enumerate(pieces):
        work.place = place
        if work.batch < 0:
            before = [each for each in pieces[:place] if each in known]
            after = [each for each in pieces[place:] if each in known]
            if before and after and before[-1].batch == after[0].batch:
                work.batch = before[-1].batch
    return pieces


def reference(profile: RunData) -> dict[str, Fraction]:
    """Return the exposed time by stage, in exact fractions of ns."""
    seen = look_at(profile)
    exposed: dict[str, Fraction] = defaultdict(Fraction)
    overtaken = overtaken_rounds(seen)
    for wait in seen.waits:
        asked, delivered = wait["start_ns"], wait["end_ns"]
        ready = None
        if wait["batch"] >= 0 and wait["made_by"] != "consumer":
            ready = last_work(seen, wait["batch"], delivered)
        if ready is not None:
            when = min(ready.end, delivered)
            if when > asked:
                batches = next((each for each in overtaken if wait["batch"] in each), set())
                charge_path(seen, exposed, asked, ready, when, batches)
            asked = max(asked, when)
        charge_pick_up(seen, exposed, wait, asked, made=ready is not None)
    return {stage: amount for stage, amount in exposed.items() if amount}


def overtaken_rounds(seen: Seen) -> list[set[int]]:
    """Return the batches of each round whose batches were not taken in order."""
    rounds: list[list[int]] = [[]]
    for wait in seen.waits:
        if wait["batch"] >= 0:
            rounds[-1].append(wait["batch"])
        else:
            rounds.append([])
    return [{*batches} for batches in rounds if batches != sorted(batches)]


def under_way(seen: Seen, own: Work, ready: int, batches: set[int]) -> list[Work]:
    """4.2: what other workers are at, of batches taken as they come."""
    latest = []
    for lane in sorted(seen.lanes):
        begun = [each for each in seen.lanes[lane] if each.start < ready]
        if begun and lane[0] not in (own.lane[0], seen.consumer):
            same = [each for each in seen.lanes[lane] if each.batch == begun[-1].batch]
            if begun[-1].batch in batches and max(each.end for each in same) >= ready:
                latest.append(begun[-1])
    return latest


def charge_pick_up(
    seen: Seen, exposed: dict[str, Fraction], wait: dict, low: int, *, made: bool
) -> None:
    """4.1: from ``low`` on, the loop's own spans, and a name for the rest."""
    if wait["batch"] < 0 and wait["said"] not in ("startup", "failed"):
        exposed["shutdown"] += wait["end_ns"] - low  # whatever the loop does: there is no batch
        return
    covered = 0
    for work in seen.own:
        inside = max(min(work.end, wait["end_ns"]) - max(work.start, low), 0)
        exposed[work.stage] += inside
        covered += inside
    rest = "handover"
    in_loop = wait["made_by"] == "consumer" or any(
        work.batch == wait["batch"] >= 0 and "sampler" not in work.stage for work in seen.own
    )
    if wait["batch"] < 0:
        rest = "startup" if wait["said"] == "startup" else "unknown"
    elif not made and not in_loop:
        rest = "unknown" if seen.workers or wait["made_by"] == "threads" else "opaque"
    exposed[rest] += wait["end_ns"] - low - covered


def last_work(seen: Seen, batch: int, before: int) -> Work | None:
    """Return the last work on a batch that had begun when it was taken."""
    works = [
        work for lane in sorted(seen.lanes) for work in seen.lanes[lane]
        if work.batch == batch and work.start < before
    ]  # fmt: skip
    return max(works, key=finish, default=None)


def finish(work: Work) -> tuple[int, Lane, int]:
    """Order works by when they ended; those that took no time as their threads come."""
    return work.end, work.lane, work.place


def predecessor(seen: Seen, work: Work) -> Work | None:
    """4.2: what finished last before this; None where that is the submission, which is slack."""
    on_lane = seen.lanes[work.lane][work.place - 1] if work.place else None
    in_loop = work.lane[0] == seen.consumer  # whose threads hand on single items
    # A process works on one batch after another, a thread of the loop's on one item.
    goes_on = on_lane is not None and on_lane.batch == work.batch
    goes_on = goes_on and (not in_loop or on_lane.span == work.span)
    upstream = None
    if work.batch >= 0 and not goes_on:
        others = [
            each for lane in seen.lanes for each in seen.lanes[lane]
            if lane != work.lane and each.batch == work.batch and each.end <= work.start
            and finish(each) < finish(work)
            and (not in_loop or -1 in (each.item, work.item) or each.item == work.item)
        ]  # fmt: skip
        upstream = max(others, key=finish, default=None)
    if id(work) in seen.releases:
        release, other = seen.releases[id(work)]
        if all(each is None or each.end < release for each in (on_lane, upstream)):
            if other is None:
                return None
            earlier = [w for w in seen.lanes[other] if w.end <= release and w.start < release]
            return earlier[-1] if earlier else None
    if on_lane is None:
        return upstream
    if upstream is not None:
        return upstream if upstream.end >= on_lane.end else on_lane
    submitted = seen.submitted.get(work.batch, on_lane.end)
    if on_lane.batch != work.batch and on_lane.end < submitted <= work.start:
        return None
    return on_lane


def charge_path(
    seen: Seen, exposed: dict[str, Fraction], asked: int, own: Work, ready: int, batches: set[int]
) -> None:
    """4.2 and 4.3: walk the paths, then spread the wait over what lies on them."""
    total: dict[str, int] = defaultdict(int)
    weights, low, first = walk(seen, own, ready)
    others = under_way(seen, own, ready, batches) if batches else []
    for each in (weights, *(walk(seen, other, ready)[0] for other in others)):
        for stage, weight in each.items():
            total[stage] += max(weight, 0)
    start = max(asked, min(low, ready))
    if start > asked:
        charge_before(seen, exposed, asked, start, first)
    for stage, weight in total.items():
        if weight:
            exposed[stage] += Fraction((ready - start) * weight, sum(total.values()))


def walk(seen: Seen, work: Work, ready: int) -> tuple[dict[str, int], int, Work | None]:
    """Walk a path; return the time of each stage on it, its begin, and the work there."""
    path: list[Part] = []
    weights: dict[str, int] = defaultdict(int)
    high, first = ready, None
    while True:
        low = work.start if work.path is None else work.until
        if work.path is None or low < high:
            path.append(Part(work.stage, low, max(high, low), work))
        if work.path is not None:
            for later in work.path:
                if later.work is work:
                    break
                weights[later.stage] -= later.high - later.low
            break
        before = predecessor(seen, work)
        if before is None:
            first = work
            break
        if before.end < low:
            path.append(Part(idle(seen, before, work), before.end, low))
        high, work = before.end, before
    for part in path:
        weights[part.stage] += part.high - part.low
        if part.work is not None:
            part.work.path, part.work.until = path, part.high
    return weights, low, first


def idle(seen: Seen, before: Work, work: Work) -> str:
    """Name the time between two works of a path."""
    process = work.lane[0]
    if work.lane[0] == seen.consumer and seen.workers:
        return (
            "ipc_wait" if before.lane != work.lane or before.batch != work.batch else "worker_gap"
        )
    return "unknown" if process in seen.lossy else "worker_gap"


def charge_before(
    seen: Seen, exposed: dict[str, Fraction], asked: int, start: int, first: Work | None
) -> None:
    """4.3: what of the wait lies before the path."""
    if first is None:
        exposed["unknown"] += start - asked
        return
    process, begun = first.lane[0], asked
    works = [work for lane, each in seen.lanes.items() if lane[0] == process for work in each]
    first_batch = min(
        (work for work in works if work.batch >= 0), key=lambda w: w.start, default=None
    )
    if first.batch < 0 or (first_batch and first_batch.batch == first.batch):
        begun = min(max(seen.ready_since.get(process, start), asked), start)
        exposed["startup"] += begun - asked
    submitted = seen.submitted.get(first.batch)
    if id(first) in seen.releases:
        submitted = seen.releases[id(first)][0]
    if submitted is None:
        exposed["unknown"] += start - begun
        return
    queued = min(max(submitted, begun), start)
    exposed["starved_submit"] += queued - begun
    exposed["submit_queue"] += start - queued
