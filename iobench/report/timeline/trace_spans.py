"""The lanes of a run as threads of a trace: spans, and what a tracer of system calls saw."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.recording.kinds import (
    HANDOVER_KINDS,
    QUEUED_KINDS,
    WORKER_KINDS,
    Kind,
    is_one_of,
    stage_name,
)
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import stages_of
from iobench.report.timeline.model import sub_lanes
from iobench.report.timeline.trace_writer import ROWS_AT_ONCE, TextPart, as_us, texts_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.report.timeline.model import Timeline
    from iobench.report.timeline.trace_writer import TraceWriter
    from iobench.runs.contents import RunData

EXPOSED, PARTLY, HIDDEN, UNKNOWN = range(4)
COLOURS: Final = tuple(
    f',"cname":"{name}"' if name else "" for name in ("terrible", "bad", "good", "")
)
"""Reserved names of the format: red, amber, green; of what is not known, the viewer's own."""
WORDS: Final = (",exposed", ",partly exposed", ",hidden", "")
WHERE: Final = ',"pid":%d,"tid":%d,"ts":%d.%03d'


class PlacedSpans(msgspec.Struct, frozen=True):
    """Where the spans of a timeline are in a trace.

    Parameters
    ----------
    pids : tuple of int
        Of each process of the profile.
    pid, tid : ndarray of int64, shape (n_spans,)
    start_ns, end_ns : ndarray of int64, shape (n_spans,)
        After the beginning of the trace.
    own_ns : ndarray of int64, shape (n_spans,)
        What of each lies in no span inside it.
    moved_ns : ndarray of int64, shape (n_processes,)
        What was added to the monotonic times of each process.
    """

    timeline: Timeline
    pids: tuple[int, ...]
    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    own_ns: NDArray[np.int64]
    moved_ns: NDArray[np.int64]


def place_spans(
    timeline: Timeline, pids: Sequence[int], writer: TraceWriter, moved_ns: NDArray[np.int64]
) -> PlacedSpans:
    """Give each lane of a timeline its threads: one, and more where spans of it overlap.

    A batch in a queue is nothing that a thread does: such spans are pairs of their own.
    """
    spans, lane = timeline.spans, timeline.lane
    start = spans["start_ns"] + moved_ns[spans["process"]]
    end = np.maximum(spans["end_ns"] + moved_ns[spans["process"]], start)
    sub, own = np.zeros(len(spans), dtype=np.int64), end - start
    on_thread = np.flatnonzero(~is_one_of(spans["kind"], QUEUED_KINDS))
    sub[on_thread] = sub_lanes(lane[on_thread], start[on_thread], end[on_thread])
    pieces = leaf_pieces(spans[on_thread], lane[on_thread])
    own[on_thread] = 0
    np.add.at(own, on_thread[pieces.span], pieces.duration_ns)
    widest = int(sub.max(initial=0)) + 1
    keys, of_span = np.unique(lane * np.int64(widest) + sub, return_inverse=True)
    tids = []
    for number, beside in (divmod(key, widest) for key in keys.tolist()):
        where = timeline.lanes[number]
        name = f"{where.name} (overlapping, {beside})" if beside else where.name
        main = not (beside or where.is_device or where.thread)
        tids.append(writer.thread(pids[where.process], name, main=main))
    return PlacedSpans(
        timeline=timeline,
        pids=tuple(pids),
        pid=np.array(pids, dtype=np.int64)[spans["process"]],
        tid=np.array(tids, dtype=np.int64)[of_span],
        start_ns=start,
        end_ns=end,
        own_ns=own,
        moved_ns=moved_ns,
    )


def span_entries(placed: PlacedSpans, strings: Sequence[str], writer: TraceWriter) -> Iterator[str]:
    """Yield every span of a timeline: complete ones of threads, pairs of those that queue."""
    texts = np.array([json.dumps(text) for text in strings], dtype=object)
    timeline = placed.timeline
    heads = np.empty((len(timeline.stages), len(COLOURS)), dtype=object)
    for number, (name, kind) in enumerate(zip(timeline.stages, timeline.kinds, strict=True)):
        heads[number] = [
            f'"name":{json.dumps(name)},"cat":"{kind.family.value}{word}"{colour}'
            for word, colour in zip(WORDS, COLOURS, strict=True)
        ]
    for low in range(0, len(timeline), ROWS_AT_ONCE):
        part = slice(low, low + ROWS_AT_ONCE)
        head = heads[timeline.stage[part], _colours(timeline.exposed_ns[part], placed.own_ns[part])]
        yield from _entries(placed, part, head, texts, writer)


def _entries(
    placed: PlacedSpans,
    part: slice,
    head: NDArray[Any],
    texts: NDArray[Any],
    writer: TraceWriter,
) -> Iterator[str]:
    spans = placed.timeline.spans[part]
    start, end = as_us(placed.start_ns[part]), as_us(placed.end_ns[part])
    where = (placed.pid[part], placed.tid[part], *start)
    queued = is_one_of(spans["kind"], QUEUED_KINDS)
    ids = np.zeros(len(spans), dtype=np.int64)
    ids[queued] = writer.ids(int(queued.sum()))
    parts = [
        TextPart('{"ph":"X",%s' + WHERE, (head, *where), ~queued),
        TextPart(',"dur":%d.%03d', as_us((placed.end_ns - placed.start_ns)[part]), ~queued),
        TextPart('{"ph":"b",%s,"id":%d' + WHERE, (head, ids, *where), queued),
        TextPart(',"args":{'),
        *_arguments(spans, placed.timeline.exposed_ns[part], placed.own_ns[part], texts),
        TextPart("}}"),
        TextPart(',\n{"ph":"e",%s,"id":%d' + WHERE + "}", (head, ids, *where[:2], *end), queued),
    ]
    return texts_of_rows(len(spans), parts)


def _arguments(
    spans: NDArray[Any],
    exposed_ns: NDArray[np.int64],
    own_ns: NDArray[np.int64],
    texts: NDArray[Any],
) -> Iterator[TextPart]:
    """Yield what viewers show of each span beside its name and times; what is unknown is not."""
    kind, flags, nbytes = spans["kind"], spans["flags"], spans["nbytes"]
    loads = is_one_of(kind, WORKER_KINDS)
    working = loads | is_one_of(kind, HANDOVER_KINDS)
    # Of waits and rounds it is the round's number.
    is_round = is_one_of(kind, (Kind.WAIT, Kind.OTHER))
    what = np.where(loads, "file", np.where(kind == Kind.WAIT, "made_by", "detail"))
    long_ns = spans["end_ns"] - spans["start_ns"]
    has_bytes = (nbytes >= 0) & (kind != Kind.OTHER)
    is_known = exposed_ns >= 0
    yield TextPart(',"%s":%s', (what, texts[spans["detail"]]), spans["detail"] != 0)
    yield TextPart(',"batch":%d', (spans["batch"],), spans["batch"] >= 0)
    yield TextPart(',"sample":%d', (spans["sample"],), (spans["sample"] >= 0) & ~is_round)
    yield TextPart(',"round":%d', (spans["sample"],), (spans["sample"] >= 0) & is_round)
    yield TextPart(',"epoch":%d', (spans["epoch"],), spans["epoch"] >= 0)
    yield TextPart(',"bytes":%d', (nbytes,), has_bytes)
    rate = nbytes / np.maximum(long_ns, 1)
    yield TextPart(',"GB/s":%s', (rate,), has_bytes & working & (long_ns > 0))
    yield TextPart(',"exposed_ns":%d', (exposed_ns,), is_known)
    yield TextPart(',"hidden_ns":%d', (np.maximum(own_ns - exposed_ns, 0),), is_known & working)
    yield TextPart(',"cpu_ns":%d', (spans["cpu_ns"],), spans["cpu_ns"] >= 0)
    yield TextPart(',"sum_of_samples":%d', (spans["pieces"],), (flags & Flag.SUMMED) != 0)
    yield TextPart(',"estimated":true', (), (flags & Flag.ESTIMATED) != 0)


def _colours(exposed_ns: NDArray[np.int64], own_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the colour of each span: red where most of it was waited for, green where none was."""
    code = np.full(len(exposed_ns), PARTLY, dtype=np.int64)
    code[2 * exposed_ns >= own_ns] = EXPOSED
    code[100 * exposed_ns <= own_ns] = HIDDEN
    code[(exposed_ns < 0) | (own_ns <= 0)] = UNKNOWN
    return code


def call_entries(
    profile: RunData,
    one: ProcessPlacement,
    placed: PlacedSpans,
    writer: TraceWriter,
) -> Iterator[str]:
    """Yield the calls of a process, on threads of their own below its stages."""
    calls, moved_ns = one.segments[~one.segments["stray"]], placed.moved_ns[one.process]
    calls = calls[np.lexsort((-calls["end_ns"], calls["start_ns"]))]
    start = calls["start_ns"] + moved_ns
    end = np.maximum(calls["end_ns"] + moved_ns, start)
    sub = sub_lanes(np.zeros(len(calls), dtype=np.int64), start, end)
    names = [
        f"Darshan {number}" if number else "Darshan"
        for number in range(int(sub.max(initial=0)) + 1)
    ]
    pid = placed.pids[one.process]
    tids = np.array([writer.thread(pid, each) for each in names])
    long, nbytes, exposed = end - start, calls["nbytes"], calls["exposed_ns"]
    inside, stage = calls["span"] >= 0, np.empty(len(calls), dtype=object)
    stages, place = stages_of(profile.spans[calls["span"][inside]], profile.strings)
    names = [json.dumps(stage_name(*each)) for each in stages]
    stage[inside] = np.array(names, dtype=object)[place]
    colour = np.array(COLOURS)[_colours(exposed, long)]
    where = (np.full(len(calls), pid), tids[sub], *as_us(start))
    files = np.array([json.dumps(each) for each in one.files], dtype=object)[calls["file"]]
    parts = (
        TextPart('{"ph":"X","name":"read call","cat":"storage"%s' + WHERE, (colour, *where)),
        TextPart(',"dur":%d.%03d', as_us(long)),
        TextPart(',"args":{"file":%s,"offset":%d,"bytes":%d', (files, calls["offset"], nbytes)),
        TextPart(',"GB/s":%s', (nbytes / np.maximum(long, 1),), (long > 0) & (nbytes >= 0)),
        TextPart(',"stage":%s', (stage,), inside),
        TextPart(',"exposed_ns":%d,"hidden_ns":%d', (exposed, long - exposed), exposed >= 0),
        TextPart("}}"),
    )
    return texts_of_rows(len(calls), parts)
