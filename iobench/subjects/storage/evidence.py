"""What figures of storage are made of: spans, counters of the system, a tracer's placed calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.analysis.placement.file_names import NamedFiles
from iobench.analysis.read_spans import counted_bytes, find_read_spans
from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from iobench.analysis.placement.placed_calls import Placement, ProcessPlacement
    from iobench.analysis.read_spans import CountedBytes, ReadSpans
    from iobench.analysis.run import RankRun
    from iobench.profiles.contents import Profile
    from iobench.storage.storage_trace import ProcessTrace


@frozen
class ReadEvidence:
    """What is known of the reads of one training process and its loading processes.

    Parameters
    ----------
    share : ndarray of float64, shape (n_spans,)
        The exposed share of each span.
    reading : ReadSpans
        The spans that read.
    counted : tuple of CountedBytes
        What the system counted, of each process.
    is_traced : bool
        Whether there are logs of the run's processes.
    logs : mapping of int to (ProcessPlacement, ProcessTrace)
        Those of the run's processes: where their calls are, and what else the tracer told.
    """

    profile: Profile
    share: NDArray[np.float64]
    reading: ReadSpans
    counted: tuple[CountedBytes, ...]
    names: NamedFiles
    is_traced: bool
    logs: Mapping[int, tuple[ProcessPlacement, ProcessTrace]]


def evidence_of(run: RankRun, placement: Placement | None) -> ReadEvidence:
    """Return what is known of a run, its trace's calls placed already."""
    profile, trace = run.profile, run.trace
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
        is_traced=bool(logs),
        logs=logs,
    )
