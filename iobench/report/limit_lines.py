"""What storage can do, as people read it: the probe's answer, and the line of a run's report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from iobench.report import units
from iobench.storage.limits.figures import (
    CACHE,
    DEVICE,
    MEMORY,
    OWN_CACHE,
    SERVER,
    STORAGE,
    ReadFigures,
    StorageLimits,
)

if TYPE_CHECKING:
    from iobench.analysis.figures import PartExposure
    from iobench.report.run_report import RunReport
    from iobench.storage.file_systems import FileSystem
    from iobench.storage.striping import FileLayout, StripedPart

__all__ = ["LimitUse", "limit_lines", "limit_to_json", "limit_use", "limits_lines"]

BEYOND: Final = (DEVICE, SERVER, STORAGE)
CACHES: Final = (CACHE, OWN_CACHE, MEMORY)
COLD, WARM = 0.9, 0.1
"""A run with a larger cold share is held against the device, with a smaller one against the cache;
between them against both, in the run's proportion."""
COLUMNS: Final = (
    *("reads", "threads", "served by", "bandwidth", "reads/s"),
    *("median", "90 %", "99 %", "longest", "cached before", "from storage"),
)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """How much of what storage can do a run used.

    Parameters
    ----------
    used_bytes_per_s : float
        Bytes read over wall time.
    limit_bytes_per_s : float
        What the probe reached with reads served as the run's were.
    of : tuple of ReadFigures
        The figures it is made of: one, or that of storage and that of the cache.
    limits : StorageLimits
    """

    used_bytes_per_s: float
    limit_bytes_per_s: float
    of: tuple[ReadFigures, ...]
    limits: StorageLimits


def limit_use(
    window: PartExposure, limits: StorageLimits, *, readers: int, cold_fraction: float | None
) -> LimitUse | None:
    """Return the use that a part of a run made of its storage; None where it cannot be told.

    A run that does not tell where its bytes came from is held against no limit: the wrong one
    would be off by a factor of ten.
    """
    if not window.read_nbytes or not window.wall_ns or cold_fraction is None:
        return None
    beyond = limits.fastest(readers, *BEYOND)
    cached = limits.fastest(readers, *CACHES)
    share = 0.0 if cold_fraction <= WARM else 1.0 if cold_fraction >= COLD else cold_fraction
    of = [(beyond, share), (cached, 1 - share)]
    slowness = 0.0
    for figures, part in of:
        rate = figures.bytes_per_s if figures is not None else None
        if part and not rate:
            return None
        slowness += part / rate if rate else 0.0
    return LimitUse(
        used_bytes_per_s=window.read_nbytes / window.wall_ns * 1e9,
        limit_bytes_per_s=1 / slowness,
        of=tuple(figures for figures, part in of if figures is not None and part),
        limits=limits,
    )


def limit_lines(report: RunReport) -> list[str]:
    """Return the line that holds a run against the kept limits of its storage, if there are any.

    A run that reads from several mounts has none: what it read of each is not counted.
    """
    use = _use(report)
    return [] if use is None else [_use_line(use)]


def limit_to_json(report: RunReport) -> dict[str, Any] | None:
    """Return the same for machines."""
    use = _use(report)
    if use is None:
        return None
    return {
        "used_bytes_per_s": use.used_bytes_per_s,
        "limit_bytes_per_s": use.limit_bytes_per_s,
        "served_by": [each.served_by for each in use.of],
        "threads": [each.threads for each in use.of],
        "request_nbytes": use.limits.request_nbytes,
        "mount": use.limits.mount,
        "probed_wall_ns": use.limits.wall_ns,
    }


def _use(report: RunReport) -> LimitUse | None:
    facts, exposure = report.facts, report.exposure
    limits = facts.storage_limits if facts.mounts is None else _limits_of_named_files(report)
    if len(limits) != 1:
        return None
    return limit_use(
        exposure.whole,
        limits[0],
        readers=max(1, exposure.workers or facts.threads),
        cold_fraction=exposure.whole.cold_fraction,
    )


def _limits_of_named_files(report: RunReport) -> tuple[StorageLimits, ...]:
    """Return the limits of the mount on which all files lie that a script's spans name."""
    rows = report.storage.rows if report.storage is not None else ()
    names = [PurePath(row.name) for row in rows if row.scope == "file"]
    mounts = sorted(map(PurePath, report.facts.mounts or ()), key=lambda each: -len(each.parts))
    used = {
        str(next((mount for mount in mounts if name.is_relative_to(mount)), ""))
        for name in names
        if name.is_absolute()
    }
    if len(used) != 1:
        return ()
    return tuple(each for each in report.facts.storage_limits if each.mount in used)


def _use_line(use: LimitUse) -> str:
    limits, first = use.limits, use.of[0]
    by = " and ".join(
        f"the {each.served_by}" if each.served_by in (CACHE, DEVICE, SERVER) else each.served_by
        for each in use.of
    )
    return (
        f"storage: {_of(use.used_bytes_per_s, use.limit_bytes_per_s)} "
        f"({first.order} reads of {units.nbytes(limits.request_nbytes)} from {by}, "
        f"{_threads(first.threads)}, by 'iobench limits' on {_date(limits.wall_ns)})."
    )


def _of(used: float, limit: float) -> str:
    """Return two rates, with one unit where they share it: "1.1 of 9.4 GB/s"."""
    used_text, limit_text = units.byte_rate(used), units.byte_rate(limit)
    value, _, unit = used_text.rpartition(" ")
    return f"{value if limit_text.endswith(f' {unit}') else used_text} of {limit_text}"


def limits_lines(
    limits: StorageLimits, file_system: FileSystem, layout: FileLayout | None
) -> Iterator[str]:
    """Yield what ``iobench limits`` prints."""
    mount = f" at {limits.mount}" if limits.mount else ""
    reach = "" if limits.reach == "unknown" else f", {limits.reach}"
    yield f"{limits.path}: {limits.file_system}{mount}{reach}; host {limits.host}"
    if file_system.doubt:
        yield f"In doubt: {file_system.doubt}."
    yield file_system.cold
    yield from _layout_lines(layout)
    like = f", as {limits.like}" if limits.like else ""
    files = "1 file" if limits.n_files == 1 else f"{units.count(limits.n_files)} files"
    yield (
        f"Reads of {units.nbytes(limits.request_nbytes)}{like}; "
        f"{files}, {units.nbytes(limits.files_nbytes)}; {_date(limits.wall_ns)}"
    )
    yield ""
    yield from _table([COLUMNS, *map(_row, limits.reads)])
    for each in limits.reads:
        if each.refused:
            yield f"{each.order}, {each.way}, {_threads(each.threads)}: {each.refused}"
    yield ""
    for opened in limits.opens:
        if opened.latency_ns:
            yield (
                f"Opens: {units.sample_rate(opened.opens_per_s)}/s by {_threads(opened.threads)}, "
                f"median {units.duration(opened.latency_ns[0])}, "
                f"longest {units.duration(opened.latency_ns[-1])}; names looked up before"
            )
    copies = ", ".join(
        f"{units.byte_rate(rate)} by {_threads(threads)}"
        for threads, rate in limits.memcpy_bytes_per_s.items()
    )
    yield f"Copies within memory: {copies or units.UNKNOWN}"
    notes = f" Note: {'; '.join(limits.notes)}." if limits.notes else ""
    yield (
        f"Took {units.duration(limits.spent_ns)}, read {units.nbytes(limits.read_nbytes)}, "
        f"wrote nothing.{notes}"
    )


def _row(figures: ReadFigures) -> tuple[str, ...]:
    cached = figures.device_nbytes
    told = None if cached is None or not figures.nbytes else cached / figures.nbytes
    latency = [units.duration(value) for value in figures.latency_ns] or ["-"] * 4
    if figures.refused:
        return (f"{figures.order}, {figures.way}", str(figures.threads), "-", *["-"] * 8)
    return (
        f"{figures.order}, {figures.way}",
        str(figures.threads),
        figures.served_by,
        units.byte_rate(figures.bytes_per_s),
        units.sample_rate(figures.reads_per_s),
        *latency,
        units.fraction(figures.resident_fraction),
        units.fraction(told),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if number in (0, 2) else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _layout_lines(layout: FileLayout | None) -> Iterator[str]:
    if layout is None:
        return
    yield "New files are laid out:" if layout.default else "Laid out:"
    for part in layout.parts:
        yield f"  {_part(part)}"


def _part(part: StripedPart) -> str:
    end = "the end" if part.end < 0 else units.nbytes(part.end)
    where = "" if part.start == 0 and part.end < 0 else f" from {units.nbytes(part.start)} to {end}"
    if part.pattern == "mdt":
        return f"with the metadata{where}"
    over = "all targets" if part.stripe_count < 0 else f"{part.stripe_count} targets"
    over = "1 target" if part.stripe_count == 1 else over
    return f"stripes of {units.nbytes(part.stripe_nbytes)} over {over}{where}"


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def _date(wall_ns: int) -> str:
    return f"{datetime.fromtimestamp(wall_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"
