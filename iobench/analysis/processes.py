"""What each process did, whoever waited for it or not: all there is without a training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.recording.kinds import Kind, stage_name
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import halves, stage_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles.contents import Profile

__all__ = ["ProcessWork", "StageWork", "process_work"]


@dataclass(frozen=True, slots=True)
class StageWork:
    """One stage of one process.

    Parameters
    ----------
    stage : str
        ``kind`` or ``kind:label``.
    busy_ns : int
        Time of its threads in this stage and in no stage inside it.
    n_spans : int
        How often it was timed.
    nbytes, cpu_ns : int or None
        Bytes handed on, and time on a CPU; None where a span does not tell.
    """

    stage: str
    busy_ns: int
    n_spans: int
    nbytes: int | None
    cpu_ns: int | None


@dataclass(frozen=True, slots=True)
class ProcessWork:
    """What one process did.

    Parameters
    ----------
    process, pid, host : str, int and str
        Its name and number, and the machine it ran on.
    rank : int
        The training process it is or works for.
    wall_ns : int
        From its first span to the end of its last.
    stages : tuple of StageWork
        Longest first.
    """

    process: str
    pid: int
    host: str
    rank: int
    wall_ns: int
    stages: tuple[StageWork, ...]


def process_work(profile: Profile, *, rank: int | None = None) -> tuple[ProcessWork, ...]:
    """Return what the processes of a run did, of one rank or of all."""
    spans = profile.spans
    in_sums = (spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0
    rounds = (spans["kind"] == Kind.OTHER) & (spans["label"] == profile.string_number("round"))
    spans = spans[in_sums & ~rounds]
    return tuple(
        ProcessWork(
            process=who.name,
            pid=who.pid,
            host=who.host,
            rank=who.rank,
            wall_ns=int(own["end_ns"].max() - own["start_ns"].min()) if len(own) else 0,
            stages=_stages(profile, own),
        )
        for index, who in enumerate(profile.processes)
        if rank is None or who.rank == rank
        for own in [spans[spans["process"] == index]]
    )


def _stages(profile: Profile, spans: NDArray[Any]) -> tuple[StageWork, ...]:
    pieces = leaf_pieces(spans, spans["thread"].astype(np.int64))
    key = stage_keys(spans)
    found = []
    for value in np.unique(key).tolist():
        kind, label = halves(value)
        own = key[pieces.span] == value
        first = own & pieces.first
        of_first = spans[pieces.span[first]]
        cpu_ns = pieces.cpu_ns[first]
        summed = (of_first["flags"] & Flag.SUMMED) != 0
        found.append(
            StageWork(
                stage=stage_name(Kind(kind), profile.strings[label]),
                busy_ns=int(pieces.duration_ns[own].sum()),
                n_spans=int(np.where(summed, of_first["pieces"], 1).sum()),
                nbytes=_known_sum(of_first["nbytes"]),
                cpu_ns=_known_sum(cpu_ns),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.busy_ns, row.stage)))


def _known_sum(values: NDArray[Any]) -> int | None:
    return int(values.sum()) if len(values) and (values >= 0).all() else None
