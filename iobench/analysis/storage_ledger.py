"""Bytes of a run by who counted them, and the name of every difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.storage_figures import ByteRow
from iobench.analysis.storage_gaps import Known, merged, name_gaps
from iobench.analysis.storage_spans import counted_bytes, find_read_spans

if TYPE_CHECKING:
    from iobench.analysis.storage_figures import Placement
    from iobench.analysis.storage_spans import CountedBytes, ReadSpans
    from iobench.profiles import Profile
    from iobench.storage.traces import StorageTrace

__all__ = ["byte_rows"]


def byte_rows(
    profile: Profile, trace: StorageTrace | None, placement: Placement | None
) -> tuple[ByteRow, ...]:
    """Return the ledger: of the run, of each process that read, of each file, largest first."""
    reads, counted = find_read_spans(profile), counted_bytes(profile)
    known = [
        _of_process(profile, index, reads, counted[index])
        for index in range(len(profile.processes))
    ]
    rows = [_row("process", each) for each in known if each.takes_part]
    rows.sort(key=lambda row: (-(row.asked or row.rchar or 0), row.name))
    return (_run_row(rows), *rows) if rows else ()


def _of_process(profile: Profile, index: int, reads: ReadSpans, counted: CountedBytes) -> Known:
    who = profile.processes[index]
    mine = profile.spans["process"][reads.rows] == index
    nbytes = reads.nbytes[mine]
    told = bool(len(nbytes)) and bool((nbytes >= 0).all()) and not (who.lost or who.damaged)
    return Known(
        name=f"{who.name} (process {who.pid})",
        asked=int(nbytes.sum()) if told else None,
        n_reads=int(profile.spans["pieces"][reads.rows[mine]].sum()),
        decoding=bool(reads.decoding[mine].any()),
        rchar=counted.rchar,
        device=counted.device,
        n_looks=counted.n_looks,
        reads=bool(len(nbytes)),
    )


def _row(scope: str, known: Known) -> ByteRow:
    return ByteRow(
        scope=scope,
        name=known.name,
        asked=known.asked,
        posix=known.posix,
        stdio=known.stdio,
        segments=known.segments,
        rchar=known.rchar,
        device=known.device,
        gaps=name_gaps(known),
    )


def _run_row(rows: list[ByteRow]) -> ByteRow:
    """Sum the rows of processes; a column that one of them does not know is unknown."""

    def total(name: str) -> int | None:
        values = [getattr(row, name) for row in rows]
        return None if any(value is None for value in values) else int(np.sum(values))

    return ByteRow(
        scope="run",
        name="run",
        asked=total("asked"),
        posix=total("posix"),
        stdio=total("stdio"),
        segments=total("segments"),
        rchar=total("rchar"),
        device=total("device"),
        gaps=merged(gap for row in rows for gap in row.gaps),
    )
