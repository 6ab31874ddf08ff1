"""Reads in Darshan's logs, put on the run's clock and into the stages that made them.

Darshan reports the zero of its times milliseconds late, in each process by another time. A process
that records makes a few reads at times that its log then holds (`iobench.recording.clocks`);
they show which process a log is of and how late it is. Of logs without them there are sums alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.read_spans import NOT_SUMMED, names_interpreter, names_of
from iobench.recording.kinds import WORKER_KINDS, Kind, Trait, is_one_of, kinds_that
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.read_spans import FileNames
    from iobench.runs.contents import Process, RunData
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

Integers = NDArray[np.int64]

EARLIEST_NS: Final = -1_000_000_000
LATEST_NS: Final = 50_000_000
"""By how much the times of a log may be off. Of another boot or process they are off by more."""
ROUNDED_NS: Final = 300
"""Darshan keeps times as seconds since 1970 in floats of 64 bits, which are 238 ns apart."""
MORE: Final = "raise MAX_RECORDS and MODMEM, or let iobench set them: --darshan auto"
MAY_READ: Final = kinds_that(Trait.READS | Trait.MIXED | Trait.READS_LATE)
_BY_PREFERENCE: Final = (Trait.TELLS_READ, Trait.MIXED, Trait.READS, Trait.READS_LATE)
PLACED_DTYPE: Final = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("span", "<i8"),
        ("file", "<i4"),
        ("stray", "?"),
    ]
)
"""One read on the run's clock.

``span`` is the row in ``RunData.spans`` of the stage it lies in, -1 if in none. ``stray`` marks
what Darshan credited to the wrong file; it counts nowhere. ``file`` is an index into
`ProcessPlacement.files`.
"""


class ProcessPlacement(msgspec.Struct, frozen=True):
    """One process of a run and its log, by their indices in the profile and the trace."""

    process: int
    trace: int
    low_ns: int  # the marker allows to add from this
    high_ns: int  # to this to the times of the log
    files: tuple[str, ...]
    segments: NDArray[Any]


class OtherLogs(msgspec.Struct, frozen=True):
    """Sums over the logs that have no marker of a process of the run."""

    n_logs: int
    n_files: int
    posix_nbytes: int
    stdio_nbytes: int


class TraceCoverage(msgspec.Struct, frozen=True):
    """How much of the run Darshan saw."""

    n_expected: int  # processes of the run that read,
    n_logs: int  # and those of them with a log that has their marker
    missing: tuple[str, ...]  # processes without one
    n_segments: int
    n_placed: int
    problems: tuple[str, ...]  # what is missing in logs and what to do
    others: OtherLogs | None = None

    @property
    def complete(self) -> bool:
        """Whether Darshan's figures are of all that was read."""
        return self.n_logs == self.n_expected and not self.problems


class Placement(msgspec.Struct, frozen=True):
    """The processes of a run that have logs, with their reads in stages."""

    processes: tuple[ProcessPlacement, ...]
    coverage: TraceCoverage


def place_segments(profile: RunData, trace: StorageTrace) -> Placement:
    """Return the reads of each process of a run in its stages."""
    names, placed = names_of(profile, trace), []
    for index, (number, low_ns, high_ns) in sorted(_join(profile, trace.processes).items()):
        log, stages = trace.processes[number], _stages(profile, index, names)
        reads = _placed_reads(profile.processes[index], log, stages, names, low_ns, high_ns)
        # Of one byte in no stage: iobench looks whether a page is in the cache.
        reads = reads[(reads["nbytes"] != 1) | (reads["span"] >= 0)]
        placed.append(ProcessPlacement(index, number, low_ns, high_ns, log.files, reads))
    return Placement(tuple(placed), _coverage(profile, trace, placed))


def _join(profile: RunData, logs: Sequence[ProcessTrace]) -> dict[int, tuple[int, int, int]]:
    """Return by process the log with its marker, and the offsets that the marker allows."""
    joined: dict[int, tuple[int, int, int]] = {}
    for number, log in enumerate(logs):
        windows = {
            index: window
            for index, owner in enumerate(profile.processes)
            if owner.pid == log.pid
            and _same_host(owner.host, log.host)
            and (window := _offsets(owner, log)) is not None
        }
        if windows:  # a pid is used again, and a worker recorded before a loader named it
            index = max(windows, key=lambda i: profile.processes[i].anchors[0].monotonic_ns)
            joined.setdefault(index, (number, *windows[index]))
    return joined


def _same_host(one: str, other: str) -> bool:
    """Compare names of hosts, with or without their domains; an unknown one may be any."""
    short = [name.split(".")[0].casefold() for name in (one, other)]
    return "" in short or short[0] == short[1]


def _offsets(owner: Process, log: ProcessTrace) -> tuple[int, int] | None:
    """Return the least and the largest offset by the marker of a log; None without a right one.

    Each of its reads began after the time that is its offset in the file, and ended before the
    next one's.
    """
    reads = log.marks
    if len(reads) < 2 or owner.anchors[0].monotonic_ns > reads["offset"][-1]:
        return None
    begun, ended = (owner.monotonic_ns(reads[name]) for name in ("start_ns", "end_ns"))
    low = int((reads["offset"] - begun).max()) - ROUNDED_NS
    high = int((reads["offset"][1:] - ended[:-1]).min()) + ROUNDED_NS
    return (low, high) if EARLIEST_NS <= low <= high <= LATEST_NS else None


class _Stages(msgspec.Struct, frozen=True):
    """The stages of one process in which reads may lie: row in ``RunData.spans``, times, names."""

    row: Integers
    start_ns: Integers
    end_ns: Integers
    name: NDArray[Any]
    read_names: set[str]


def _stages(profile: RunData, process: int, names: FileNames) -> _Stages:
    rows = np.flatnonzero(profile.spans["process"] == process)
    spans = profile.spans[rows]
    chosen = is_one_of(spans["kind"], WORKER_KINDS) & ((spans["flags"] & NOT_SUMMED) == 0)
    place, start, end = _with_sums_joined(spans, np.flatnonzero(chosen))
    spans, rows = spans[place], rows[place]
    numbers, which = np.unique(spans["detail"], return_inverse=True)
    texts = [names.of_text(profile.strings[number]) for number in numbers.tolist()]
    name = np.array([*texts, ""], dtype=object)[:-1][which.reshape(-1)]
    reading = ~np.isin(spans["kind"], (Kind.OPEN, Kind.OPAQUE))
    return _Stages(rows, start, end, name, set(name[reading].tolist()) - {""})


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
    owner: Process, log: ProcessTrace, stages: _Stages, names: FileNames, low_ns: int, high_ns: int
) -> NDArray[Any]:
    """Return the reads of a log on the run's clock, with the stages they lie in."""
    reads = np.zeros(len(log.segments), PLACED_DTYPE)
    for name in ("offset", "nbytes", "file"):
        reads[name] = log.segments[name]
    for name in ("start_ns", "end_ns"):
        reads[name] = owner.monotonic_ns(log.segments[name]) + (low_ns + high_ns) // 2
    by_file = np.array([*(names.of_file(path) or "" for path in log.files), ""], dtype=object)
    files = by_file[reads["file"]]
    place = _holders(stages, reads, files, 0)
    if (place < 0).any():
        # What ends with its stage may seem to lie beyond, by what the marker leaves open.
        place = np.where(place < 0, _holders(stages, reads, files, high_ns - low_ns), place)
    reads["stray"] = _strays(log, stages, reads, place)
    reads["span"] = np.where(reads["stray"], -1, np.append(stages.row, -1)[place])
    return reads


def _holders(stages: _Stages, reads: NDArray[Any], files: NDArray[Any], slack_ns: int) -> Integers:
    """Return the innermost stage around each read, -1 if there is none."""
    place = np.full(len(reads), -1, np.int64)
    by_name = np.array([name in stages.read_names for name in files], dtype=bool)
    start, end = reads["start_ns"], reads["end_ns"]
    first = np.searchsorted(start, stages.start_ns - slack_ns, "left")
    last = np.searchsorted(start, stages.end_ns + slack_ns, "right")
    named = (stages.name != "").astype(bool)
    length = stages.end_ns - stages.start_ns
    # Each later one is written over those before.
    order = np.lexsort((-np.arange(len(length)), -length, named))
    for at in order[(last > first)[order]].tolist():
        here = slice(first[at], last[at])
        held = end[here] <= stages.end_ns[at] + slack_ns
        held &= (files[here] == stages.name[at]) if named[at] else ~by_name[here]
        place[here][held] = at
    return place


def _strays(
    log: ProcessTrace, stages: _Stages, reads: NDArray[Any], place: Integers
) -> NDArray[np.bool_]:
    """Mark reads in no stage of their file that begin where all that stages read of it ends.

    After ``np.load`` Darshan still takes the duplicate of the descriptor for the file: what a pipe
    or socket with its number carries then seems to follow the end of the file.
    """
    file, n_files, inside = reads["file"].astype(np.int64), len(log.files), place >= 0
    first, end = np.full(n_files, np.iinfo(np.int64).max), np.zeros(n_files, np.int64)
    np.minimum.at(first, file[inside], stages.start_ns[place[inside]])
    np.maximum.at(end, file[inside], (reads["offset"] + reads["nbytes"])[inside])
    counters, duplicated = log.counters, np.zeros(n_files, bool)
    streams = counters["stdio_opens"]
    duplicated[counters["file"]] = (streams > 0) & (counters["posix_opens"] >= 2 * streams)
    read_ns = np.maximum(counters["stdio_read_nbytes"], 0) // np.maximum(streams, 1)
    np.maximum.at(end, counters["file"], read_ns)
    after = (reads["start_ns"] >= first[file]) & (reads["offset"] >= end[file])
    strays: NDArray[np.bool_] = (reads["nbytes"] > 0) & ~inside & duplicated[file] & after
    return strays


def _coverage(
    profile: RunData, trace: StorageTrace, placed: Sequence[ProcessPlacement]
) -> TraceCoverage:
    """Return how much of a run Darshan saw."""
    joined = {each.process: trace.processes[each.trace] for each in placed}
    owners = {(each.host, each.pid): each for each in map(profile.processes.__getitem__, joined)}
    spans = profile.spans
    reads = is_one_of(spans["kind"], MAY_READ) & (spans["end_ns"] > spans["start_ns"])
    reading = np.unique(spans["process"][reads & ~names_interpreter(profile)]).tolist()
    expected = {
        (each.host, each.pid): each for each in (profile.processes[index] for index in reading)
    }
    used = {each.trace for each in placed}
    others = [log for number, log in enumerate(trace.processes) if number not in used]
    segments = [each.segments for each in placed]
    return TraceCoverage(
        n_expected=len(expected),
        n_logs=len(expected.keys() & owners.keys()),
        missing=tuple(_label(each) for key, each in expected.items() if key not in owners),
        n_segments=sum(map(len, segments)),
        n_placed=sum(int((each["span"] >= 0).sum()) for each in segments),
        problems=(*trace.notes, *_problems(profile, joined, others)),
        others=_sums(others),
    )


def _label(owner: Process) -> str:
    return f"{owner.name} (process {owner.pid})"


def _problems(
    profile: RunData, joined: Mapping[int, ProcessTrace], others: Sequence[ProcessTrace]
) -> Iterator[str]:
    for index, log in joined.items():
        label = _label(profile.processes[index])
        yield from (f"{label}: {problem}" for problem in log.problems)
        if log.partial_modules:
            yield f"{label}: Darshan ran out of memory in {', '.join(log.partial_modules)}; {MORE}"
    yield from dict.fromkeys(f"{log.path.name}: {text}" for log in others for text in log.problems)


def _sums(logs: Sequence[ProcessTrace]) -> OtherLogs | None:
    """Return what logs contain together; None of none."""
    files: set[str] = set()
    posix_nbytes = stdio_nbytes = 0
    for log in logs:
        counters = log.counters
        read = (counters["posix_reads"] > 0) | (counters["stdio_reads"] > 0)
        numbers = {*counters["file"][read].tolist(), *np.unique(log.segments["file"]).tolist()}
        files |= {log.files[number] for number in numbers}
        posix_nbytes += int(np.maximum(counters["posix_read_nbytes"], 0).sum())
        stdio_nbytes += int(np.maximum(counters["stdio_read_nbytes"], 0).sum())
    return OtherLogs(len(logs), len(files), posix_nbytes, stdio_nbytes) if logs else None
