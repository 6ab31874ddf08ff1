"""The tables of what storage did: bytes by who counted them, storage inside stages, dear reads."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from iobench.masking import printable
from iobench.report import storage_lines, units
from iobench.report.document import (
    Bytes,
    Column,
    Count,
    Duration,
    Section,
    Sentence,
    Table,
    sentences,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.placement.placed_calls import (
        AccessFigures,
        ByteRow,
        ReadCost,
        SanityLine,
        StageStorage,
        StorageFigures,
    )
    from iobench.report.document import Block, Cell
    from iobench.report.run_report import RunReport

__all__ = ["short_path", "storage_section"]

MOST: Final = {"run": 1, "process": 8, "file": 8}
"""Rows shown of each scope, those with gaps that nothing explains first; JSON has them all."""
MOST_READS: Final = 10
LONGEST_NAME: Final = 26
NARROW_NAME: Final = 20
CUT: Final = ".../"
TITLE: Final = "What storage did"
TRACED: Final = ("posix", "stdio", "segments")
COUNTED: Final = {
    "asked": "asked by stages",
    "posix": "POSIX",
    "stdio": "STDIO",
    "segments": "segments",
    "rchar": "any read call",
    "device": "from the device",
}


def storage_section(report: RunReport) -> Section | None:
    """Return what storage did: how much of it is known, then bytes, stages and single reads."""
    figures, trace = report.storage, report.trace
    if figures is None or not figures.rows:
        if trace is None:
            return None
        # Logs that are there, or were named, are not passed over in silence.
        told = storage_lines.untold_lines(trace, many=figures is None)
        return Section("storage", TITLE, sentences(told), is_folded=True)
    costs = storage_lines.wait_line(figures)
    return Section(
        "storage",
        TITLE,
        (
            *sentences(_covered(report, figures)),
            _byte_table(figures),
            *sentences(storage_lines.gap_lines(figures.rows)),
            *((_stage_table(figures.stages),) if figures.stages else ()),
            *((Sentence(costs, "strong"),) if costs is not None else ()),
            *((_cost_table(figures.costliest),) if figures.costliest else ()),
            *(_sizes(figures.access, figures.sanity) if figures.access is not None else ()),
        ),
        is_folded=True,
    )


def _covered(report: RunReport, figures: StorageFigures) -> list[str]:
    placement, trace = figures.placement, report.trace
    if trace is None:
        return []
    if placement is None:
        return [*trace.refused, *trace.notes]
    return storage_lines.coverage_lines(placement, trace) + storage_lines.clock_lines(
        placement, report.who
    )


def _byte_table(figures: StorageFigures) -> Table:
    """Return bytes read by the run, its processes and files, one column for each who counted."""
    columns = ["asked", *(TRACED if figures.placement is not None else ()), "rchar", "device"]
    shown = [
        *_scope(figures.rows, "run"),
        *_scope(figures.rows, "process"),
        *_scope(figures.rows, "file"),
    ]
    processes = Counter(row.name.partition(" (")[0] for row in figures.rows)
    return Table(
        f"Bytes read, by who counted them{_left_out(figures.rows)}",
        (Column(""), *(Column(COUNTED[name]) for name in columns), Column("gaps")),
        tuple(
            (
                _row_name(row, processes),
                *(Bytes(getattr(row, name)) for name in columns),
                storage_lines.gaps_word([gap.name for gap in row.gaps], settled=row.settled),
            )
            for row in shown
        ),
    )


def _scope(rows: Sequence[ByteRow], scope: str) -> list[ByteRow]:
    own = [row for row in rows if row.scope == scope]
    chosen = sorted(own, key=lambda row: not _n_unnamed(row))[: MOST[scope]]
    return [row for row in own if row in chosen]


def _left_out(rows: Sequence[ByteRow]) -> str:
    parts = [
        f"{most} of {units.count(number)} {scope}{ending}"
        for scope, ending in (("process", "es"), ("file", "s"))
        if (number := sum(row.scope == scope for row in rows)) > (most := MOST[scope])
    ]
    return f": {' and '.join(parts)}" if parts else ""


def _row_name(row: ByteRow, processes: Counter[str]) -> str:
    """Return a file's name cut, a process's without its number where one has that name."""
    if row.scope == "file":
        return short_path(row.name, NARROW_NAME)
    name = row.name.partition(" (")[0]
    return name if processes[name] < 2 else row.name


def _n_unnamed(row: ByteRow) -> int:
    return sum(not gap.name for gap in row.gaps)


def short_path(path: str, longest: int = LONGEST_NAME) -> str:
    """Return the end of a path, in whole names where they fit, in one line."""
    path = printable(path)
    if len(path) <= longest:
        return path
    parts = PurePath(path).parts
    short = parts[-1]
    for part in reversed(parts[:-1]):
        if len(CUT) + len(part) + 1 + len(short) > longest:
            break
        short = f"{part}/{short}"
    return f"{CUT}{short}" if len(CUT) + len(short) <= longest else f"...{short[3 - longest :]}"


def _stage_table(stages: Sequence[StageStorage]) -> Table:
    """Return how much of each stage that read was storage, and where its bytes came from.

    Without a tracer nobody knows what of a stage was storage: then there are no such columns.
    """
    traced = any(row.storage_ns is not None for row in stages)
    storage = (Column("storage", "time"), Column("rest", "time")) if traced else ()
    return Table(
        "Storage inside the stages that read" if traced else "Stages that read",
        (
            *(Column("stage"), Column("busy", "time"), *storage),
            *(Column("off the CPU"), Column("handed on"), Column("bytes are")),
        ),
        tuple(line for row in stages for line in _stage_rows(row, traced=traced)),
    )


def _stage_rows(row: StageStorage, *, traced: bool) -> Iterator[tuple[Cell, ...]]:
    """Yield a stage, and where a tracer saw several processes do it, each of them below it."""
    rest = "<={}" if row.rest_is_bound else "{}"
    split = (Duration(row.storage_ns), Duration(row.rest_ns, rest)) if traced else ()
    others = (Duration(row.off_cpu_ns), Bytes(row.nbytes), row.verdict)
    yield row.stage, Duration(row.busy_ns), *split, *others
    if traced and 1 < len(row.processes) <= MOST["process"]:
        for each in row.processes:
            rest_ns = None if each.storage_ns is None else each.busy_ns - each.storage_ns
            name = f"  {each.process.partition(' (')[0]}"
            split = (Duration(each.storage_ns), Duration(rest_ns, rest))
            yield name, Duration(each.busy_ns), *split, "", "", ""


def _cost_table(reads: Sequence[ReadCost]) -> Table:
    """Return the reads that the training loop waited for longest."""
    return Table(
        "Reads that were waited for longest",
        (
            *(Column("file"), Column("by"), Column("offset"), Column("size")),
            *(Column("took", "time"), Column("exposed", "time")),
        ),
        tuple(
            (
                short_path(read.file) or units.UNKNOWN,
                read.process,
                Count(_known(read.offset)),
                Bytes(_known(read.nbytes)),
                Duration(read.duration_ns),
                Duration(read.exposed_ns),
            )
            for read in reads[:MOST_READS]
        ),
    )


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _sizes(access: AccessFigures, sanity: SanityLine | None) -> Iterator[Block]:
    """Yield how many reads were of what size, those no read had left out, and in what order."""
    edges = zip(
        (0, *access.size_edges),
        (*access.size_edges, None),
        access.size_counts,
        access.size_nbytes,
        strict=True,
    )
    rows = tuple(
        (
            f"from {units.power_of_two(low)}" if high is None else f"< {units.power_of_two(high)}",
            Count(number),
            Bytes(nbytes),
        )
        for low, high, number, nbytes in edges
        if number
    )
    if rows:
        columns = (Column("size"), Column("reads"), Column("bytes"))
        yield Table("Reads by size", columns, rows)
    yield from sentences(storage_lines.access_lines(access, sanity))
