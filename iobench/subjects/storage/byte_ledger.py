"""Bytes of a run by who counted them, and the name of every difference."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.read_spans import (
    HARDLY_ANY,
    NOT_SUMMED,
    OWN_READ_LIMIT,
)
from iobench.frozen import frozen
from iobench.recording.kinds import Kind
from iobench.subjects.storage.gaps import (
    COLUMNS,
    UNSEEN,
    ByteGap,
    ByteRow,
    Known,
    merged,
    name_gaps,
    shared_reads,
    summed,
)
from iobench.subjects.storage.traced_bytes import modules_of, traced_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from iobench.subjects.storage.evidence import ReadEvidence

MOST_FILES: Final = 1000
"""Rows of files, the largest."""
OF_TRACER: Final = ("posix", "stdio", "segments")


def byte_rows(known: ReadEvidence) -> tuple[ByteRow, ...]:
    """Return the ledger: of the run, of each process that read, of each file, largest first.

    The gaps of a process are those of its files, and what its counters add; those of the run are
    all of these. Neither a gap without a name nor one with it makes up for another of the opposite
    sign.
    """
    book = _Book(known)
    everybody = map(book.process, range(len(known.profile.processes)))
    found = [each for each in everybody if each is not None]
    if not found:
        return ()
    processes = shared_reads([each.row for each in found], [each.n_reads for each in found])
    files: defaultdict[str, list[ByteRow]] = defaultdict(list)
    for each in found:
        for row in each.files:
            files[row.name].append(row)
    per_file = [_sum("file", name, rows) for name, rows in files.items()]
    return (
        _sum("run", "run", processes),
        *sorted(processes, key=_by_size),
        *sorted(per_file, key=_by_size)[:MOST_FILES],
    )


def _by_size(row: ByteRow) -> tuple[int, str]:
    sizes = (getattr(row, name) for name in COLUMNS)
    return -max((size for size in sizes if size is not None), default=0), row.name


@frozen
class _OfProcess:
    """The row of one process, and those of its files."""

    row: ByteRow
    files: tuple[ByteRow, ...]
    n_reads: int


class _Book:
    """All that rows are made of."""

    def __init__(self, known: ReadEvidence) -> None:
        self._known, self._profile, self._reads = known, known.profile, known.reading
        spans = known.profile.spans
        self._opens = (spans["kind"] == Kind.OPEN) & ((spans["flags"] & NOT_SUMMED) == 0)
        self._read_rows = np.zeros(len(spans), bool)
        self._read_rows[self._reads.rows] = True

    def process(self, index: int) -> _OfProcess | None:
        """Return the rows of one process; None of one that read nothing."""
        who, counted = self._profile.processes[index], self._known.counted[index]
        name = f"{who.name} (process {who.pid})"
        asked = self._asked(index)
        traced = self._traced(index, bool(asked.n_spans))
        if (
            not asked.n_spans
            and not counted.rchar
            and not any(each.posix_reads or each.stdio_reads for each in traced.values())
        ):
            return None
        whole = replace(
            self._of_tracer(index, name, traced.values()),
            asked=asked.nbytes,
            asked_decoded=asked.decoded,
            rchar=counted.rchar,
            device=counted.device,
            start_up=counted.start_up,
            untimed=counted.untimed,
            mapped_nbytes=counted.mapped,
            n_reads=asked.n_reads,
            n_looks=counted.n_looks,
        )
        whole = replace(
            whole,
            mapped=whole.mapped or _nothing_unseen(whole),
            no_log=whole.no_log and bool(asked.n_spans),
        )
        files = tuple(self._files(index, whole, asked, traced))
        gaps = name_gaps(whole)
        if asked.by_file:
            # What its files explain is not explained again by their sum.
            own = [gap for gap in gaps if gap.between[0] in {"rchar", "device"}]
            gaps = merged([*(gap for row in files for gap in row.gaps), *own])
        n_reads = max(whole.n_reads, whole.posix_reads)
        return _OfProcess(_row("process", whole, gaps), files, n_reads)

    def _files(
        self, index: int, whole: Known, asked: _Asked, traced: Mapping[str, Known]
    ) -> Iterator[ByteRow]:
        """Yield the rows of a process's files."""
        for name in dict.fromkeys((*asked.by_file, *traced)):
            seen = self._of_tracer(index, name, [traced[name]] if name in traced else [])
            if asked.by_file:
                handed_on, decoded = asked.by_file.get(name, (0, 0))
                seen = replace(seen, asked=handed_on, asked_decoded=decoded, mapped=whole.mapped)
            yield _row("file", seen, name_gaps(seen))

    def _asked(self, index: int) -> _Asked:
        spans, reads = self._profile.spans, self._reads
        mine = spans["process"][reads.rows] == index
        rows, nbytes, decoding = reads.rows[mine], reads.nbytes[mine], reads.decoding[mine]
        who = self._profile.processes[index]
        if (nbytes < 0).any() or who.lost or who.damaged:
            return _Asked(len(rows), None, 0, int(spans["pieces"][rows].sum()), {})
        by_file: dict[str, tuple[int, int]] = {}
        details = spans["detail"][rows]
        if not (nbytes[details == 0] > 0).any():
            number, of_span = np.unique(details, return_inverse=True)
            total = np.bincount(of_span.reshape(-1), nbytes, len(number))
            decoded = np.bincount(of_span.reshape(-1), nbytes * decoding, len(number))
            for detail, each, part in zip(number.tolist(), total, decoded, strict=True):
                name = self._known.names.of_text(self._profile.strings[detail])
                known = by_file.get(name, (0, 0))
                by_file[name] = known[0] + int(each), known[1] + int(part)
            by_file.pop("", None)
        return _Asked(
            n_spans=len(rows),
            nbytes=int(nbytes.sum()) if len(rows) else 0,
            decoded=int(nbytes[decoding].sum()),
            n_reads=int(spans["pieces"][rows].sum()),
            by_file=by_file,
        )

    def _traced(self, index: int, has_reads: bool) -> Mapping[str, Known]:
        if index not in self._known.logs:
            return {}
        placed, log = self._known.logs[index]
        found = traced_files(log, placed, self._known.names, self._opens, self._read_rows)
        if has_reads:
            return found
        # Whatever a process without read stages reads, it reads outside of them.
        return {name: replace(each, outside=_n_bytes(each)) for name, each in found.items()}

    def _of_tracer(self, index: int, name: str, files: Iterable[Known]) -> Known:
        """Return the sums of a tracer; unknown columns stay so."""
        if index not in self._known.logs:
            return Known(name, no_log=self._known.is_traced)
        modules = modules_of(self._known.logs[index][1])
        files = list(files)
        found = summed(name, files)
        unseen = not files and bool(modules.partial)
        counted, single = modules.posix and not unseen, modules.segments and not unseen
        return replace(
            found,
            posix=found.posix if counted else None,
            stdio=found.stdio if counted else None,
            segments=found.segments if single else None,
            partial=bool(modules.partial),
            segments_partial=modules.segments_partial,
        )


def _n_bytes(seen: Known) -> int:
    """Return bytes by any sort of call; strays are in ``posix`` and not in ``segments``."""
    return max(seen.posix or 0, (seen.segments or 0) + seen.stray) + (seen.stdio or 0)


def _nothing_unseen(known: Known) -> bool:
    """Tell whether the kernel saw hardly any read calls but those that are known.

    Then what stages handed on beyond these came without calls: through a mapping. What they
    decoded may also have been stored in few bytes; then nobody can tell.
    """
    if known.rchar is None or known.asked_decoded or known.partial or known.no_log:
        return False
    traced = known.traced if known.traced is not None else HARDLY_ANY * (known.asked or 0)
    return known.rchar - known.n_looks * OWN_READ_LIMIT - known.start_up <= traced


@frozen
class _Asked:
    """What one process's read stages handed on; by file only where all of it has one."""

    n_spans: int
    nbytes: int | None
    decoded: int
    n_reads: int
    by_file: dict[str, tuple[int, int]]


def _row(scope: str, known: Known, gaps: tuple[ByteGap, ...]) -> ByteRow:
    columns: dict[str, Any] = {name: getattr(known, name) for name in COLUMNS}
    return ByteRow(scope, known.name, **columns, gaps=gaps)


def _sum(scope: str, name: str, rows: list[ByteRow]) -> ByteRow:
    """Sum rows; a tracer's columns over those processes of which it is known what they hold.

    A process without a log has a gap of that name, and nothing in these columns. One whose log
    could be read in part leaves a gap in the sum: what the others' columns have does not stand for
    it.
    """

    def total(column: str) -> int | None:
        values = [getattr(row, column) for row in rows]
        known = [value for value in values if value is not None]
        whole = len(known) == len(values) or (column in OF_TRACER and bool(known))
        return int(sum(known)) if whole and known else None

    columns: dict[str, Any] = {column: total(column) for column in COLUMNS}
    gaps = [*(gap for row in rows for gap in row.gaps), *_left_out(rows, columns)]
    return ByteRow(scope, name, **columns, gaps=merged(gaps))


def _left_out(rows: list[ByteRow], columns: Mapping[str, int | None]) -> Iterator[ByteGap]:
    """Yield what sums of a tracer's columns lack: of rows that have nothing there."""
    for row in rows:
        told = any(gap.name in UNSEEN for gap in row.gaps)
        if columns["posix"] is not None and row.posix is None and row.asked and not told:
            yield ByteGap("partial log", -row.asked, ("posix+stdio", "asked"))
        if columns["segments"] is not None and row.segments is None and row.posix:
            yield ByteGap("partial log", row.posix, ("posix", "segments"))
