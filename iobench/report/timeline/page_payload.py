"""The spans of a run as small columns, for the timeline of a page to unpack in the browser.

All lie one behind the other in one stream that zlib deflates and base64 spells: file names as JSON,
then the columns. Each holds what a row differs by from the row before (the first from 0), with the
sign in the lowest bit (zigzag), as the lowest byte of all rows, then the next one of all, up to the
highest that is not zero. ``webpage/assets/decode.js`` is the other side.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.recording.kinds import Kind, Trait, stage_title
from iobench.recording.span_file import Flag
from iobench.report.timeline.machine_lanes import machine_payload
from iobench.report.timeline.model import timeline_of

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun, Run
    from iobench.report.timeline.model import Timeline
    from iobench.runs.contents import RunData

Integers = NDArray[Any]

VERSION: Final = 2
SPAN_LIMIT: Final = 500_000
NAME_LIMIT: Final = 120
"""Characters of a file name; longer ones lose their middle."""
NAMES_LIMIT: Final = 50_000
"""Different file names; those of fewest spans are left out beyond it."""


class TimelinePayload(msgspec.Struct, frozen=True):
    """What a page embeds of a profile for its timeline.

    Parameters
    ----------
    meta : dict
        For JSON: ``version``; ``run``; ``n_spans`` of the profile and ``n_shown`` of them;
        ``length_ns`` from the first moment to the last; ``lanes``: ``[{name, rank, pid, is_device,
        is_loop, is_closed, n_spans}]``; ``missing``: loading processes without spans; ``stages``,
        and for each its ``titles``, ``kinds``, ``sorts`` (as `Kind.family`), ``queued``; ``steps``:
        ``[{rank, n_steps, epochs: [[epoch, first step]]}]``; ``left_out``: null, or what
        `choose_spans` says; ``n_names_left_out``; ``names_nbytes`` and ``columns``: ``[[name,
        n_planes]]`` of the inflated stream; ``machine``: what `machine_payload` says.
    data : str
        The columns, deflated, in base64.
    """

    meta: dict[str, Any]
    data: str


def timeline_payload(run: RankRun, limit: int = SPAN_LIMIT) -> TimelinePayload:
    """Return what a page embeds of a run.

    Parameters
    ----------
    limit : int
        Spans to embed at most. Of more: all waits, as far as they fit, then the ones most waited
        for and a uniform sample of the others.
    """
    profile, timeline = run.data, run.cached(timeline_of)
    chosen, left_out = choose_spans(timeline, limit)
    names, name_of_span, n_names_left_out = _names(profile, timeline.spans["detail"][chosen])
    columns, described = _columns(timeline, chosen, name_of_span)
    spelled = json.dumps(names).encode("ascii")
    meta = {
        "version": VERSION,
        "run": str(profile.path),
        "n_spans": len(timeline),
        "n_shown": len(chosen),
        "length_ns": timeline.end_ns - timeline.start_ns,
        "lanes": _lanes(profile, timeline, chosen),
        "missing": list(profile.missing_workers),
        "stages": list(timeline.stages),
        "titles": [*map(stage_title, timeline.stages)],
        "kinds": [kind.spelled for kind in timeline.kinds],
        "sorts": [kind.family.value for kind in timeline.kinds],
        "queued": [Trait.QUEUES in kind.traits for kind in timeline.kinds],
        "steps": _steps(run),
        "left_out": left_out,
        "n_names_left_out": n_names_left_out,
        "names_nbytes": len(spelled),
        "columns": described,
        "machine": machine_payload(run, timeline.start_ns, timeline.end_ns),
    }
    return TimelinePayload(meta, base64.b64encode(zlib.compress(spelled + columns)).decode("ascii"))


def choose_spans(timeline: Timeline, limit: int) -> tuple[Integers, dict[str, Any] | None]:
    """Choose what is shown of a timeline.

    All waits, the longest where even these are too many; half of what is left of ``limit`` for
    the spans with most exposed time, the other half for a uniform sample of the rest, always the
    same for the same run.

    Returns
    -------
    rows : ndarray of int64
        In ascending order.
    left_out : dict or None
        None where nothing is. Else ``n_spans``, ``length_ns`` and ``exposed_ns`` of what is left
        out; ``n_waits``, ``n_worst`` and ``n_sampled`` of what is not, and ``n_waits_left_out``;
        ``stages``: ``[{stage, title, n_spans, length_ns, exposed_ns}]`` of what is left out.

    Raises
    ------
    ValueError
        If the limit is negative.
    """
    if limit < 0:
        raise ValueError(f"limit is {limit}; expected a number of spans, 0 or more")
    n_spans = len(timeline)
    if n_spans <= limit:
        return np.arange(n_spans, dtype=np.int64), None
    is_wait = timeline.spans["kind"] == Kind.WAIT
    length_ns = timeline.spans["end_ns"] - timeline.spans["start_ns"]
    waits = _longest(np.flatnonzero(is_wait), length_ns, limit)
    space = limit - len(waits)
    others = np.flatnonzero(~is_wait)
    exposed = others[timeline.exposed_ns[others] > 0]
    worst = _longest(exposed, timeline.exposed_ns, space // 2)
    rest = np.setdiff1d(others, worst, assume_unique=True)
    # Drawn and not every n-th: stages follow each other in a period as well.
    random = np.random.default_rng(0)
    sampled = random.choice(rest, min(space - len(worst), len(rest)), replace=False, shuffle=False)
    rows = np.sort(np.concatenate((waits, worst, sampled)))
    counts = {
        "n_waits": len(waits),
        "n_waits_left_out": int(is_wait.sum()) - len(waits),
        "n_worst": len(worst),
        "n_sampled": len(sampled),
    }
    return rows, {**_left_out(timeline, rows), **counts}


def _longest(rows: Integers, by: Integers, most: int) -> Integers:
    """Return the rows of the greatest values; of equal ones, the first."""
    return np.sort(rows[np.argsort(-by[rows], kind="stable")[:most]])


def _left_out(timeline: Timeline, rows: Integers) -> dict[str, Any]:
    gone = np.ones(len(timeline), dtype=bool)
    gone[rows] = False
    spans, stage = timeline.spans[gone], timeline.stage[gone]
    # Of sums beyond 2**53 floats would be off.
    sums = np.zeros((3, len(timeline.stages)), dtype=np.int64)
    length, exposed = spans["end_ns"] - spans["start_ns"], np.maximum(timeline.exposed_ns[gone], 0)
    for total, values in zip(sums, (1, length, exposed), strict=True):
        np.add.at(total, stage, values)
    names = ("n_spans", "length_ns", "exposed_ns")
    return {
        **dict(zip(names, sums.sum(axis=1).tolist(), strict=True)),
        "stages": [
            {"stage": stage, "title": stage_title(stage), **dict(zip(names, values, strict=True))}
            for stage, values in zip(timeline.stages, sums.T.tolist(), strict=True)
            if values[0]
        ],
    }


def _lanes(profile: RunData, timeline: Timeline, chosen: Integers) -> list[dict[str, Any]]:
    n_spans = np.bincount(timeline.lane[chosen], minlength=len(timeline.lanes)).tolist()
    loops = np.unique(timeline.lane[timeline.spans["kind"] == Kind.WAIT])
    owners = [profile.processes[lane.process] for lane in timeline.lanes]
    return [
        {
            "name": lane.name,
            "rank": process.rank,
            "pid": process.pid,
            "is_device": lane.is_device,
            "is_loop": number in loops,
            "is_closed": process.closed,
            "n_spans": n_spans[number],
        }
        for number, (lane, process) in enumerate(zip(timeline.lanes, owners, strict=True))
    ]


def _steps(run: Run | RankRun) -> list[dict[str, Any]]:
    """Return, for each rank, its steps and where its epochs begin among them, as in tables."""
    described = []
    for one in run.parts:
        with_batch = one.deliveries.batch >= 0 if one.is_sound else np.zeros(0, dtype=bool)
        if not with_batch.any():
            continue
        epoch = one.deliveries.of_epoch[with_batch]
        numbers, first = np.unique(epoch, return_index=True)
        order = np.argsort(first)
        begins = np.stack((numbers, first), axis=1)[order].tolist()
        described.append({"rank": one.rank, "n_steps": len(epoch), "epochs": begins})
    return described


def _names(profile: RunData, detail: Integers) -> tuple[list[str], Integers, int]:
    """Return file names by how many spans have them, each span's place there, and how many not."""
    numbers, place, n_spans = np.unique(detail, return_inverse=True, return_counts=True)
    order = np.lexsort((numbers, -n_spans, numbers != 0))
    retained = order[:NAMES_LIMIT]
    new = np.zeros(len(numbers), dtype=np.int64)
    new[retained] = np.arange(len(retained))
    names = [shortened(profile.strings[number]) for number in numbers[retained].tolist()]
    if len(numbers) and numbers[order[0]] != 0:
        # Number 0 is no name.
        names.insert(0, "")
        new[retained] += 1
    if len(order) > len(retained):
        names.append("(name left out of this page)")
        new[order[NAMES_LIMIT:]] = len(names) - 1
    return names or [""], new[place.reshape(-1)], len(order) - len(retained)


def shortened(name: str, limit: int = NAME_LIMIT) -> str:
    """Return a name without its middle if it is longer than ``limit``: its end says most."""
    if len(name) <= limit:
        return name
    head = (limit - 1) // 3
    return f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"


def _columns(
    timeline: Timeline, chosen: Integers, name_of_span: Integers
) -> tuple[bytes, list[tuple[str, int]]]:
    """Return the bytes of all columns, and the name and number of byte planes of each."""
    spans = timeline.spans[chosen]
    marks = spans["flags"] & (Flag.SUMMED | Flag.ESTIMATED)
    columns = {
        "depth": np.minimum(timeline.depth[chosen], 255),
        "stage": timeline.stage[chosen],
        "start": spans["start_ns"] - timeline.start_ns,
        "length": np.maximum(spans["end_ns"] - spans["start_ns"], 0),
        "exposed": timeline.exposed_ns[chosen],
        "sample": spans["sample"],
        "nbytes": spans["nbytes"],
        "batch": spans["batch"],
        "epoch": spans["epoch"],
        "name": name_of_span,
        "marks": marks,
        "pieces": np.where(marks & Flag.SUMMED, spans["pieces"], 1),
    }
    result = {name: _planes(values) for name, values in columns.items()}
    described = [(name, len(planes)) for name, planes in result.items()]
    return b"".join(planes.tobytes() for planes in result.values()), described


def _planes(values: Integers) -> NDArray[np.uint8]:
    """Return the bytes of a column, shape (n_planes, n_rows)."""
    change = np.diff(values.astype("<i8"), prepend=np.int64(0))
    planes = ((change << 1) ^ (change >> 63)).view(np.uint8).reshape(-1, 8).T
    return planes[: int(np.flatnonzero(planes.any(axis=1)).max(initial=-1)) + 1]
