"""Reads in Darshan's logs, put on the run's clock and into the stages that made them.

Darshan tells the zero of its times milliseconds late, in each process by another time. A process
that records makes a few reads at times that its log then holds (`iobench.recording.clock_marker`);
they show which process a log is of and how late it is. Of logs without them there are sums alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.placement.file_names import file_of, match_names
from iobench.analysis.placement.placed_calls import (
    PLACED_DTYPE,
    OtherLogs,
    Placement,
    ProcessPlacement,
    TraceCoverage,
    monotonic_of_wall,
)
from iobench.analysis.read_spans import NOT_SUMMED, names_interpreter
from iobench.recording.kinds import WORKER_KINDS, Kind, Trait, is_one_of, kinds_that
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import is_of_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.placement.file_names import FileNames
    from iobench.runs.contents import Process, RunData
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

Integers = NDArray[np.int64]

EARLIEST_NS: Final = -1_000_000_000
LATEST_NS: Final = 50_000_000
"""By how much the times of a log may be off. Of another boot or process they are off by more."""
SOON_NS: Final = 1_000_000_000
"""Within this a process writes its marker after its first anchor."""
ROUNDED_NS: Final = 300
"""Darshan keeps times as seconds since 1970 in floats of 64 bits, which are 238 ns apart."""
CLOCK_STEP_NS: Final = 1_000_000
"""By more than this two anchors do not differ unless the wall clock was set."""
MAY_READ: Final = kinds_that(Trait.READS | Trait.MIXED | Trait.READS_LATE)
_BY_PREFERENCE: Final = (Trait.TELLS_READ, Trait.MIXED, Trait.READS, Trait.READS_LATE)
_SYSTEM: Final = (
    "/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/proc/", "/sbin/", "/sys/", "/usr/",
)  # fmt: skip


def place_segments(
    profile: RunData,
    trace: StorageTrace,
    exposed: NDArray[np.float64] | None = None,
) -> Placement:
    """Return the reads of each process of a run in its stages.

    Parameters
    ----------
    exposed : ndarray of float64, shape (n_spans,), optional
        The part of each span that was waited for, NaN where unknown.

    Raises
    ------
    ValueError
        If there is not one exposed share for each span.
    """
    if exposed is not None and len(exposed) != len(profile.spans):
        raise ValueError(
            f"exposed: {len(exposed)} shares, expected one for each of {len(profile.spans)} spans"
        )
    joined = _join(profile, trace.processes)
    placed: list[ProcessPlacement] = []
    texts: set[str] = set()
    seen: set[str] = set()
    for index, rows in enumerate(_rows_by_process(profile)):
        number, low_ns, high_ns = joined.get(index, (-1, 0, 0))
        log = trace.processes[number] if number >= 0 else None
        stages = _stages(profile, rows, () if log is None else log.files)
        texts |= stages.texts
        seen |= stages.seen_texts
        if log is not None:
            own = _placed_reads(profile.processes[index], log, stages, low_ns, high_ns)
            own["exposed_ns"] = _exposed(own, exposed)
            placed.append(ProcessPlacement(index, number, low_ns, high_ns, log.files, own))
    counts = (len(texts), len(seen)) if texts else (None, _n_files_read(trace, placed))
    return Placement(tuple(placed), _coverage(profile, trace, placed, counts))


def _join(profile: RunData, logs: Sequence[ProcessTrace]) -> dict[int, tuple[int, int, int]]:
    """Return by process the log with its marker, and the offsets that the marker allows."""
    by_pid: defaultdict[int, list[int]] = defaultdict(list)
    by_rank: defaultdict[int, list[int]] = defaultdict(list)
    for index, who in enumerate(profile.processes):
        by_pid[who.pid].append(index)
        if who.role == "consumer":
            by_rank[who.rank].append(index)
    joined: dict[int, tuple[int, int, int]] = {}
    for number, log in enumerate(logs):
        windows = {
            index: window
            for index in (by_pid[log.pid] if log.pid >= 0 else by_rank[log.rank])
            if _same_host(profile.processes[index].host, log.host)
            and (window := _offsets(profile.processes[index], log)) is not None
        }
        if not windows:
            continue
        # A pid is used again later; a worker may have been recorded before a loader named it.
        near = [i for i in windows if _is_marked(profile.processes[i], log)]
        index = max(near or windows, key=lambda i: profile.processes[i].anchors[0].monotonic_ns)
        if index not in joined or len(log.segments) > len(logs[joined[index][0]].segments):
            joined[index] = (number, *windows[index])
    return joined


def _is_marked(who: Process, log: ProcessTrace) -> bool:
    """Return whether a process began to record as a marker in a log was written."""
    return bool((abs(log.marks["offset"] - who.anchors[0].monotonic_ns) < SOON_NS).any())


def _same_host(one: str, other: str) -> bool:
    """Compare names of hosts, with or without their domains; an unknown one may be any."""
    short = [name.split(".")[0].casefold() for name in (one, other)]
    return "" in short or short[0] == short[1]


def _offsets(who: Process, log: ProcessTrace) -> tuple[int, int] | None:
    """Return the least and the largest offset by the marker of a log; None without a right one.

    Each of its reads began after the time that is its offset in the file, and ended before the
    next one's.
    """
    reads = log.marks
    if len(reads) < 2:
        return None
    begun, ended = (monotonic_of_wall(who, reads[name]) for name in ("start_ns", "end_ns"))
    low = int((reads["offset"] - begun).max()) - ROUNDED_NS
    high = int((reads["offset"][1:] - ended[:-1]).min()) + ROUNDED_NS
    return (low, high) if EARLIEST_NS <= low <= high <= LATEST_NS else None


def _rows_by_process(profile: RunData) -> list[Integers]:
    process = profile.spans["process"]
    order = np.argsort(process, kind="stable")
    bounds = np.searchsorted(process[order], np.arange(1, len(profile.processes)))
    return np.split(order, bounds)


class _Stages(msgspec.Struct, frozen=True):
    """The stages of one process in which reads may lie.

    Parameters
    ----------
    row : ndarray of int64, shape (n_stages,)
        In ``RunData.spans``.
    start_ns, end_ns : ndarray of int64
        Of a stage that is a sum over a batch, of all sums of the batch: its own time is not known.
    file, folder : ndarray of int64
        What it names, -1 if nothing that the log has.
    unnamed : ndarray of bool
        Whether it names nothing at all.
    read_by_name : ndarray of bool, shape (n_files,)
        Whether some stage that reads names the file or its folder.
    texts, seen_texts : set of str
        The files that stages name, but for those of Python and of the system; and of these those
        that the log has.
    """

    row: Integers
    start_ns: Integers
    end_ns: Integers
    file: Integers
    folder: Integers
    unnamed: NDArray[np.bool_]
    read_by_name: NDArray[np.bool_]
    names: FileNames
    texts: set[str]
    seen_texts: set[str]


def _stages(profile: RunData, rows: Integers, files: Sequence[str]) -> _Stages:
    """Return the stages among one process's spans in which reads of these files may lie."""
    spans = profile.spans[rows]
    chosen = is_one_of(spans["kind"], WORKER_KINDS) & ((spans["flags"] & NOT_SUMMED) == 0)
    place, start, end = _with_sums_joined(spans, np.flatnonzero(chosen))
    rows = rows[place]
    spans = profile.spans[rows]
    numbers, which = np.unique(spans["detail"], return_inverse=True)
    which = which.reshape(-1)
    texts = [profile.strings[number] for number in numbers.tolist()]
    names = match_names(texts, files)
    file = np.array([names.file.get(text, -1) for text in texts], np.int64)[which]
    folder = np.array([names.folder.get(text, -1) for text in texts], np.int64)[which]
    unnamed = np.array([not file_of(text) for text in texts], bool)[which]
    reading = ~np.isin(spans["kind"], (Kind.OPEN, Kind.OPAQUE))
    read_by_name = np.zeros(len(files), bool)
    read_by_name[file[reading & (file >= 0)]] = True
    read_by_name |= np.isin(names.folder_of, np.unique(folder[reading & (folder >= 0)]))
    read_texts = [texts[number] for number in np.unique(which[reading]).tolist()]
    told = [text for text in read_texts if _is_data(text)] or [
        text for text in texts if _is_data(text)
    ]
    return _Stages(
        row=rows,
        start_ns=start,
        end_ns=end,
        file=file,
        folder=folder,
        unnamed=unnamed & (file < 0) & (folder < 0),
        read_by_name=read_by_name,
        names=names,
        texts={file_of(text) for text in told},
        seen_texts={file_of(text) for text in told if names.knows(text)},
    )


def _is_data(text: str) -> bool:
    """Return whether a text names a file that a loader may read: no code, none of the system."""
    path = file_of(text)
    return bool(path) and not path.startswith(_SYSTEM) and not is_of_interpreter(path)


def _with_sums_joined(spans: NDArray[Any], rows: Integers) -> tuple[Integers, Integers, Integers]:
    """Return rows and their times; of a batch's sums one row, that of reading, with the batch's.

    Sums are written one after the other, whenever the samples they are of were read.
    """
    summed = (spans["flags"][rows] & (Flag.SUMMED | Flag.ESTIMATED)) != 0
    sums, others = rows[summed], rows[~summed]
    start, end = spans["start_ns"].astype(np.int64), spans["end_ns"].astype(np.int64)
    if not len(sums):
        return others, start[others], end[others]
    rank = np.full(256, len(_BY_PREFERENCE))
    for place, trait in reversed([*enumerate(_BY_PREFERENCE)]):
        rank[[*kinds_that(trait)]] = place
    keys = [spans[name][sums] for name in ("batch", "epoch", "thread")]
    order = np.lexsort((spans["kind"][sums], rank[spans["kind"][sums]], *keys))
    sums = sums[order]
    new = np.ones(len(sums), bool)
    new[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    first = np.flatnonzero(new)
    return (
        np.concatenate((others, sums[first])),
        np.concatenate((start[others], np.minimum.reduceat(start[sums], first))),
        np.concatenate((end[others], np.maximum.reduceat(end[sums], first))),
    )


def _placed_reads(
    who: Process, log: ProcessTrace, stages: _Stages, low_ns: int, high_ns: int
) -> NDArray[Any]:
    """Return the reads of a log on the run's clock, with the stages they lie in."""
    reads = np.zeros(len(log.segments), PLACED_DTYPE)
    for name in ("offset", "nbytes", "file"):
        reads[name] = log.segments[name]
    for name in ("start_ns", "end_ns"):
        reads[name] = monotonic_of_wall(who, log.segments[name]) + (low_ns + high_ns) // 2
    place = _holders(stages, reads, 0)
    if (place < 0).any():
        # What ends with its stage may seem to lie beyond, by what the marker leaves open.
        place = np.where(place < 0, _holders(stages, reads, high_ns - low_ns), place)
    reads["stray"] = _strays(log, stages, reads, place)
    reads["span"] = np.where(reads["stray"], -1, np.append(stages.row, -1)[place])
    return reads


def _holders(stages: _Stages, reads: NDArray[Any], slack_ns: int) -> Integers:
    """Return the innermost stage around each read, -1 if there is none.

    A stage that names the file comes before one that names its folder, and that before one that
    names nothing; the last hold only files that no stage which reads names.
    """
    place = np.full(len(reads), -1, np.int64)
    files, folders = reads["file"], stages.names.folder_of[reads["file"]]
    by_name = stages.read_by_name[files]
    start, end = reads["start_ns"], reads["end_ns"]
    first = np.searchsorted(start, stages.start_ns - slack_ns, "left")
    last = np.searchsorted(start, stages.end_ns + slack_ns, "right")
    specific = np.where(stages.file >= 0, 2, np.where(stages.folder >= 0, 1, 0))
    length = stages.end_ns - stages.start_ns
    # Each later one is written over those before.
    order = np.lexsort((-np.arange(len(length)), -length, specific))
    named = (stages.file >= 0) | (stages.folder >= 0) | stages.unnamed
    for at in order[(last > first)[order] & named[order]].tolist():
        here = slice(first[at], last[at])
        held = end[here] <= stages.end_ns[at] + slack_ns
        if stages.file[at] >= 0:
            held &= files[here] == stages.file[at]
        elif stages.folder[at] >= 0:
            held &= folders[here] == stages.folder[at]
        else:
            held &= ~by_name[here]
        place[here][held] = at
    return place


def _strays(
    log: ProcessTrace, stages: _Stages, reads: NDArray[Any], place: Integers
) -> NDArray[np.bool_]:
    """Mark reads that Darshan credited to a file whose descriptor had another's number.

    After ``np.load`` Darshan still takes the duplicate of the descriptor for the file; what a
    pipe or socket with its number carries then seems to follow the end of the file. So such reads
    lie in no stage of their file though it has had one, begin where all that was read of it ends,
    and there was a duplicate: of it a stream was opened, and POSIX counts twice as many openings
    as streams. Reads of libraries, of indices, before the first stage: none of these.
    """
    file, n_files = reads["file"].astype(np.int64), len(log.files)
    first, end = np.full(n_files, np.iinfo(np.int64).max), np.zeros(n_files, np.int64)
    inside = place >= 0
    np.minimum.at(first, file[inside], stages.start_ns[place[inside]])
    np.maximum.at(end, file[inside], (reads["offset"] + reads["nbytes"])[inside])
    counters = log.counters
    streams, of = counters["stdio_opens"], counters["file"]
    duplicated = np.zeros(n_files, bool)
    duplicated[of] = (streams > 0) & (counters["posix_opens"] >= 2 * streams)
    each = np.maximum(counters["stdio_read_nbytes"], 0) // np.maximum(streams, 1)
    np.maximum.at(end, of, each)
    strays: NDArray[np.bool_] = (
        (reads["nbytes"] > 0)
        & ~inside
        & (reads["start_ns"] >= first[file])
        & duplicated[file]
        & (reads["offset"] >= end[file])
    )
    return strays


def _exposed(reads: NDArray[Any], exposed: NDArray[np.float64] | None) -> Integers:
    unknown = np.full(len(reads), -1, np.int64)
    if exposed is None or not len(exposed):
        return unknown
    share = np.where(reads["span"] >= 0, exposed[reads["span"]], np.nan)
    known = ~np.isnan(share)
    length = reads["end_ns"] - reads["start_ns"]
    return np.where(known, np.rint(np.where(known, share, 0) * length), unknown).astype(np.int64)


def _coverage(
    profile: RunData,
    trace: StorageTrace,
    placed: Sequence[ProcessPlacement],
    n_files: tuple[int | None, int],
) -> TraceCoverage:
    """Return how much of a run Darshan saw, given the files that stages name and those it has."""
    joined = {each.process: trace.processes[each.trace] for each in placed}
    expected = [
        index
        for index in _reading_processes(profile)
        if index in joined or not _is_recorded_twice(profile, index, joined)
    ]
    reads = [each.segments[~each.is_page_probe] for each in placed]
    used = {each.trace for each in placed}
    others = [log for number, log in enumerate(trace.processes) if number not in used]
    return TraceCoverage(
        n_expected=len(expected),
        n_found=sum(index in joined for index in expected),
        missing=tuple(_label(profile.processes[i]) for i in expected if i not in joined),
        partial=tuple(
            f"{_label(profile.processes[index])}: {', '.join(log.partial_modules)}"
            for index, log in joined.items()
            if log.partial_modules
        ),
        n_files_read=n_files[0],
        n_files_seen=n_files[1],
        n_segments=sum(map(len, reads)),
        n_placed=sum(int((each["span"] >= 0).sum()) for each in reads),
        n_stray=sum(int(each["stray"].sum()) for each in reads),
        stray_nbytes=sum(int(each["nbytes"][each["stray"]].sum()) for each in reads),
        problems=(*trace.refused, *_problems(profile, joined, others)),
        others=_sums(others),
    )


def _is_recorded_twice(profile: RunData, index: int, joined: Mapping[int, ProcessTrace]) -> bool:
    """Return whether another entry of the same process has its log: that has both markers."""
    who = profile.processes[index]
    return any(
        (other.host, other.pid) == (who.host, who.pid) and _is_marked(who, log)
        for number, log in joined.items()
        for other in [profile.processes[number]]
    )


def _label(who: Process) -> str:
    """Return how a line names a process: ``worker-0 (process 12)``."""
    return f"{who.name} (process {who.pid})"


def _reading_processes(profile: RunData) -> tuple[int, ...]:
    """Return the processes that read, by what their spans are; a loop that only waits does not."""
    spans = profile.spans
    reads = is_one_of(spans["kind"], MAY_READ) & (spans["end_ns"] > spans["start_ns"])
    reads &= ~names_interpreter(profile)
    return tuple(np.unique(spans["process"][reads]).tolist())


def _problems(
    profile: RunData, joined: Mapping[int, ProcessTrace], others: Sequence[ProcessTrace]
) -> Iterator[str]:
    for index, log in joined.items():
        who = profile.processes[index]
        yield from (f"{_label(who)}: {problem}" for problem in log.problems)
        first, last = who.anchors[0], who.anchors[-1]
        step_ns = (last.wall_ns - last.monotonic_ns) - (first.wall_ns - first.monotonic_ns)
        if abs(step_ns) > CLOCK_STEP_NS:
            yield f"{_label(who)}: the wall clock was set during the run: times after that are off"
    yield from dict.fromkeys(f"{log.path.name}: {text}" for log in others for text in log.problems)


def _sums(logs: Sequence[ProcessTrace]) -> OtherLogs | None:
    """Return what logs hold together; None of none."""
    if not logs:
        return None
    files = {log.files[file] for log in logs for file in _files_read(log)}
    nbytes = [
        sum(int(np.maximum(log.counters[name], 0).sum()) for log in logs)
        for name in ("posix_read_nbytes", "stdio_read_nbytes")
    ]
    return OtherLogs(len(logs), len(files), *nbytes)


def _files_read(log: ProcessTrace) -> set[int]:
    counters = log.counters
    read = (counters["posix_reads"] > 0) | (counters["stdio_reads"] > 0)
    return {*counters["file"][read].tolist(), *np.unique(log.segments["file"]).tolist()}


def _n_files_read(trace: StorageTrace, placed: Sequence[ProcessPlacement]) -> int:
    """Return how many files the processes of the run read by their logs."""
    logs = [trace.processes[each.trace] for each in placed]
    return len({log.files[file] for log in logs for file in _files_read(log)})
