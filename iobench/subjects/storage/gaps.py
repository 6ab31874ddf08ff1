"""Why two counts of bytes differ: reasons that the counts themselves give evidence of.

A reason is named only where something else than the difference speaks for it, and only for as
many bytes as that evidence carries; what is left has no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any, Final

from iobench.analysis.read_spans import HARDLY_ANY, OWN_READ_LIMIT
from iobench.frozen import frozen
from iobench.json_keys import figure, key

COLUMNS: Final = ("asked", "posix", "stdio", "segments", "rchar", "device")
"""Of a ledger: the fields of `Known` and of a row that count bytes."""
SUMMED: Final = (
    *("posix", "stdio", "segments", "posix_reads", "stdio_reads"),
    *("stray", "outside", "elsewhere", "tables", "sniffed"),
)
"""What a tracer counted that adds up."""
READ_AHEAD_LIMIT: Final = 136 << 10
"""Bytes that the kernel may read beyond one read: a window of 128 KiB, and pages at both ends."""
BUFFER_LIMIT: Final = 128 << 10
"""Largest buffer of Python's ``open``: it reads so much where a header is asked for."""
READ_BUFFER: Final = 8 << 10
"""Bytes that Python's ``open`` reads at once where only a header is wanted, but for devices with
larger blocks."""
NPY_ALIGNMENT: Final = 16
"""Headers of ``.npy`` files are a multiple of it long."""


UNSEEN: Final = frozenset({"no log", "partial log"})
"""Gaps as large as the difference they explain, whatever else was missing."""


@frozen
class ByteGap:
    """Bytes by which two columns of a row differ, with the name of the reason.

    Parameters
    ----------
    name : str
        ``"header read twice"``, ``"compression"``, ``"metadata"``, ``"format sniffing"``,
        ``"mapping"``, ``"read-ahead"``, ``"partial log"``, ``"stray segments"``, ``"no log"``,
        ``"outside stages"``, ``"other stages"``, ``"own reads"``, ``"start-up"``,
        ``"samples not timed"``, ``"headers and buffers"``, ``"page cache"``,
        ``"read for other processes"``; null is a gap that nothing explains.
    nbytes : int
        Positive: the first column has more.
    between : tuple of str
        Names of the two columns.
    """

    name: str
    nbytes: int
    between: tuple[str, str]


@frozen
class ByteRow:
    """Bytes read by one process, of one file, or by the run; None is unknown.

    Parameters
    ----------
    scope : str
        ``"run"``, ``"process"`` or ``"file"``.
    name : str
        Of the process or the file.
    asked : int or None
        What the read stages handed on.
    posix, stdio, segments : int or None
        What the tracer counted, by sort of call.
    rchar, device : int or None
        What ``/proc`` counted: by any read call, and from the device.
    gaps : tuple of ByteGap
        Why these differ.
    """

    scope: str
    name: str
    asked: int | None = field(metadata=key("asked_nbytes"))
    posix: int | None = field(metadata=key("posix_nbytes"))
    stdio: int | None = field(metadata=key("stdio_nbytes"))
    segments: int | None = field(metadata=key("segments_nbytes"))
    rchar: int | None = field(metadata=key("rchar_nbytes"))
    device: int | None = field(metadata=key("device_nbytes"))
    gaps: tuple[ByteGap, ...]

    @figure
    def settled(self) -> bool:
        """Whether somebody counted what the stages handed on, and every gap has a name.

        Never where part of it was unseen: anything could hide in such a gap.
        """
        counted = any(each is not None for each in (self.posix, self.segments, self.rchar))
        named = all(gap.name and gap.name not in UNSEEN for gap in self.gaps)
        return self.asked is not None and counted and named


@frozen
class Known:
    """All that is known of the bytes of one file in one process, or of a process; None is unknown.

    Parameters
    ----------
    name : str
        The file's; it tells the format.
    asked, asked_decoded : int or None, int
        What read stages handed on; of it what was decoded in the same stage.
    posix, stdio, segments : int or None
        As the tracer counted; ``segments`` without strays.
    stray : int
        Bytes of segments credited to the wrong file; they are in ``posix`` too.
    outside, elsewhere : int
        Bytes of segments outside all stages, and in stages that hand on nothing that was read; 0
        where unknown.
    tables : int
        Bytes of segments in stages that open, and of small ones in stages that read a file whose
        format has tables between the data.
    sniffed : int
        Bytes of ``fread`` that the netCDF library asks for to recognise a format.
    front : int
        Where the furthest segment ends, -1 if there is none.
    mapped : bool
        Whether the tracer saw it mapped, or the kernel saw no read calls but those of the tracer.
    partial, segments_partial : bool
        Whether the tracer ran out of room.
    no_log : bool
        Whether the tracer left nothing of the process.
    start_up : int
        Bytes of ``rchar`` in a process's first batch beyond what its other batches have.
    untimed : int
        Bytes of ``rchar`` in batches whose samples were not timed, which no stage tells.
    mapped_nbytes : int
        Bytes of ``asked`` in batches for which hardly any read call returned some.
    n_reads, n_looks : int
        Reads of spans, and looks at ``/proc``.
    """

    name: str
    asked: int | None = None
    asked_decoded: int = 0
    posix: int | None = None
    stdio: int | None = None
    segments: int | None = None
    posix_reads: int = 0
    stdio_reads: int = 0
    stray: int = 0
    outside: int = 0
    elsewhere: int = 0
    tables: int = 0
    sniffed: int = 0
    front: int = -1
    mapped: bool = False
    partial: bool = False
    segments_partial: bool = False
    no_log: bool = False
    rchar: int | None = None
    device: int | None = None
    start_up: int = 0
    untimed: int = 0
    mapped_nbytes: int = 0
    n_reads: int = 0
    n_looks: int = 0

    @property
    def traced(self) -> int | None:
        """Bytes that the tracer saw read, by any sort of call."""
        if self.posix is None:
            return self.segments if self.segments is None else self.segments + self.stray
        return self.posix + (self.stdio or 0)


def summed(name: str, parts: Iterable[Known]) -> Known:
    """Return what a tracer saw of several files together: of a store's, or of a process's."""
    parts = list(parts)
    total: dict[str, Any] = {
        column: sum(getattr(each, column) or 0 for each in parts) for column in SUMMED
    }
    front = max((each.front for each in parts), default=-1)
    return Known(name, **total, front=front, mapped=any(each.mapped for each in parts))


class _Difference:
    """A difference between two columns while reasons are found for it."""

    def __init__(self, first: str, second: str, nbytes: int) -> None:
        self.between, self.left = (first, second), nbytes
        self.gaps: list[ByteGap] = []

    def explain(self, name: str, nbytes: int) -> None:
        """Give so many bytes of the difference, with its sign, to a reason."""
        if nbytes:
            self.gaps.append(ByteGap(name, nbytes, self.between))
            self.left -= nbytes

    def explain_up_to(self, name: str, limit: int) -> None:
        """Give what is left of a positive difference to a reason, as far as that carries."""
        self.explain(name, max(min(self.left, limit), 0))

    def close(self) -> list[ByteGap]:
        """Return all reasons; what is left has none."""
        self.explain("", self.left)
        return self.gaps


def name_gaps(known: Known) -> tuple[ByteGap, ...]:
    """Return the differences between neighbouring columns, each with its reasons."""
    return (
        *_tracer_and_spans(known),
        *_calls_and_segments(known),
        *_kernel_and_calls(known),
        *_device_and_kernel(known),
    )


def _tracer_and_spans(known: Known) -> list[ByteGap]:
    """Explain what the tracer saw read against what read stages handed on."""
    if known.no_log:
        return [ByteGap("no log", -(known.asked or 0), (_tracer_column(known), "asked"))]
    traced = known.traced
    if traced is None and known.partial and known.asked:
        return [ByteGap("partial log", -known.asked, (_tracer_column(known), "asked"))]
    if traced is None or known.asked is None:
        return []
    gap = _Difference(_tracer_column(known), "asked", traced - known.asked)
    gap.explain_up_to("stray segments", known.stray)
    gap.explain("format sniffing", known.sniffed)
    if _is_header(known, gap.left):
        gap.explain("header read twice", gap.left)
    gap.explain_up_to("outside stages", known.outside)
    gap.explain_up_to("other stages", known.elsewhere)
    _explain_formats(known, gap)
    if gap.left < 0 and _is_mapped(known, known.asked + gap.left):
        gap.explain("mapping", gap.left)
    if gap.left < 0 and known.partial:
        gap.explain("partial log", gap.left)
    return gap.close()


def _tracer_column(known: Known) -> str:
    return "segments" if known.posix is None and known.segments is not None else "posix+stdio"


def _is_header(known: Known, left: int) -> bool:
    """Tell whether buffered reads of the file's beginning hold bytes that ``fread`` read too.

    That is how ``numpy.load`` reads: the header through a buffer, then the rest by ``fread``.
    """
    posix, stdio = (known.posix or 0) - known.stray, (known.stdio or 0) - known.sniffed
    if not stdio or not posix or posix > known.posix_reads * BUFFER_LIMIT:
        return False
    header = posix - left  # what was handed on beside what fread read
    aligned = not known.name.endswith(".npy") or header % NPY_ALIGNMENT == 0
    return 0 <= header < posix and aligned and known.front <= BUFFER_LIMIT


def _explain_formats(known: Known, gap: _Difference) -> None:
    """Explain bytes that formats add, and those that they save."""
    plain = (known.asked or 0) - known.asked_decoded
    payload = (known.asked or 0) + gap.left
    tables = min(known.tables, payload if gap.left < 0 else gap.left)
    gap.explain("metadata", tables)
    stored = payload - tables - plain
    if known.posix and (known.stdio or 0) > known.sniffed:
        return  # which of the two read what is stored, and which something else?
    if gap.left < 0 and stored > HARDLY_ANY * known.asked_decoded > 0:
        gap.explain("compression", gap.left)


def _is_mapped(known: Known, nbytes: int) -> bool:
    """Tell whether a file was read through a mapping: its calls returned hardly any of it.

    What is decoded may have been stored in as few bytes, so there only the tracer can tell.
    """
    return known.mapped and nbytes < HARDLY_ANY * (known.asked or 0)


def _calls_and_segments(known: Known) -> list[ByteGap]:
    """Explain the bytes of POSIX calls against those of single segments."""
    if known.posix is None or known.segments is None:
        return []
    gap = _Difference("posix", "segments", known.posix - known.segments)
    gap.explain_up_to("stray segments", known.stray)
    if gap.left > 0 and known.segments_partial:
        gap.explain("partial log", gap.left)
    return gap.close()


def _own_limit(known: Known) -> int:
    return known.n_looks * OWN_READ_LIMIT


def _kernel_and_calls(known: Known) -> list[ByteGap]:
    """Explain what the kernel counted of all read calls against those of files."""
    if known.rchar is None:
        return []
    traced = None if known.partial or known.no_log else known.traced
    against = known.asked if traced is None else traced
    if against is None:
        return []
    column = "asked" if traced is None else _tracer_column(known)
    gap = _Difference("rchar", column, known.rchar - against)
    # What the tracer saw of it is in both columns.
    start_up = known.start_up - max((traced or 0) - (known.asked or 0), 0) * (traced is not None)
    if traced is None:
        gap.explain_up_to("samples not timed", known.untimed)
    if start_up > OWN_READ_LIMIT:
        gap.explain_up_to("start-up", start_up)
    if 0 < gap.left <= _own_limit(known):
        gap.explain("own reads", gap.left)
    if traced is None and 0 < gap.left <= known.n_reads * READ_BUFFER + _own_limit(known):
        gap.explain("headers and buffers", gap.left)
    if traced is not None:
        # Before the first batch nobody looked at /proc.
        gap.explain("outside stages", -min(max(-gap.left, 0), known.outside))
    elif gap.left < 0 and _is_mapped(known, known.rchar - _own_limit(known)):
        gap.explain("mapping", gap.left)
    else:
        gap.explain("mapping", max(gap.left, -known.mapped_nbytes) if gap.left < 0 else 0)
        if gap.left < 0:
            _explain_formats(known, gap)
    return gap.close()


def _device_and_kernel(known: Known) -> list[ByteGap]:
    """Explain what the device delivered against what read calls returned."""
    if known.device is None or known.rchar is None:
        return []
    gap = _Difference("device", "rchar", known.device - known.rchar)
    if gap.left < 0:
        gap.explain("page cache", gap.left)
        return gap.close()
    if _is_mapped(known, known.rchar - _own_limit(known)):
        gap.explain_up_to("mapping", (known.asked or 0) - known.rchar)
    else:
        gap.explain_up_to("mapping", known.mapped_nbytes)
    if gap.left <= max(known.n_reads, known.posix_reads) * READ_AHEAD_LIMIT:
        gap.explain("read-ahead", gap.left)
    return gap.close()


def merged(gaps: Iterable[ByteGap]) -> tuple[ByteGap, ...]:
    """Sum gaps of one name and sign; those of opposite signs never make up for each other."""
    total: dict[tuple[str, tuple[str, str], bool], int] = {}
    for gap in gaps:
        key = (gap.name, gap.between, gap.nbytes > 0)
        total[key] = total.get(key, 0) + gap.nbytes
    return tuple(ByteGap(name, nbytes, between) for (name, between, _), nbytes in total.items())


def shared_reads(rows: Sequence[ByteRow], n_reads: Sequence[int]) -> list[ByteRow]:
    """Name what the device delivered to one process beyond its reads, and others found cached.

    Processes read parts of one file, and the kernel reads ahead for whoever comes first. That this
    is so shows in the sum over all processes: the device delivered once what they read together.

    Parameters
    ----------
    rows : sequence of ByteRow
        Of all processes.
    n_reads : sequence of int
        Of each.
    """
    told = [row for row in rows if row.device is not None and row.rchar is not None]
    device, rchar = sum(row.device or 0 for row in told), sum(row.rchar or 0 for row in told)
    allowed = sum(n_reads) * READ_AHEAD_LIMIT
    if len(told) < len(rows) or not (1 - HARDLY_ANY) * rchar <= device <= rchar + allowed:
        return list(rows)
    cached = -sum(gap.nbytes for row in rows for gap in row.gaps if gap.name == "page cache")
    named = []
    for row, number in zip(rows, n_reads, strict=True):
        gaps = []
        for gap in row.gaps:
            shared = min(gap.nbytes, cached)
            ahead = gap.nbytes - shared
            unnamed = gap.between == ("device", "rchar") and not gap.name and gap.nbytes > 0
            if unnamed and ahead <= number * READ_AHEAD_LIMIT:
                cached -= shared
                gaps.append(replace(gap, name="read for other processes", nbytes=shared))
                gaps += [replace(gap, name="read-ahead", nbytes=ahead)] if ahead else []
            else:
                gaps.append(gap)
        named.append(replace(row, gaps=tuple(gaps)))
    return named
