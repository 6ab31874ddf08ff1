"""What storage did, as the page shows it: bytes by who counted them, stages that read, reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import storage_lines, units
from iobench.report.storage_tables import short_path, size_table
from iobench.report.webpage.page_tables import PageTable, plain_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.report.run_report import RunReport
    from iobench.report.webpage.figures import PageFigures

__all__ = ["access_sentences", "storage_part_tables", "storage_sentences"]

MOST_ROWS: Final = {"run": 1, "process": 16, "file": 24}
LONGEST_NAME: Final = 44


def storage_sentences(report: RunReport) -> Iterator[str]:
    """Yield how much a tracer saw, and why counts differ."""
    stored, trace = report.storage, report.trace
    if stored is None or not stored.rows:
        if trace is not None:
            yield from storage_lines.untold_lines(trace, many=stored is None)
        return
    if stored.placement is not None and trace is not None:
        yield from storage_lines.coverage_lines(stored.placement, trace)
        yield from storage_lines.clock_lines(stored.placement, report.who)
    elif trace is not None:
        yield from (*trace.refused, *trace.notes)
    yield from storage_lines.gap_lines(stored.rows)
    costs = storage_lines.wait_line(stored)
    if costs is not None:
        yield costs


def access_sentences(report: RunReport) -> Iterator[str]:
    """Yield in what order and sizes was read."""
    stored = report.storage
    if stored is not None and stored.rows and stored.access is not None:
        yield from storage_lines.access_lines(stored.access, stored.sanity)


def storage_part_tables(report: RunReport, figures: PageFigures, path: str) -> Iterator[PageTable]:
    """Yield the tables of what storage did."""
    stored = report.storage
    if stored is None or not stored.rows:
        return
    yield _bytes_table(figures, path)
    if stored.stages:
        yield _storage_stages_table(figures, path)
    if stored.costliest:
        yield _reads_table(figures, path)
    if stored.access is not None:
        yield plain_table(size_table(stored.access))


def _bytes_table(figures: PageFigures, run: str) -> PageTable:
    """Return bytes read by the run, its processes and files, by who counted them."""
    traced = figures.value(f"{run}.storage.traced") is not None
    names = {"asked": "asked by stages"}
    if traced:
        names |= {"posix": "POSIX", "stdio": "STDIO", "segments": "segments"}
    names |= {"rchar": "any read call", "device": "from the device"}
    left = dict(MOST_ROWS)
    rows, more = [], 0
    for place, row in enumerate(figures.value(f"{run}.storage.bytes") or ()):
        left[row["scope"]] -= 1
        if left[row["scope"]] < 0:
            more += 1
            continue
        path = f"{run}.storage.bytes.{place}"
        name = short_path(row["name"], LONGEST_NAME) if row["scope"] == "file" else row["name"]
        cells = (figures(f"{path}.{each}_nbytes", "nbytes") for each in names)
        gaps = storage_lines.gaps_word([gap["name"] for gap in row["gaps"]], settled=row["settled"])
        rows.append((name, *cells, gaps))
    return PageTable(
        "Bytes read, by who counted them",
        ("", *names.values(), "gaps"),
        tuple(rows),
        note=f"{units.count(more)} more files and processes are in the JSON." if more else "",
    )


def _storage_stages_table(figures: PageFigures, run: str) -> PageTable:
    """Return how much of each stage that read was storage."""
    stages = figures.value(f"{run}.storage.stages") or ()
    traced = any(row["storage_s"] is not None for row in stages)
    rows = [f"{run}.storage.stages.{place}" for place in range(len(stages))]
    names = ("busy_s", "storage_s", "rest_s") if traced else ("busy_s",)
    unit, texts = figures.column([f"{row}.{name}" for row in rows for name in names])
    heads = [f"{name.removesuffix('_s')} {unit}" for name in names]
    return PageTable(
        "Storage inside the stages that read" if traced else "Stages that read",
        ("stage", *heads, "off the CPU", "handed on", "bytes are"),
        tuple(
            (
                figures(f"{row}.stage", "text"),
                *texts[len(names) * place : len(names) * (place + 1)],
                figures(f"{row}.off_cpu_s", "duration"),
                figures(f"{row}.nbytes", "nbytes"),
                figures(f"{row}.verdict", "text"),
            )
            for place, row in enumerate(rows)
        ),
        note="Where a stage has reads nobody placed, the rest is at most this."
        if any(row["rest_is_bound"] for row in stages)
        else "",
    )


def _reads_table(figures: PageFigures, run: str) -> PageTable:
    """Return the reads that the training loop waited for longest."""
    reads = figures.value(f"{run}.storage.costliest_reads") or ()
    rows = [f"{run}.storage.costliest_reads.{place}" for place in range(len(reads))]
    paths = [f"{row}.{name}" for row in rows for name in ("duration_s", "exposed_s")]
    unit, texts = figures.column(paths)
    return PageTable(
        "Reads that were waited for longest",
        ("file", "by", "offset", "size", f"took {unit}", f"exposed {unit}"),
        tuple(
            (
                short_path(read["file"] or units.UNKNOWN, LONGEST_NAME),
                figures(f"{row}.process", "text"),
                figures(f"{row}.offset", "count"),
                figures(f"{row}.nbytes", "nbytes"),
                *texts[2 * place : 2 * place + 2],
            )
            for place, (row, read) in enumerate(zip(rows, reads, strict=True))
        ),
    )
