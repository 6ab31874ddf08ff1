"""Bytes of a run, its processes and its files by who counted them, and why they differ."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.read_spans import HARDLY_ANY, OWN_READ_LIMIT
from iobench.findings.storage.evidence import incomplete_modules
from iobench.json_keys import key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.placement.file_names import NamedFiles
    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.findings.storage.evidence import ReadEvidence
    from iobench.storage.storage_trace import ProcessTrace

COLUMNS: Final = ("requested", "darshan", "read_calls", "device")
"""The fields of a row that count bytes."""
PAGE_CACHE, MMAP, COMPRESSION = "page cache", "mmap", "compression"
MOST_FILES: Final = 1000
"""Rows of files, the largest."""


class ByteDifference(msgspec.Struct, frozen=True):
    """Bytes by which two columns of a row differ.

    Parameters
    ----------
    nbytes : int
        Positive: the first column has more.
    between : tuple of str
        Names of the two columns.
    reason : str
        ``"page cache"``, ``"mmap"`` or ``"compression"``; ``""`` where none of them shows.
    """

    nbytes: int
    between: tuple[str, str]
    reason: str


class ByteRow(msgspec.Struct, frozen=True):
    """Bytes read by one process, of one file, or by the run; None is unknown.

    Parameters
    ----------
    scope : str
        ``"run"``, ``"process"`` or ``"file"``.
    name : str
        Of the process or the file.
    requested : int or None
        What the read stages handed on.
    darshan : int or None
        What Darshan counted of POSIX calls and ``fread``.
    read_calls, device : int or None
        What ``/proc`` counted: by any read call, and from the device.
    """

    scope: str
    name: str
    requested: int | None
    darshan: int | None
    read_calls: int | None
    device: int | None
    differences: tuple[ByteDifference, ...]
    JSON_KEYS: ClassVar = {
        "requested": key("requested_nbytes"),
        "darshan": key("darshan_nbytes"),
        "read_calls": key("read_calls_nbytes"),
        "device": key("device_nbytes"),
    }


class _Bytes(msgspec.Struct, frozen=True):
    """The bytes of a row, and what speaks for a reason.

    Parameters
    ----------
    decoded : int
        What of ``requested`` was decoded in the same stage.
    mapped : bool
        Whether something read it through a mapping.
    """

    name: str
    requested: int | None = None
    decoded: int = 0
    mapped: bool = False
    darshan: int | None = None
    read_calls: int | None = None
    device: int | None = None


def byte_rows(known: ReadEvidence) -> tuple[ByteRow, ...]:
    """Return the rows of the run, of each process that read, of each file; largest first."""
    processes: list[_Bytes] = []
    files: defaultdict[str, list[_Bytes]] = defaultdict(list)
    for index in range(len(known.profile.processes)):
        own = _of_files(known, index)
        process = _of_process(known, index, own)
        if process is not None:
            processes.append(process)
            for each in own:
                files[each.name].append(replace(each, mapped=each.mapped or process.mapped))
    if not processes:
        return ()
    sums = sorted((_sum(name, parts) for name, parts in files.items()), key=_by_size)
    return (
        _row("run", _sum("run", processes)),
        *(_row("process", each) for each in sorted(processes, key=_by_size)),
        *(_row("file", each) for each in sums[:MOST_FILES]),
    )


def _by_size(each: _Bytes) -> tuple[int, str]:
    sizes = (getattr(each, name) for name in COLUMNS)
    return -max((size for size in sizes if size is not None), default=0), each.name


def _of_process(known: ReadEvidence, index: int, files: Sequence[_Bytes]) -> _Bytes | None:
    """Return the bytes of a process, given those of its files; None of one that read nothing."""
    who, counted, reads = known.profile.processes[index], known.counted[index], known.reading
    mine = known.profile.spans["process"][reads.rows] == index
    nbytes, decoding = reads.nbytes[mine], reads.decoding[mine]
    darshan = None
    if index in known.logs and not incomplete_modules(known.logs[index][1]) & {"POSIX", "STDIO"}:
        darshan = sum(each.darshan or 0 for each in files)
    if not (mine.any() or counted.rchar or darshan):
        return None
    is_known = not ((nbytes < 0).any() or who.lost or who.damaged)
    requested, decoded = int(nbytes.sum()), int(nbytes[decoding].sum())
    called = counted.rchar
    hardly_called = called is not None and (
        called - counted.n_looks * OWN_READ_LIMIT < HARDLY_ANY * requested
    )
    return _Bytes(
        name=f"{who.name} (process {who.pid})",
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
    requested = _requested_by_file(known, index)
    counted = _darshan_by_file(*known.logs[index], known.names) if index in known.logs else {}
    return [
        _Bytes(
            name=name,
            requested=requested.get(name, (0, 0))[0] if requested else None,
            decoded=requested.get(name, (0, 0))[1],
            mapped=counted.get(name, (0, False))[1],
            darshan=counted[name][0] if name in counted else None,
        )
        for name in dict.fromkeys((*requested, *counted))
    ]


def _requested_by_file(known: ReadEvidence, index: int) -> dict[str, tuple[int, int]]:
    """Return by file what a process's stages handed on, and what of it they decoded."""
    spans, reads = known.profile.spans, known.reading
    mine = spans["process"][reads.rows] == index
    nbytes, decoding, details = (
        reads.nbytes[mine],
        reads.decoding[mine],
        spans["detail"][reads.rows[mine]],
    )
    who = known.profile.processes[index]
    if (nbytes < 0).any() or who.lost or who.damaged or (nbytes[details == 0] > 0).any():
        return {}
    number, of_span = np.unique(details, return_inverse=True)
    total = np.bincount(of_span.reshape(-1), nbytes, len(number))
    decoded = np.bincount(of_span.reshape(-1), nbytes * decoding, len(number))
    found: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for detail, whole, part in zip(number.tolist(), total, decoded, strict=True):
        name = known.names.of_text(known.profile.strings[detail])
        found[name] = found[name][0] + int(whole), found[name][1] + int(part)
    found.pop("", None)
    return dict(found)


def _darshan_by_file(
    placed: ProcessPlacement, log: ProcessTrace, names: NamedFiles
) -> dict[str, tuple[int, bool]]:
    """Return by file what Darshan counted, without strays, and whether it was mapped.

    Files that were only written, or opened and not read, are left out; where spans name what they
    read, so are files that none of them names, unless a read lies in a stage.
    """
    nbytes, n_reads, mapped = np.zeros((3, len(log.files)), np.int64)
    rows, segments = log.counters, placed.segments
    for calls in ("posix", "stdio"):
        np.add.at(nbytes, rows["file"], np.maximum(rows[f"{calls}_read_nbytes"], 0))
        np.add.at(n_reads, rows["file"], np.maximum(rows[f"{calls}_reads"], 0))
    np.add.at(mapped, rows["file"], rows["posix_mmaps"] > 0)
    np.subtract.at(nbytes, segments["file"], segments["nbytes"] * segments["stray"])
    inside = np.bincount(segments["file"], segments["span"] >= 0, len(log.files))
    found: defaultdict[str, tuple[int, bool]] = defaultdict(lambda: (0, False))
    for number, path in enumerate(log.files):
        name = names.of_file(path)
        if n_reads[number] and (name is not None or inside[number]):
            before = found[name or path]
            found[name or path] = before[0] + int(nbytes[number]), before[1] or mapped[number] > 0
    return dict(found)


def _sum(name: str, parts: Sequence[_Bytes]) -> _Bytes:
    """Return the sums; unknown where a part is, but for Darshan's of what requested nothing."""

    def total(column: str) -> int | None:
        values = [getattr(each, column) for each in parts]
        if column == "darshan":
            values = [each.darshan for each in parts if each.darshan is not None or each.requested]
        return sum(values) if values and None not in values else None

    return _Bytes(
        name,
        decoded=sum(each.decoded for each in parts),
        mapped=any(each.mapped for each in parts),
        **{column: total(column) for column in COLUMNS},
    )


def _row(scope: str, each: _Bytes) -> ByteRow:
    columns = {name: getattr(each, name) for name in COLUMNS}
    return ByteRow(scope, each.name, **columns, differences=tuple(_differences(each)))


def _differences(each: _Bytes) -> Iterator[ByteDifference]:
    """Yield how neighbouring columns differ."""
    pairs = [("darshan", "requested"), ("read_calls", "darshan"), ("device", "read_calls")]
    if each.darshan is None:
        pairs = [("read_calls", "requested"), ("device", "read_calls")]
    for first, second in pairs:
        one, other = getattr(each, first), getattr(each, second)
        if one is not None and other is not None and one != other:
            reason = _reason(each, second, one, other)
            yield ByteDifference(one - other, (first, second), reason)


def _reason(each: _Bytes, second: str, one: int, other: int) -> str:
    """Return why the first of two columns has more or less than the second."""
    if second == "read_calls":
        return PAGE_CACHE if one < other else MMAP if each.mapped else ""
    if second != "requested" or one > other:
        return ""
    stored = one - (other - each.decoded)
    if stored > HARDLY_ANY * each.decoded > 0:
        return COMPRESSION
    return MMAP if each.mapped else ""
