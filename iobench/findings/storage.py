"""What storage did in a run: bytes by who counted them, and storage time in stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from iobench.analysis.read_spans import HARDLY_ANY, OWN_READ_LIMIT
from iobench.analysis.storage_reads import (
    StageStorage,
    evidence_of,
    incomplete_modules,
    stage_storage,
)
from iobench.findings.contract import Finding
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import Column, Quantity, Section, Sentence, Table, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iobench.analysis.placement import Placement, ProcessPlacement
    from iobench.analysis.run import RankRun
    from iobench.analysis.storage_reads import ReadEvidence
    from iobench.report.document import Block
    from iobench.storage.storage_trace import ProcessTrace

PAGE_CACHE, MMAP, COMPRESSION = "page cache", "mmap", "compression"
REASONS: Final = {
    COMPRESSION: "Files hold fewer bytes than the stages requested: compression.",
    MMAP: "Part was read through mappings, which no read call shows: mmap.",
    PAGE_CACHE: "The device delivered less than read calls returned: page cache.",
}
"""Why counters differ, each in a sentence."""
COLUMNS: Final = {
    "requested_nbytes": "requested",
    "darshan_nbytes": "Darshan",
    "read_calls_nbytes": "read calls",
    "device_nbytes": "device",
}
MOST_FILES: Final = 1000
"""Rows of files, the largest."""


class ByteRow(msgspec.Struct, frozen=True):
    """Bytes read by the run, by one process, or of one file; None is unknown.

    ``requested_nbytes`` is what the read stages handed on, ``darshan_nbytes`` what Darshan counted
    of POSIX calls and ``fread``, the others what ``/proc`` counted. ``reasons`` says why they
    differ, of page cache, mmap and compression.
    """

    name: str
    requested_nbytes: int | None = None
    darshan_nbytes: int | None = None
    read_calls_nbytes: int | None = None
    device_nbytes: int | None = None
    reasons: tuple[str, ...] = ()


class StorageFigures(msgspec.Struct, frozen=True):
    """What storage did in a run of one training process.

    ``bytes`` has the run first, then processes, then files, largest first; ``in_stages`` the stages
    that read where Darshan's log is there; ``notes`` how much of the run Darshan saw, and what
    could not be read.
    """

    bytes: tuple[ByteRow, ...] = ()
    in_stages: Mapping[str, StageStorage] = {}
    notes: tuple[str, ...] = ()


def storage_of(run: RankRun) -> StorageFigures | None:
    """Return what storage did in one training process of a run; None of one of many."""
    if run.is_one_of_many:
        text = "Darshan's logs are evaluated in jobs of few ranks."
        return None if run.trace is None else StorageFigures(notes=(text,))
    known = evidence_of(run)
    return StorageFigures(
        bytes=_byte_rows(known),
        in_stages=stage_storage(known) if known.logs else {},
        notes=() if run.placement is None else tuple(_covered(run.placement)),
    )


class _Bytes(msgspec.Struct):
    """The bytes of a row, and the evidence for a reason: what was decoded, what was mapped."""

    name: str
    requested: int | None = None
    decoded: int = 0
    mapped: bool = False
    darshan: int | None = None
    read_calls: int | None = None
    device: int | None = None

    def row(self) -> ByteRow:
        """Return it with the reasons for its differences."""
        reasons = []
        stored = self.read_calls if self.darshan is None else self.darshan
        if stored is not None and self.requested is not None and stored < self.requested:
            # Less what was not decoded: that has its own bytes.
            if stored - (self.requested - self.decoded) > HARDLY_ANY * self.decoded > 0:
                reasons.append(COMPRESSION)
            elif self.mapped:
                reasons.append(MMAP)
        if self.read_calls is not None and self.device is not None:
            if self.device < self.read_calls:
                reasons.append(PAGE_CACHE)
            elif self.device > self.read_calls and self.mapped:
                reasons.append(MMAP)
        requested, darshan, read_calls, device = self.columns
        unique = tuple(dict.fromkeys(reasons))
        return ByteRow(self.name, requested, darshan, read_calls, device, unique)

    @property
    def columns(self) -> tuple[int | None, ...]:
        """The bytes by who counted."""
        return self.requested, self.darshan, self.read_calls, self.device


def _byte_rows(known: ReadEvidence) -> tuple[ByteRow, ...]:
    """Return the rows of the run, of each process that read, of each file; largest first."""
    processes: list[_Bytes] = []
    files: dict[str, list[_Bytes]] = {}
    for index in range(len(known.profile.processes)):
        own = _of_files(known, index)
        process = _of_process(known, index, own)
        if process is not None:
            processes.append(process)
            for each in own:
                each.mapped |= process.mapped
                files.setdefault(each.name, []).append(each)
    if not processes:
        return ()
    sums = _sorted(_sum(name, parts) for name, parts in files.items())
    every = [_sum("run", processes), *_sorted(processes), *sums[:MOST_FILES]]
    return tuple(each.row() for each in every)


def _sorted(rows: Iterable[_Bytes]) -> list[_Bytes]:
    """Return the largest first."""
    return sorted(rows, key=lambda e: (-max(filter(None, e.columns), default=0), e.name))


def _of_process(known: ReadEvidence, index: int, files: Sequence[_Bytes]) -> _Bytes | None:
    """Return the bytes of a process, given those of its files; None of one that read nothing."""
    owner, counted, reads = known.profile.processes[index], known.counted[index], known.reading
    mine = known.profile.spans["process"][reads.rows] == index
    nbytes, decoding = reads.nbytes[mine], reads.decoding[mine]
    darshan = None
    if index in known.logs and not incomplete_modules(known.logs[index][1]) & {"POSIX", "STDIO"}:
        darshan = sum(each.darshan or 0 for each in files)
    called = counted.rchar
    if not (mine.any() or called or darshan):
        return None
    is_known = not ((nbytes < 0).any() or owner.lost or owner.damaged)
    requested, decoded = int(nbytes.sum()), int(nbytes[decoding].sum())
    hardly_called = called is not None and (
        called - counted.n_looks * OWN_READ_LIMIT < HARDLY_ANY * requested
    )
    return _Bytes(
        name=f"{owner.name} (process {owner.pid})",
        requested=requested if is_known else None,
        decoded=decoded if is_known else 0,
        mapped=bool(counted.mapped)
        or any(each.mapped for each in files)
        or (hardly_called and not decoded),
        darshan=darshan,
        read_calls=called,
        device=counted.device,
    )


def _of_files(known: ReadEvidence, index: int) -> list[_Bytes]:
    """Return the bytes of the files of a process; what is requested only where spans name all."""
    result = _requested_by_file(known, index)
    names_all = bool(result)
    if index in known.logs:
        for name, nbytes, mapped in _darshan_by_file(known, *known.logs[index]):
            row = result.setdefault(name, _Bytes(name, requested=0 if names_all else None))
            row.darshan = (row.darshan or 0) + nbytes
            row.mapped |= mapped
    return list(result.values())


def _requested_by_file(known: ReadEvidence, index: int) -> dict[str, _Bytes]:
    """Return by file what a process's stages handed on; nothing where not all name a file."""
    spans, reads = known.profile.spans, known.reading
    mine = spans["process"][reads.rows] == index
    nbytes, decoding = reads.nbytes[mine], reads.decoding[mine]
    details = spans["detail"][reads.rows[mine]]
    owner = known.profile.processes[index]
    if (nbytes < 0).any() or owner.lost or owner.damaged or (nbytes[details == 0] > 0).any():
        return {}
    result: dict[str, _Bytes] = {}
    for detail in np.unique(details).tolist():
        own = details == detail
        name = known.names.of_text(known.profile.strings[detail])
        if name:
            row = result.setdefault(name, _Bytes(name, requested=0))
            row.requested = (row.requested or 0) + int(nbytes[own].sum())
            row.decoded += int(nbytes[own & decoding].sum())
    return result


def _darshan_by_file(
    known: ReadEvidence, placed: ProcessPlacement, log: ProcessTrace
) -> Iterator[tuple[str, int, bool]]:
    """Yield what Darshan counted of each file, without strays, and whether it was mapped.

    Files that were not read are left out; where spans name what they read, so are files that none
    of them names, unless a read lies in a stage.
    """
    nbytes, n_reads, mapped = np.zeros((3, len(log.files)), np.int64)
    rows, segments = log.counters, placed.segments
    for calls in ("posix", "stdio"):
        np.add.at(nbytes, rows["file"], np.maximum(rows[f"{calls}_read_nbytes"], 0))
        np.add.at(n_reads, rows["file"], np.maximum(rows[f"{calls}_reads"], 0))
    np.add.at(mapped, rows["file"], rows["posix_mmaps"] > 0)
    np.subtract.at(nbytes, segments["file"], segments["nbytes"] * segments["stray"])
    inside = np.bincount(segments["file"], segments["span"] >= 0, len(log.files))
    for number, path in enumerate(log.files):
        name = known.names.of_file(path)
        if n_reads[number] and (name is not None or inside[number]):
            yield name or path, int(nbytes[number]), bool(mapped[number])


def _sum(name: str, parts: Sequence[_Bytes]) -> _Bytes:
    """Return the sums; unknown where a part is, but for Darshan's of what requested nothing."""
    with_log = [each.darshan for each in parts if each.darshan is not None or each.requested]
    return _Bytes(
        name,
        requested=_total([each.requested for each in parts]),
        decoded=sum(each.decoded for each in parts),
        mapped=any(each.mapped for each in parts),
        darshan=_total(with_log),
        read_calls=_total([each.read_calls for each in parts]),
        device=_total([each.device for each in parts]),
    )


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _covered(placement: Placement) -> Iterator[str]:
    """Yield how much of the run Darshan saw, what is missing, and what to do about it."""
    coverage = placement.coverage
    complete = "complete" if coverage.complete else "not all that was read"
    yield (
        f"Darshan: logs of {units.count(coverage.n_logs)} of {units.count(coverage.n_expected)} "
        f"processes, {complete}; {units.count(coverage.n_placed)} of "
        f"{units.count(coverage.n_segments)} reads lie in stages."
    )
    if coverage.missing:
        yield f"No log of: {', '.join(coverage.missing)}."
    if (others := coverage.others) is not None:
        yield (
            f"Totals of logs without a marker of this run, which are placed in no stage: "
            f"{units.count(others.n_logs)} logs, {units.count(others.n_files)} files, "
            f"{units.nbytes(others.posix_nbytes)} read by POSIX calls and "
            f"{units.nbytes(others.stdio_nbytes)} by STDIO."
        )
    yield from dict.fromkeys(coverage.problems)


def storage_section(figures: StorageFigures) -> Section | None:
    """Return what storage did: how much of it is known, then bytes and stages."""
    blocks: list[Block] = [*sentences(figures.notes)]
    if figures.bytes:
        whole = figures.bytes[0]
        known = {of: getattr(whole, name) for name, of in COLUMNS.items()}
        if whole.darshan_nbytes is None:
            del known["Darshan"]
        counts = (f"{of} {units.nbytes(each)}" for of, each in known.items())
        blocks.append(Sentence(f"Bytes read: {', '.join(counts)}."))
        blocks += sentences(REASONS[each] for each in whole.reasons)
    if figures.in_stages:
        blocks.append(_stage_table(figures.in_stages))
    return Section("storage", "Storage", tuple(blocks), is_folded=True) if blocks else None


def _stage_table(stages: Mapping[str, StageStorage]) -> Table:
    """Return how much of each stage that read was storage."""
    columns = (Column("stage"), Column("busy", "time"), Column("storage", "time"))
    rows = (
        (stage_title(stage), Quantity(each.busy_ns, "ns"), Quantity(each.storage_ns, "ns"))
        for stage, each in stages.items()
    )
    return Table("Storage inside the stages that read", columns, tuple(rows))


FINDING: Final = Finding("storage", 100, StorageFigures, storage_of, storage_section)
