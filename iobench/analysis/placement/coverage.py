"""How much of a run a tracer saw, from which logs are whose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.placement.joining import process_label
from iobench.analysis.placement.placed_calls import TraceCoverage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.placement.joining import JoinedLogs
    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.profiles.contents import Profile
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["coverage_of", "n_files_read"]


def coverage_of(
    profile: Profile,
    trace: StorageTrace,
    joined: JoinedLogs,
    expected: Sequence[int],
    placed: Sequence[ProcessPlacement],
    n_files: tuple[int | None, int],
) -> TraceCoverage:
    """Return how much of a run a tracer saw.

    Parameters
    ----------
    profile : Profile
    trace : StorageTrace
    joined : JoinedLogs
    expected : sequence of int
        Processes that read.
    placed : sequence of ProcessPlacement
    n_files : tuple of (int or None, int)
        Files that stages name, and those of them (else in all) that the tracer has.
    """
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


def n_files_read(trace: StorageTrace, joined: JoinedLogs) -> int:
    """Return how many files the processes of the run read by their logs."""
    found: set[str] = set()
    for log in (trace.processes[number] for number in joined.trace if number >= 0):
        counters = log.counters
        read = (counters["posix_reads"] > 0) | (counters["stdio_reads"] > 0)
        single = log.segments["file"][~log.segments["write"]]
        files = {*counters["file"][read].tolist(), *np.unique(single).tolist()}
        found |= {log.files[file] for file in files}
    return len(found)
