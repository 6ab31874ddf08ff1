"""What figures of storage are made of: spans, counters of the system, Darshan's reads in stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from iobench.analysis.placement.file_names import NamedFiles
from iobench.analysis.read_spans import counted_bytes, find_read_spans

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.analysis.read_spans import CountedBytes, ReadSpans
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData
    from iobench.storage.storage_trace import ProcessTrace


class ReadEvidence(msgspec.Struct, frozen=True):
    """What is known of the reads of one training process and its loading processes.

    Parameters
    ----------
    share : ndarray of float64, shape (n_spans,)
        The exposed share of each span.
    reading : ReadSpans
        The spans that read.
    counted : tuple of CountedBytes
        What the system counted, of each process.
    logs : mapping of int to (ProcessPlacement, ProcessTrace)
        Darshan's, of the processes that have one with their marker.
    """

    profile: RunData
    share: NDArray[np.float64]
    reading: ReadSpans
    counted: tuple[CountedBytes, ...]
    names: NamedFiles
    logs: Mapping[int, tuple[ProcessPlacement, ProcessTrace]]


def evidence_of(run: RankRun) -> ReadEvidence:
    """Return what is known of a run."""
    profile, trace, placement = run, run.trace, run.placement
    reading = find_read_spans(profile)
    logs = {}
    if trace is not None and placement is not None:
        logs = {each.process: (each, trace.processes[each.trace]) for each in placement.processes}
    return ReadEvidence(
        profile=profile,
        share=run.share,
        reading=reading,
        counted=counted_bytes(profile, reading),
        names=NamedFiles(profile, trace),
        logs=logs,
    )


def incomplete_modules(log: ProcessTrace) -> set[str]:
    """Return the modules of a log that do not hold all that happened, or could not be read."""
    return {each.name for each in log.modules if each.partial or each.problem}


def has_all_segments(log: ProcessTrace) -> bool:
    """Return whether a log has every single read of its process, but for those by ``fread``."""
    names = {each.name for each in log.modules}
    return "DXT_POSIX" in names and not incomplete_modules(log) & {"POSIX", "STDIO", "DXT_POSIX"}
