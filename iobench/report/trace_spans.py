"""The spans of a profile as entries of a trace: what ran where and when, and who waited for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.recording.kinds import HANDOVER_KINDS, QUEUED_KINDS, WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag
from iobench.report.trace_entries import microseconds, sub_lanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.analysis.timeline import Timeline
    from iobench.profiles.contents import Profile
    from iobench.report.trace_entries import EntryFile, TraceNumbers

__all__ = ["PlacedSpans", "colour_of", "place_spans", "write_spans"]

EXPOSED, PARTLY, HIDDEN, UNKNOWN = range(4)
COLOURS: Final = ("terrible", "bad", "good", "")
"""Reserved names of the format: red, amber, green; of what is not known, the viewer's own."""
WORDS: Final = (",exposed", ",partly exposed", ",hidden", "")
ROWS_IN_PART: Final = 16_384


@dataclass(frozen=True, slots=True)
class PlacedSpans:
    """Where the spans of a timeline are in a trace.

    Parameters
    ----------
    timeline : Timeline
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
    timeline: Timeline, pids: Sequence[int], numbers: TraceNumbers, moved_ns: NDArray[np.int64]
) -> PlacedSpans:
    """Give each lane of a timeline its threads: one, and more where spans of it overlap.

    A batch in a queue is nothing that a thread does: such spans are pairs of their own.
    """
    spans = timeline.spans
    process = spans["process"].astype(np.int64)
    start = spans["start_ns"] + moved_ns[process]
    end = np.maximum(spans["end_ns"] + moved_ns[process], start)
    queued = is_one_of(spans["kind"], QUEUED_KINDS)
    sub = np.zeros(len(spans), dtype=np.int64)
    on_thread = np.flatnonzero(~queued)
    sub[on_thread] = sub_lanes(timeline.lane[on_thread], start[on_thread], end[on_thread])
    own = end - start
    pieces = leaf_pieces(spans[on_thread], timeline.lane[on_thread].astype(np.int64))
    own[on_thread] = 0
    np.add.at(own, on_thread[pieces.span], pieces.duration_ns)
    widest = int(sub.max(initial=0)) + 1
    keys, of_span = np.unique(timeline.lane * np.int64(widest) + sub, return_inverse=True)
    places = [divmod(key, widest) for key in keys.tolist()]
    tids = [_new_thread(timeline, lane, part, pids, numbers) for lane, part in places]
    pid_of = np.array(pids, dtype=np.int64)
    return PlacedSpans(
        timeline=timeline,
        pids=tuple(pids),
        pid=pid_of[process],
        tid=np.array(tids, dtype=np.int64)[of_span.reshape(-1)],
        start_ns=start,
        end_ns=end,
        own_ns=own,
        moved_ns=moved_ns,
    )


def _new_thread(
    timeline: Timeline, lane: int, sub: int, pids: Sequence[int], numbers: TraceNumbers
) -> int:
    where = timeline.lanes[lane]
    name = f"{where.name} (overlapping, {sub})" if sub else where.name
    main = not (sub or where.is_device or where.thread)
    return numbers.thread(pids[where.process], name, main=main)


def write_spans(
    profile: Profile, placed: PlacedSpans, numbers: TraceNumbers, entries: EntryFile
) -> None:
    """Write every span of a timeline: complete ones of threads, pairs of those that queue."""
    texts = [json.dumps(text) for text in profile.strings]
    for low in range(0, len(placed.timeline), ROWS_IN_PART):
        entries.add_all(_entries(placed, slice(low, low + ROWS_IN_PART), texts, numbers))


def _entries(
    placed: PlacedSpans, part: slice, texts: Sequence[str], numbers: TraceNumbers
) -> Iterator[str]:
    timeline, spans = placed.timeline, placed.timeline.spans[part]
    start, end = placed.start_ns[part], placed.end_ns[part]
    heads = [
        [_head(name, Kind(kind), code) for code in range(len(COLOURS))]
        for name, kind in zip(timeline.stages, _kinds(timeline), strict=True)
    ]
    colour = colour_of(timeline.exposed_ns[part], placed.own_ns[part])
    columns = (
        timeline.stage[part].tolist(),
        colour.tolist(),
        placed.pid[part].tolist(),
        placed.tid[part].tolist(),
        start.tolist(),
        (end - start).tolist(),
        is_one_of(spans["kind"], QUEUED_KINDS).tolist(),
        _arguments(spans, timeline.exposed_ns[part], placed.own_ns[part], texts),
    )
    for stage, code, pid, tid, begin, long, queued, arguments in zip(*columns, strict=True):
        head = heads[stage][code]
        if not queued:
            yield (
                f'{{"ph":"X",{head},"pid":{pid},"tid":{tid},"ts":{begin // 1000}.{begin % 1000:03d}'
                f',"dur":{long // 1000}.{long % 1000:03d},"args":{{{arguments}}}}}'
            )
        else:
            where = f'{head},"id":{numbers.arrow()},"pid":{pid},"tid":{tid}'
            yield f'{{"ph":"b",{where},"ts":{microseconds(begin)},"args":{{{arguments}}}}}'
            yield f'{{"ph":"e",{where},"ts":{microseconds(begin + long)}}}'


def _kinds(timeline: Timeline) -> list[int]:
    """Return the kind of each stage."""
    kinds = np.zeros(len(timeline.stages), dtype=np.int64)
    kinds[timeline.stage] = timeline.spans["kind"]
    return [int(kind) for kind in kinds]


def _head(name: str, kind: Kind, code: int) -> str:
    colour = f',"cname":"{COLOURS[code]}"' if COLOURS[code] else ""
    return f'"name":{json.dumps(name)},"cat":"{kind.family.value}{WORDS[code]}"{colour}'


def colour_of(exposed_ns: NDArray[np.int64], own_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the colour of each span: red where most of it was waited for, green where none was."""
    code = np.full(len(exposed_ns), PARTLY, dtype=np.int64)
    code[2 * exposed_ns >= own_ns] = EXPOSED
    code[100 * exposed_ns <= own_ns] = HIDDEN
    code[(exposed_ns < 0) | (own_ns <= 0)] = UNKNOWN
    return code


def _arguments(
    spans: NDArray[Any],
    exposed_ns: NDArray[np.int64],
    own_ns: NDArray[np.int64],
    texts: Sequence[str],
) -> Iterator[str]:
    """Yield what viewers show of each span beside its name and times; what is unknown is not."""
    kinds = {kind: Kind(kind) for kind in np.unique(spans["kind"]).tolist()}
    names = {number: _detail_name(kind) for number, kind in kinds.items()}
    places = {number: _sample_name(kind) for number, kind in kinds.items()}
    # Plain integers: an enum's operators would take a third of all the time.
    summed, estimated, other = int(Flag.SUMMED), int(Flag.ESTIMATED), int(Kind.OTHER)
    working = {number for number, kind in kinds.items() if kind in WORKER_KINDS | HANDOVER_KINDS}
    columns = [
        spans[name].tolist()
        for name in ("kind", "flags", "detail", "batch", "sample", "epoch", "nbytes", "cpu_ns")
    ]
    long_ns = (spans["end_ns"] - spans["start_ns"]).tolist()
    columns += [spans["pieces"].tolist(), exposed_ns.tolist(), own_ns.tolist(), long_ns]
    rows = zip(*columns, strict=True)
    for kind, flags, detail, batch, sample, epoch, nbytes, cpu, pieces, exposed, own, long in rows:
        found = [f'"{names[kind]}":{texts[detail]}'] if detail else []
        if batch >= 0:
            found.append(f'"batch":{batch}')
        if sample >= 0:
            found.append(f'"{places[kind]}":{sample}')
        if epoch >= 0:
            found.append(f'"epoch":{epoch}')
        if nbytes >= 0 and kind != other:
            found.append(f'"bytes":{nbytes}')
            if long > 0 and kind in working:
                found.append(f'"GB/s":{nbytes / long}')
        if exposed >= 0:
            found.append(f'"exposed_ns":{exposed}')
            if kind in working:
                found.append(f'"hidden_ns":{max(own - exposed, 0)}')
        if cpu >= 0:
            found.append(f'"cpu_ns":{cpu}')
        if flags & summed:
            found.append(f'"sum_of_samples":{pieces}')
        if flags & estimated:
            found.append('"estimated":true')
        yield ",".join(found)


def _detail_name(kind: Kind) -> str:
    if kind in WORKER_KINDS:
        return "file"
    return "made_by" if kind == Kind.WAIT else "detail"


def _sample_name(kind: Kind) -> str:
    """Return what the number of a sample is: of waits and rounds, the round's."""
    return "round" if kind in (Kind.WAIT, Kind.OTHER) else "sample"
