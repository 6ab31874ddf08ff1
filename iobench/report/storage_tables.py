"""The tables of what storage did: bytes by who counted them, storage inside stages, dear reads."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from iobench.masking import printable
from iobench.report import units
from iobench.report.storage_lines import gaps_word
from iobench.report.tables import NOT_APPLICABLE, TextTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.storage.storage_figures import (
        AccessFigures,
        ByteRow,
        ReadCost,
        StageStorage,
        StorageFigures,
    )

StorageLine = tuple[str, int, int | None, int | None, bool, tuple[str, str, str]]
__all__ = [
    "byte_table",
    "cost_table",
    "short_path",
    "size_table",
    "storage_stage_table",
]

MOST: Final = {"run": 1, "process": 8, "file": 5}
"""Rows shown of each scope, those with gaps that nothing explains first; JSON has them all."""
MOST_READS: Final = 10
LONGEST_NAME: Final = 26
NARROW_NAME: Final = 20
CUT: Final = ".../"
TRACED: Final = ("posix", "stdio", "segments")


def byte_table(figures: StorageFigures) -> TextTable:
    """Return bytes read by the run, its processes and files, one column for each who counted."""
    columns = ["asked", *(TRACED if figures.placement is not None else ()), "rchar", "device"]
    headings = {
        "asked": "asked by\nstages",
        "posix": "POSIX\n",
        "stdio": "STDIO\n",
        "segments": "segments\n",
        "rchar": "any read\ncall",
        "device": "from the\ndevice",
    }
    shown = [
        *_scope(figures.rows, "run"),
        *_scope(figures.rows, "process"),
        *_scope(figures.rows, "file"),
    ]
    processes = Counter(row.name.partition(" (")[0] for row in figures.rows)
    return TextTable(
        title=f"Bytes read{_left_out(figures.rows)}",
        columns=("", *(headings[name] for name in columns), "gaps\n"),
        rows=tuple(
            (
                _row_name(row, processes),
                *(units.nbytes(getattr(row, name)) for name in columns),
                gaps_word([gap.name for gap in row.gaps], settled=row.settled),
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


def storage_stage_table(stages: Sequence[StageStorage]) -> TextTable:
    """Return how much of each stage that read was storage, and where its bytes came from.

    Without a tracer nobody knows what of a stage was storage: then there are no such columns.
    """
    traced = any(row.storage_ns is not None for row in stages)
    shown = [line for row in stages for line in _storage_lines(row, traced=traced)]
    times = [value for line in shown for value in line[1:4]]
    unit, texts = units.durations(times)
    return TextTable(
        title="Storage inside the stages that read" if traced else "Stages that read",
        columns=(
            "stage",
            f"busy\n{unit}",
            *((f"storage\n{unit}", f"rest\n{unit}") if traced else ()),
            "off the\nCPU",
            "handed\non",
            "bytes\nare",
        ),
        rows=tuple(
            (
                name,
                busy,
                *((storage, f"<={rest}" if bound else rest) if traced else ()),
                *others,
            )
            for (name, _, _, _, bound, others), busy, storage, rest in zip(
                shown, texts[::3], texts[1::3], texts[2::3], strict=True
            )
        ),
    )


def _storage_lines(row: StageStorage, *, traced: bool) -> Iterator[StorageLine]:
    """Yield a stage, and where a tracer saw several processes do it, each of them below it."""
    others = (units.duration(row.off_cpu_ns), units.nbytes(row.nbytes), row.verdict)
    yield row.stage, row.busy_ns, row.storage_ns, row.rest_ns, row.rest_is_bound, others
    if traced and 1 < len(row.processes) <= MOST["process"]:
        for each in row.processes:
            rest_ns = None if each.storage_ns is None else each.busy_ns - each.storage_ns
            name = f"  {each.process.partition(' (')[0]}"
            yield name, each.busy_ns, each.storage_ns, rest_ns, row.rest_is_bound, ("", "", "")


def cost_table(reads: Sequence[ReadCost]) -> TextTable:
    """Return the reads that the training loop waited for longest."""
    shown = reads[:MOST_READS]
    unit, texts = units.durations(
        [value for read in shown for value in (read.duration_ns, read.exposed_ns)]
    )
    return TextTable(
        title="Reads that were waited for longest",
        columns=("file", "by\n", "offset\n", "size\n", f"took\n{unit}", f"exposed\n{unit}"),
        rows=tuple(
            (
                short_path(read.file) or units.UNKNOWN,
                read.process,
                units.count(_known(read.offset)),
                units.nbytes(_known(read.nbytes)),
                texts[2 * place],
                texts[2 * place + 1],
            )
            for place, read in enumerate(shown)
        ),
    )


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def size_table(access: AccessFigures) -> TextTable:
    """Return how many reads were of what size; sizes no read had are left out."""
    lows = (0, *access.size_edges)
    highs = (*access.size_edges, None)
    rows = []
    for low, high, number, nbytes in zip(
        lows, highs, access.size_counts, access.size_nbytes, strict=True
    ):
        if number:
            upper = f"from {units.power_of_two(low)}"
            if high is not None:
                upper = f"< {units.power_of_two(high)}"
            rows.append((upper, units.count(number), units.nbytes(nbytes)))
    return TextTable(
        title="Reads by size",
        columns=("size", "reads", "bytes"),
        rows=tuple(rows) or ((NOT_APPLICABLE, "0", "0 B"),),
    )
