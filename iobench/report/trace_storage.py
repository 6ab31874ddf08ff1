"""What a tracer of system calls saw, as threads of a trace on the profile's clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.storage.placing import place_segments
from iobench.recording.kinds import Kind, stage_name
from iobench.report.trace_entries import microseconds, sub_lanes
from iobench.report.trace_spans import COLOURS, colour_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.analysis.storage.storage_figures import ProcessPlacement
    from iobench.profiles.contents import Profile
    from iobench.report.trace_entries import EntryFile, TraceNumbers
    from iobench.report.trace_spans import PlacedSpans
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["first_calls", "write_storage"]


def first_calls(
    profile: Profile, trace: StorageTrace, moved_ns: NDArray[np.int64]
) -> Iterator[int]:
    """Yield when the first call of each process was.

    Parameters
    ----------
    profile : Profile
    trace : StorageTrace
        Of its run.
    moved_ns : ndarray of int64, shape (n_processes,)
        What is added to the monotonic times of each process.
    """
    for one in place_segments(profile, trace).processes:
        if one.trace >= 0 and not one.segments["stray"].all():
            calls = one.segments[~one.segments["stray"]]
            yield int(calls["start_ns"].min() + moved_ns[one.process])


def write_storage(
    profile: Profile,
    trace: StorageTrace,
    share: NDArray[np.float64] | None,
    placed: PlacedSpans,
    numbers: TraceNumbers,
    entries: EntryFile,
) -> None:
    """Write the calls of each process, without those that the tracer credited to a wrong file.

    Parameters
    ----------
    profile : Profile
    trace : StorageTrace
        Of its run.
    share : ndarray of float64 or None
        The exposed share of each of its spans; None where it is not known.
    placed : PlacedSpans
    numbers : TraceNumbers
    entries : EntryFile
    """
    for one in place_segments(profile, trace, share).processes:
        if one.trace < 0 or not len(one.segments):
            continue
        tracer = trace.processes[one.trace].tracer
        entries.add_all(_calls(profile, one, tracer, placed, numbers))


def _calls(
    profile: Profile,
    one: ProcessPlacement,
    tracer: str,
    placed: PlacedSpans,
    numbers: TraceNumbers,
) -> Iterator[str]:
    calls = one.segments[~one.segments["stray"]]
    calls = calls[np.lexsort((-calls["end_ns"], calls["start_ns"]))]
    start = calls["start_ns"] + placed.moved_ns[one.process]
    end = np.maximum(calls["end_ns"] + placed.moved_ns[one.process], start)
    lane = sub_lanes(np.zeros(len(calls), dtype=np.int64), start, end)
    pid = placed.pids[one.process]
    unsure = "" if one.matched else " (its clock is not known)"
    names = [f"{tracer}{unsure}", *(f"{tracer}{unsure} {n}" for n in range(1, len(calls) + 1))]
    tids = [numbers.thread(pid, names[n]) for n in range(int(lane.max(initial=0)) + 1)]
    texts = [json.dumps(name) for name in one.files]
    colour = colour_of(calls["exposed_ns"], end - start)
    columns = [calls[name].tolist() for name in ("file", "offset", "nbytes", "span", "exposed_ns")]
    rows = zip(
        calls["write"].tolist(), colour.tolist(), lane.tolist(), start.tolist(),
        (end - start).tolist(), *columns, strict=True,
    )  # fmt: skip
    for write, code, sub, begin, long, file, offset, nbytes, span, exposed in rows:
        what = [f'"file":{texts[file]}', f'"offset":{offset}', f'"bytes":{nbytes}']
        if long > 0 and nbytes >= 0:
            what.append(f'"GB/s":{nbytes / long}')
        if span >= 0:
            what.append(f'"stage":{json.dumps(_stage(profile, span))}')
        if exposed >= 0:
            what.append(f'"exposed_ns":{exposed},"hidden_ns":{long - exposed}')
        cname = f',"cname":"{COLOURS[code]}"' if COLOURS[code] else ""
        yield (
            f'{{"ph":"X","name":"{"write" if write else "read"} call","cat":"storage"{cname},'
            f'"pid":{pid},"tid":{tids[sub]},"ts":{microseconds(begin)},'
            f'"dur":{microseconds(long)},"args":{{{",".join(what)}}}}}'
        )


def _stage(profile: Profile, row: int) -> str:
    span = profile.spans[row]
    return stage_name(Kind(int(span["kind"])), profile.strings[span["label"]])
