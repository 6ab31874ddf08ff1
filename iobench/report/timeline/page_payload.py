"""The spans of a run as small columns, for the timeline of a page to unpack in the browser.

All lie one behind the other in one stream that zlib deflates and base64 spells: file names as JSON,
then the columns. Each holds what a row differs by from the row before (the first from 0), with the
sign in the lowest bit (zigzag), as the lowest byte of all rows, then the next one of all, up to the
highest that is not zero. ``webpage/assets/spans.js`` is the other side.
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
from iobench.report.timeline.model import timeline_of
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.run import RankRun
    from iobench.report.timeline.model import Timeline
    from iobench.runs.contents import RunData
    from iobench.runs.machine_samples import MachineSamples

Integers = NDArray[Any]

Floats = NDArray[np.float64]
SHARE, BYTES, RATE = "share", "bytes", "rate"
Figure = tuple[str, str, Floats | None, float | None]
"""Name, unit, means between readings (NaN is unknown), and what fills the lane if not the most."""
MOST_STEPS: Final = 2000
"""Of a lane on a page; of more, several become their mean."""
STEPS: Final = 1000
"""A page has values in so many steps of a lane's top."""
SPAN_LIMIT: Final = 500_000


class TimelinePayload(msgspec.Struct, frozen=True):
    """What a page embeds of a run for its timeline: ``meta`` for JSON, ``data`` the columns."""

    meta: dict[str, Any]
    data: str


def timeline_payload(run: RankRun, limit: int = SPAN_LIMIT) -> TimelinePayload:
    """Return what a page embeds of a run, at most ``limit`` of its spans (see `choose_spans`)."""
    timeline = run.cached(timeline_of)
    chosen = choose_spans(timeline, limit)
    # Number 0 is no name, and has the first place.
    details = np.append(0, timeline.spans["detail"][chosen])
    strings, name_of_span = np.unique(details, return_inverse=True)
    names = [run.strings[each] for each in strings.tolist()]
    spelled = json.dumps(names).encode("ascii")
    columns = _columns(timeline, chosen, name_of_span[1:])
    planes = {name: _planes(values) for name, values in columns.items()}
    meta = {
        "n_spans": len(timeline),
        "n_shown": len(chosen),
        "length_ns": timeline.end_ns - timeline.start_ns,
        "lanes": _lanes(run, timeline, chosen),
        "missing": list(run.missing_workers),
        "stages": list(timeline.stages),
        "titles": [*map(stage_title, timeline.stages)],
        "kinds": [kind.spelled for kind in timeline.kinds],
        "sorts": [kind.family.value for kind in timeline.kinds],
        "queued": [Trait.QUEUES in kind.traits for kind in timeline.kinds],
        "steps": _steps(run),
        "names_nbytes": len(spelled),
        "columns": [(name, len(each)) for name, each in planes.items()],
        "machine": _machine(run, timeline.start_ns, timeline.end_ns),
    }
    stream = b"".join((spelled, *(each.tobytes() for each in planes.values())))
    return TimelinePayload(meta, base64.b64encode(zlib.compress(stream)).decode("ascii"))


def choose_spans(timeline: Timeline, limit: int) -> Integers:
    """Return the rows shown: the longest waits, then those most exposed, then the longest."""
    length_ns = timeline.spans["end_ns"] - timeline.spans["start_ns"]
    is_wait = (timeline.spans["kind"] == Kind.WAIT) & (timeline.spans["flags"] == 0)
    exposed_ns = np.where(is_wait, length_ns, timeline.exposed_ns)
    return np.sort(np.lexsort((-length_ns, -exposed_ns, ~is_wait))[:limit])


def _lanes(run: RunData, timeline: Timeline, chosen: Integers) -> list[dict[str, Any]]:
    n_spans = np.bincount(timeline.lane[chosen], minlength=len(timeline.lanes)).tolist()
    is_wait = (timeline.spans["kind"] == Kind.WAIT) & (timeline.spans["flags"] == 0)
    loops = np.unique(timeline.lane[is_wait])
    return [
        {
            "name": lane.name,
            "rank": run.processes[lane.process].rank,
            "pid": run.processes[lane.process].pid,
            "is_loop": number in loops,
            "is_closed": run.processes[lane.process].closed,
            "n_spans": n_spans[number],
        }
        for number, lane in enumerate(timeline.lanes)
    ]


def _steps(run: RankRun) -> list[dict[str, Any]]:
    """Return the steps of a rank and where its epochs begin among them, as in tables."""
    with_batch = run.deliveries.batch >= 0 if run.is_sound else np.zeros(0, dtype=bool)
    if not with_batch.any():
        return []
    epoch = run.deliveries.of_epoch[with_batch]
    numbers, first = np.unique(epoch, return_index=True)
    begins = np.stack((numbers, first), axis=1)[np.argsort(first)].tolist()
    return [{"rank": run.rank, "n_steps": len(epoch), "epochs": begins}]


def _columns(timeline: Timeline, chosen: Integers, name_of_span: Integers) -> dict[str, Integers]:
    spans = timeline.spans[chosen]
    marks = spans["flags"] & (Flag.SUMMED | Flag.ESTIMATED)
    return {
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


def _planes(values: Integers) -> NDArray[np.uint8]:
    """Return the bytes of a column, shape (n_planes, n_rows)."""
    change = np.diff(values.astype("<i8"), prepend=np.int64(0))
    coded = (change << 1) ^ (change >> 63)
    n_planes = -(-int(np.bitwise_or.reduce(coded.view("<u8"), initial=0)).bit_length() // 8)
    return coded.view(np.uint8).reshape(-1, 8).T[:n_planes]


# -- what the machine did meanwhile, as lanes below those of its processes ---------------------


def _figures(samples: MachineSamples) -> Iterator[Figure]:
    head = samples.head

    def rate(column: str, divisor: float = 1.0) -> Floats | None:
        values = samples.per_second(column)
        return None if values is None else values / divisor

    if head.cpus:
        limits = samples.cpu_limits()
        yield "CPUs", SHARE, limits["cpus"], 1.0
        yield "CPUs of the quota", SHARE, limits.get("quota"), 1.0
    for what in ("memory", "io", "cpu"):
        yield f"held up for {what}", SHARE, rate(f"pressure.{what}_us", 1e6), 1.0
    for name, column, top in (
        ("memory taken", "memory.used_nbytes", head.memory_nbytes),
        ("page cache", "memory.cached_nbytes", head.memory_nbytes),
    ):
        if column in samples.values:
            yield name, BYTES, samples.values[column][1:], top
    for disk in samples.names("disk"):
        yield f"{disk} busy", SHARE, rate(f"disk:{disk}.busy_ms", 1e3), 1.0
        for what in ("read", "written"):
            yield f"{disk} {what}", RATE, rate(f"disk:{disk}.{what}"), None
    for link in samples.names("net"):
        for what in ("received", "sent"):
            yield f"{link} {what}", RATE, rate(f"net:{link}.{what}"), head.links.get(link)
    for gpu in samples.names("gpu"):
        title = head.sources[int(gpu)].title
        yield f"{title} busy", SHARE, samples.gpu_busy(gpu), 1.0


def _machine(run: RankRun, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Return what a page draws of the machine: lanes that share their edges (us), as a group."""
    process = next((each for each in run.processes if each.rank == run.rank), None)
    samples = of_process(run.machines, process)
    if samples is None:
        return []
    first, last = np.searchsorted(samples.time_ns, (start_ns, end_ns))
    part = slice(max(first - 1, 0), last + 1)
    inside, lanes = samples.time_ns[part], []
    for name, unit, values, top in _figures(samples):
        if len(inside) > 1 and values is not None and not np.isnan(values).all():
            full = top or float(np.nanmax(values)) or 1.0
            edges, means = _thinned(inside, values[part][: len(inside) - 1])
            steps = np.clip(np.rint(means / full * STEPS), 0, STEPS).tolist()
            shown = [None if np.isnan(step) else int(step) for step in steps]
            lanes.append({"name": name, "unit": unit, "top": full, "values": shown})
    return [{"edges": ((edges - start_ns) // 1000).tolist(), "lanes": lanes}] if lanes else []


def _thinned(edges: NDArray[np.int64], values: Floats) -> tuple[NDArray[np.int64], Floats]:
    n_joined = -(-len(values) // MOST_STEPS)
    if n_joined < 2:
        return edges, values
    first = np.arange(0, len(values), n_joined)
    step = np.diff(edges) * ~np.isnan(values)
    total = np.add.reduceat(np.nan_to_num(values) * step, first)
    known = np.add.reduceat(step, first)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.append(edges[first], edges[-1:]), np.where(known > 0, total / known, np.nan)
