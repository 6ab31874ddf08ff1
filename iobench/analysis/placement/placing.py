"""What a tracer saw, put on the profile's clock and into the stages it belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.placement.clock_offsets import FoundOffset, find_offset
from iobench.analysis.placement.file_names import file_of
from iobench.analysis.placement.joining import join_logs, process_label, reading_processes
from iobench.analysis.placement.placed_calls import (
    PLACED_DTYPE,
    Placement,
    ProcessPlacement,
    TraceCoverage,
    asks_for_page,
    clock_was_set,
    monotonic_of_wall,
)
from iobench.analysis.placement.stage_groups import innermost
from iobench.analysis.placement.traced_stages import (
    TracedStages,
    rows_by_process,
    traced_stages,
)
from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.placement.joining import JoinedLogs
    from iobench.profiles.contents import Process, Profile
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

Integers = NDArray[np.int64]

NO_PLACED: Final[NDArray[Any]] = np.zeros(0, PLACED_DTYPE)
LATER_NS: Final = 100_000
"""A tracer's zero is told too late, never too early, but for what reading two clocks costs."""
ROUNDED_NS: Final = 300
"""Darshan keeps times as seconds since 1970 in floats of 64 bits, which are 238 ns apart."""
WHOLE_SECOND_NS: Final = 1_000_000_000
"""Old logs tell whole seconds, cut off: their times may have to be moved on by one."""


def place_segments(
    profile: Profile,
    trace: StorageTrace,
    exposed: NDArray[np.float64] | None = None,
) -> Placement:
    """Join the logs of a tracer to the processes of a run, and its calls to their stages.

    Parameters
    ----------
    exposed : ndarray of float64, shape (n_spans,), optional
        The part of each span that was waited for, NaN where unknown.

    Returns
    -------
    Placement
        One entry for each process of the profile, in its order, with a log or without.

    Raises
    ------
    ValueError
        If there is not one exposed share for each span.
    """
    if exposed is not None and len(exposed) != len(profile.spans):
        raise ValueError(
            f"exposed: {len(exposed)} shares, expected one for each of {len(profile.spans)} spans"
        )
    expected = reading_processes(profile)
    joined = join_logs(profile, trace, expected)
    expected = tuple(index for index in expected if index not in joined.same)
    placed, texts, seen = [], set(), set()
    rows = rows_by_process(profile)
    for index, number in enumerate(joined.trace):
        files = trace.processes[number].files if number >= 0 else ()
        stages = traced_stages(profile, rows[index], files)
        texts |= {path for text in stages.texts for path in [file_of(text)] if path}
        seen |= {path for text in stages.seen_texts for path in [file_of(text)] if path}
        if number < 0:
            placed.append(_without_log(profile, index, trace, joined))
        else:
            one = _OneProcess(profile, index, trace.processes[number], stages)
            placed.append(one.placed(number, exposed))
    counts = (len(texts), len(seen)) if texts else (None, _n_files_read(trace, joined))
    return Placement(tuple(placed), _coverage(profile, trace, joined, expected, placed, counts))


def _without_log(
    profile: Profile, process: int, trace: StorageTrace, joined: JoinedLogs
) -> ProcessPlacement:
    reason = "no Darshan log" if trace.processes else "no log"
    if process in joined.same:
        reason = f"the same process as {profile.processes[joined.same[process]].name}, with its log"
    return ProcessPlacement(
        process, -1, reason, 0, 0, 0, matched=False, files=(), segments=NO_PLACED
    )


def _coverage(
    profile: Profile,
    trace: StorageTrace,
    joined: JoinedLogs,
    expected: Sequence[int],
    placed: Sequence[ProcessPlacement],
    n_files: tuple[int | None, int],
) -> TraceCoverage:
    """Return how much of a run a tracer saw, given the files that stages name and those it has."""
    held = [
        (profile.processes[i], trace.processes[t]) for i, t in enumerate(joined.trace) if t >= 0
    ]
    problems = list(trace.refused)
    if trace.processes and not held:
        problems.append(f"none of the logs is of this run: {joined.extra[0]}")
    for who, log in held:
        problems += [f"{process_label(who)}: {problem}" for problem in log.problems]
        if log.leftover:
            rest = "" if len(log.segments) else "; counters of files are all there is of it"
            problems.append(
                f"{process_label(who)}: never closed its log, for it was killed or is alive{rest}"
            )
    reads = [each.segments[~each.segments["write"] & ~each.is_page_question] for each in placed]
    return TraceCoverage(
        n_expected=len(expected),
        n_found=sum(joined.trace[index] >= 0 for index in expected),
        missing=tuple(
            process_label(profile.processes[index]) for index in expected if joined.trace[index] < 0
        ),
        partial=tuple(
            f"{process_label(who)}: {', '.join(log.partial_modules)}"
            for who, log in held
            if log.partial_modules
        ),
        n_files_read=n_files[0],
        n_files_seen=n_files[1],
        n_segments=sum(len(each) for each in reads),
        n_placed=sum(each.n_placed for each in placed),
        n_stray=sum(each.n_stray for each in placed),
        stray_nbytes=sum(int(each["nbytes"][each["stray"]].sum()) for each in reads),
        problems=tuple(problems),
        extra=joined.extra,
    )


def _n_files_read(trace: StorageTrace, joined: JoinedLogs) -> int:
    """Return how many files the processes of the run read by their logs."""
    found: set[str] = set()
    for log in (trace.processes[number] for number in joined.trace if number >= 0):
        counters = log.counters
        read = (counters["posix_reads"] > 0) | (counters["stdio_reads"] > 0)
        single = log.segments["file"][~log.segments["write"]]
        files = {*counters["file"][read].tolist(), *np.unique(single).tolist()}
        found |= {log.files[file] for file in files}
    return len(found)


@frozen
class _OneProcess:
    """One process and its log."""

    profile: Profile
    process: int
    log: ProcessTrace
    stages: TracedStages

    @property
    def who(self) -> Process:
        return self.profile.processes[self.process]

    def placed(self, number: int, exposed: NDArray[np.float64] | None) -> ProcessPlacement:
        marked = self._marked_offset()
        found = self._offset() if marked is None else marked
        log = self.log
        segments = np.zeros(len(log.segments), PLACED_DTYPE)
        for name in ("offset", "nbytes", "file", "write"):
            segments[name] = log.segments[name]
        for name in ("start_ns", "end_ns"):
            segments[name] = monotonic_of_wall(self.who, log.segments[name]) + found.offset_ns
        # A clock that is not known places only what lies in one stage wherever it stands.
        slack = (0, 0) if found.matched else (found.low_ns, found.high_ns)
        place = self._places(segments, *slack)
        if marked is not None:  # what ends with its stage may seem to lie beyond, by the bracket
            width_ns = found.high_ns - found.low_ns
            place = np.where(place < 0, self._places(segments, width_ns, -width_ns), place)
        segments["span"] = np.where(place >= 0, np.append(self.stages.row, -1)[place], -1)
        segments["stray"] = self._strays(segments, place, found.matched)
        segments["span"][segments["stray"]] = -1
        segments["exposed_ns"] = _exposed(segments, exposed)
        return ProcessPlacement(
            process=self.process,
            trace=number,
            reason=self._reason(found),
            offset_ns=found.offset_ns,
            low_ns=found.low_ns,
            high_ns=found.high_ns,
            matched=found.matched,
            files=log.files,
            segments=segments,
            marked=marked is not None,
        )

    def _marked_offset(self) -> FoundOffset | None:
        """Return the offset that the process's own reads at known times tell; None without them.

        Each began after the time that is its offset in the file, and ended before the next one's.
        """
        reads, zero_error_ns = self.log.marks, self.log.zero_error_ns
        if len(reads) < 2:
            return None
        begun, ended = (monotonic_of_wall(self.who, reads[name]) for name in ("start_ns", "end_ns"))
        low = int((reads["offset"] - begun).max()) - ROUNDED_NS
        high = int((reads["offset"][1:] - ended[:-1]).min()) + ROUNDED_NS
        # A busy machine holds Darshan up between its two clocks: by 52 ms, seen.
        if not -WHOLE_SECOND_NS <= low <= high <= max(zero_error_ns, LATER_NS):
            return None  # of another process, of another boot, or one of them was not kept
        return FoundOffset((low + high) // 2, low, high, 0, 0, matched=True)

    def _offset(self) -> FoundOffset:
        """Find the offset by the stages that read as a rule, else by all of them."""
        zero_error_ns = self.log.zero_error_ns
        late = zero_error_ns if zero_error_ns >= WHOLE_SECOND_NS else LATER_NS
        start, end, file = self._items()
        found = []
        for reading in (True, False):
            families = [family for _, family in self.stages.families(file, reading=reading)]
            found.append(find_offset(start, end, families, -zero_error_ns - LATER_NS, late))
            if found[-1].matched and (reading or _is_better(found[1], found[0])):
                return found[-1]
        return replace(found[0], offset_ns=0, low_ns=-zero_error_ns, high_ns=zero_error_ns)

    def _items(self) -> tuple[Integers, Integers, Integers]:
        """Return reads, and instants at which files were opened, read or closed, with their files.

        Of a file whose single reads are known the instants of its first and last are left out.
        """
        # Questions for pages come before the stage begins.
        is_read = ~self.log.segments["write"] & ~asks_for_page(self.log.segments)
        reads = self.log.segments[is_read]
        counters = self.log.counters
        seen = np.zeros(len(self.log.files), bool)
        seen[reads["file"]] = True
        times, files = [], []
        for name in counters.dtype.names or ():
            if "_first_" not in name and "_last_" not in name:
                continue
            known = counters[name] > 0
            if name.startswith("posix") and "_read_" in name:
                known &= ~seen[counters["file"]]
            times.append(counters[name][known])
            files.append(counters["file"][known])
        instants = monotonic_of_wall(self.who, np.concatenate([np.zeros(0, np.int64), *times]))
        return (
            np.concatenate((monotonic_of_wall(self.who, reads["start_ns"]), instants)),
            np.concatenate((monotonic_of_wall(self.who, reads["end_ns"]), instants)),
            np.concatenate((reads["file"], *files)).astype(np.int64),
        )

    def _places(self, segments: NDArray[Any], low_ns: int, high_ns: int) -> Integers:
        """Return the place of each segment's stage: one that names its file before one that not."""
        place = np.full(len(segments), -1, np.int64)
        start, end = segments["start_ns"], segments["end_ns"]
        for at, family in self.stages.families(segments["file"].astype(np.int64), reading=False):
            held = innermost(family, start, end, low_ns, high_ns)
            better = (place < 0) & (held >= 0)
            place[better] = at[held[better]]
        return place

    def _strays(self, segments: NDArray[Any], place: Integers, matched: bool) -> NDArray[np.bool_]:
        """Mark calls that the tracer credited to a file whose descriptor had another's number.

        After ``np.load`` Darshan still takes the duplicate of the descriptor for the file; what a
        pipe or socket with its number carries then seems to follow the end of the file. So such
        calls lie in no stage of their file though it has had one, begin where all that was read of
        it ends, and there was a duplicate: of it a stream was made, and POSIX counts twice as many
        openings as streams. Reads of libraries, of indices, before the first stage: none of these.
        """
        file = segments["file"].astype(np.int64)
        if not matched or not len(segments):
            return np.zeros(len(segments), np.bool_)
        first = np.full(len(self.log.files), np.iinfo(np.int64).max)
        end = np.zeros(len(self.log.files), np.int64)
        inside = place >= 0
        np.minimum.at(first, file[inside], self.stages.start_ns[place[inside]])
        np.maximum.at(end, file[inside], (segments["offset"] + segments["nbytes"])[inside])
        counters = self.log.counters
        streams, of = counters["stdio_opens"], counters["file"]
        duplicated = np.zeros(len(self.log.files), bool)
        duplicated[of] = (streams > 0) & (counters["posix_opens"] >= 2 * streams)
        each = np.maximum(counters["stdio_read_nbytes"], 0) // np.maximum(streams, 1)
        np.maximum.at(end, of, each)
        outside = (place < 0) & (segments["start_ns"] >= first[file])
        carries = segments["nbytes"] > 0
        beyond: NDArray[np.bool_] = segments["offset"] >= end[file]
        return carries & outside & duplicated[file] & beyond

    def _reason(self, found: FoundOffset) -> str:
        """Say what is not as it should be: segments, the clock of the log, that of the machine."""
        reasons = []
        if not len(self.log.segments):
            if self.log.leftover:
                reasons.append("the process never closed its log: counters, but no segments")
            elif self.log.problems:
                reasons.append("no segments: " + "; ".join(self.log.problems))
        if not found.matched and found.n_items:
            reasons.append(f"its clock is not known: {found.reason}")
        if clock_was_set(self.who):
            reasons.append("the wall clock was set during the run: times after that are off")
        return "; ".join(reasons)


def _is_better(every: FoundOffset, reading: FoundOffset) -> bool:
    """Tell whether reads were put off to stages that do not read as a rule: many lie only there."""
    return 10 * every.n_contained > 11 * reading.n_contained


def _exposed(segments: NDArray[Any], exposed: NDArray[np.float64] | None) -> Integers:
    unknown = np.full(len(segments), -1, np.int64)
    if exposed is None or not len(exposed):
        return unknown
    share = np.where(segments["span"] >= 0, exposed[segments["span"]], np.nan)
    known = ~np.isnan(share)
    length = segments["end_ns"] - segments["start_ns"]
    return np.where(known, np.rint(np.where(known, share, 0) * length), unknown).astype(np.int64)
