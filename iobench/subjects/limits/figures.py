"""How much of what storage can do a run used, by the limits that were kept of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from iobench.json_keys import HIDDEN, key
from iobench.storage.limit_figures import (
    CACHE,
    DEVICE,
    MEMORY,
    OWN_CACHE,
    SERVER,
    STORAGE,
    read_limits,
)
from iobench.subjects.storage.figures import storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import PartExposure
    from iobench.analysis.run import RankRun
    from iobench.storage.limit_figures import StorageLimits

__all__ = ["LimitUse", "limit_of", "limit_use"]

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
    served_by : tuple of str
        Who served those: one, or storage and the cache.
    threads : tuple of int
        How many read at once, of each.
    request_nbytes : int
        Size of a read.
    mount : str
        Where the files lie that were read.
    wall_ns : int
        When it was probed.
    order : str
        ``"random"`` or ``"sequential"``.
    """

    used_bytes_per_s: float
    limit_bytes_per_s: float
    served_by: tuple[str, ...]
    threads: tuple[int, ...]
    request_nbytes: int
    mount: str
    wall_ns: int = field(metadata=key("probed_wall_ns"))
    order: str = field(metadata=HIDDEN)


def limit_of(run: RankRun) -> LimitUse | None:
    """Return how a run is held against the kept limits of its storage, if there are any.

    A run that reads from several mounts is held against none: what it read of each is not counted.
    """
    facts, exposure = run.about, run.exposure
    limits: Sequence[StorageLimits] = read_limits(facts.storage_limits)
    if facts.mounts is not None:
        limits = _of_named_files(run, limits, facts.mounts)
    if len(limits) != 1:
        return None
    return limit_use(
        exposure.whole,
        limits[0],
        readers=max(1, exposure.workers or facts.threads),
        cold_fraction=exposure.whole.cold_fraction,
    )


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
    slowness, of = 0.0, []
    for figures, part in ((beyond, share), (cached, 1 - share)):
        if not part:
            continue
        if figures is None or not figures.bytes_per_s:
            return None
        slowness += part / figures.bytes_per_s
        of.append(figures)
    return LimitUse(
        used_bytes_per_s=window.read_nbytes / window.wall_ns * 1e9,
        limit_bytes_per_s=1 / slowness,
        served_by=tuple(each.served_by for each in of),
        threads=tuple(each.threads for each in of),
        request_nbytes=limits.request_nbytes,
        mount=limits.mount,
        wall_ns=limits.wall_ns,
        order=of[0].order,
    )


def _of_named_files(
    run: RankRun, limits: Sequence[StorageLimits], mounts_then: Sequence[str]
) -> tuple[StorageLimits, ...]:
    """Return the limits of the mount on which all files lie that a script's spans name."""
    storage = run.once(storage_of) if limits else None
    rows = storage.rows if storage is not None else ()
    names = [PurePath(row.name) for row in rows if row.scope == "file"]
    mounts = sorted(map(PurePath, mounts_then), key=lambda each: -len(each.parts))
    used = {
        str(next((mount for mount in mounts if name.is_relative_to(mount)), ""))
        for name in names
        if name.is_absolute()
    }
    if len(used) != 1:
        return ()
    return tuple(each for each in limits if each.mount in used)
