"""How much of what its storage can do a run used: the line of its report, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass
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

__all__ = ["LimitUse", "limit_lines", "limit_to_json", "limit_use"]

BEYOND: Final = (DEVICE, SERVER, STORAGE)
CACHES: Final = (CACHE, OWN_CACHE, MEMORY)
COLD, WARM = 0.9, 0.1
"""A run with a larger cold share is held against the device, with a smaller one against the cache;
between them against both, in the run's proportion."""


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
        f"{_threads(first.threads)}, by 'iobench limits' on {units.moment(limits.wall_ns)})."
    )


def _of(used: float, limit: float) -> str:
    """Return two rates, with one unit where they share it: "1.1 of 9.4 GB/s"."""
    used_text, limit_text = units.byte_rate(used), units.byte_rate(limit)
    value, _, unit = used_text.rpartition(" ")
    return f"{value if limit_text.endswith(f' {unit}') else used_text} of {limit_text}"


def _threads(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"
