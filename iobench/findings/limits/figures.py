"""How much of what storage can do a run used, by its own probes."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec.structs import replace

from iobench.errors import StorageError
from iobench.findings.storage.figures import storage_of
from iobench.json_keys import HIDDEN, figure, key
from iobench.storage.limit_figures import (
    CACHE,
    DEVICE,
    DIRECT,
    MEMORY,
    OWN_CACHE,
    SERVER,
    STORAGE,
    UNKNOWN,
    read_limits,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import PartExposure
    from iobench.analysis.run import RankRun
    from iobench.storage.limit_figures import ReadFigures, StorageLimits

BEYOND: Final = (DEVICE, SERVER, STORAGE)
CACHES: Final = (CACHE, OWN_CACHE, MEMORY)
COLD, WARM = 0.9, 0.1
"""A run with a larger cold share is held against the device, with a smaller one against the cache;
between them against both, in the run's proportion."""
ONE_PASS: Final = 1.1
"""Reading no more than this of its files, a run reads nothing twice that was cold before it."""
LEAST_TURNS: Final = 4
"""All turns of one probe slower than all of another: by chance once in 35 times of four, in 126 of
five."""
APART: Final = 1.25
"""And the medians by so much, since turns that follow each other are alike."""


class LimitUse(msgspec.Struct, frozen=True):
    """How much of what storage can do a run used.

    Parameters
    ----------
    used_bytes_per_s : float or None
        Bytes read over wall time.
    limit_bytes_per_s : float or None
        What the probe reached with reads served as the run's were, the mean of before and after;
        None where that is not known.
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
    probed : str
        ``"before and after"`` the run, ``"before"`` or ``"after"`` it; ``""`` without a probe.
    before_bytes_per_s, after_bytes_per_s : float or None
        What storage gave then, the page cache left out.
    changed : bool
        Whether these differ by more than chance: all turns of one, and its median by a quarter.
    storage_bytes_per_s, cache_bytes_per_s : float or None
        What was reached past the page cache or where it held nothing, and out of it.
    by_residency : bool
        Whether nobody counted what came from storage, and what the page cache held before tells.
    reason : str
        Why there is no limit.
    """

    used_bytes_per_s: float | None
    limit_bytes_per_s: float | None
    served_by: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    request_nbytes: int = 0
    mount: str = ""
    wall_ns: int = 0
    probed: str = ""
    before_bytes_per_s: float | None = None
    after_bytes_per_s: float | None = None
    changed: bool = False
    storage_bytes_per_s: float | None = None
    cache_bytes_per_s: float | None = None
    by_residency: bool = False
    reason: str = ""
    JSON_KEYS: ClassVar = {
        "wall_ns": key("probed_wall_ns"),
        "by_residency": HIDDEN,
    }

    @figure
    def used_fraction(self) -> float | None:
        """Share of the limit that was used; None where either is unknown."""
        if self.used_bytes_per_s is None or not self.limit_bytes_per_s:
            return None
        return self.used_bytes_per_s / self.limit_bytes_per_s


def limit_of(run: RankRun) -> LimitUse | None:
    """Return how a run is held against what its storage gave; None where it was not asked for."""
    facts = run.about
    before = read_limits(facts.storage_limits)
    if facts.storage_probed in ("before", "after") and before:
        after = read_limits([facts.storage_after])
        readers = max(1, run.exposure.workers or facts.threads)
        return _by_probes(run, before[0], after[0] if after else None, readers)
    if facts.no_storage_probe is None:
        return None
    return LimitUse(None, None, reason=facts.no_storage_probe)


def _by_probes(
    run: RankRun, first: StorageLimits, after: StorageLimits | None, readers: int
) -> LimitUse:
    """Return the use of what a run's own probes found, whatever is known of it."""
    window, probed = run.exposure.whole, str(run.about.storage_probed)
    cold, by_residency = window.cold_fraction, False
    if cold is None:
        cold = _cold_by_residency(run)
        by_residency = cold is not None
    both = [first] if after is None else [first, after]
    uses = [limit_use(window, each, readers=readers, cold_fraction=cold) for each in both]
    known = [use for use in uses if use is not None]
    beyond = [each.fastest(readers, *BEYOND) or _past(each) for each in both]
    cached = [each.fastest(readers, *CACHES) for each in both]
    use = known[0] if known else LimitUse(_rate(window), None, mount=first.mount)
    limit = sum(each.limit_bytes_per_s or 0 for each in known) / len(known) if known else None
    rates = [None if each is None else each.bytes_per_s for each in beyond]
    return replace(
        use,
        limit_bytes_per_s=limit,
        request_nbytes=first.request_nbytes,
        threads=use.threads or first.threads,
        wall_ns=first.wall_ns,
        probed=probed if after is None else "before and after",
        before_bytes_per_s=rates[0] if probed == "before" else None,
        after_bytes_per_s=rates[-1] if probed == "after" or after is not None else None,
        changed=after is not None and _differ(*beyond),
        storage_bytes_per_s=_mean(rates),
        cache_bytes_per_s=_mean([None if each is None else each.bytes_per_s for each in cached]),
        by_residency=by_residency,
        reason="" if known else _why(window, cold, first),
    )


def _rate(window: PartExposure) -> float | None:
    if not window.read_nbytes or not window.wall_ns:
        return None
    return window.read_nbytes / window.wall_ns * 1e9


def _mean(rates: Sequence[float | None]) -> float | None:
    known = [each for each in rates if each is not None]
    return sum(known) / len(known) if known else None


def _past(limits: StorageLimits) -> ReadFigures | None:
    """Return direct reads of whom nobody knows who served them."""
    found = (each for each in limits.reads if each.way == DIRECT and each.bytes_per_s)
    return next((each for each in found if each.served_by == UNKNOWN), None)


def _differ(before: ReadFigures | None, after: ReadFigures | None) -> bool:
    """Tell whether two probes of storage differ by more than chance: by their turns."""
    if before is None or after is None or before.way != after.way:
        return False
    turns = (before.turns_bytes_per_s, after.turns_bytes_per_s)
    if min(map(len, turns)) < LEAST_TURNS:
        return False
    slow, fast = sorted(turns, key=max)
    return max(slow) < min(fast) and median(fast) >= APART * median(slow)


def _cold_by_residency(run: RankRun) -> float | None:
    """Return 1 or 0 where the page cache held nothing, or all, before a run that tells no more."""
    facts, window = run.about, run.exposure.whole
    held = facts.cache.resident_fraction_before
    if held is None or not window.read_nbytes:
        return None
    if held >= COLD:
        return 0.0
    once = window.read_nbytes <= ONE_PASS * (facts.files_nbytes or 0)
    return 1.0 if held <= WARM and (once or facts.cache.asked == "cold") else None


def _why(window: PartExposure, cold: float | None, limits: StorageLimits) -> str:
    if not window.read_nbytes:
        return "the bytes that the run read were not counted"
    if cold is None:
        return "how much of it came from storage is unknown"
    refused = next((each.refused for each in limits.reads if each.refused), "")
    return refused or "the probe had no reads that were served in the same way"


def limit_use(
    window: PartExposure, limits: StorageLimits, *, readers: int, cold_fraction: float | None
) -> LimitUse | None:
    """Return the use that a part of a run made of its storage; None where it is unknown.

    A run that does not report where its bytes came from is held against no limit: the wrong one
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
        used_bytes_per_s=_rate(window),
        limit_bytes_per_s=1 / slowness,
        served_by=tuple(each.served_by for each in of),
        threads=tuple(each.threads for each in of),
        request_nbytes=limits.request_nbytes,
        mount=limits.mount,
        wall_ns=limits.wall_ns,
    )


def _file_of(name: str) -> str:
    """Return a row's file without the variable, as of ``x.nc:t2m`` and ``x.h5:/x``."""
    head, _, tail = name.rpartition(":")
    return head if head and not Path(name).exists() and tail else name


def shape_seen(run: RankRun) -> tuple[list[Path], int, int]:
    """Return what a script's process read: which files, in which size, how many at once.

    The size is the mean of the reads of that size class in which the middle byte was read.

    Raises
    ------
    StorageError
        If nobody saw it.
    """
    storage = run.cached(storage_of)
    rows = () if storage is None else storage.rows
    nbytes_of = {
        path: max(row.requested or 0, row.darshan or 0)
        for row in rows
        if row.scope == "file" and (path := Path(_file_of(row.name))).is_file()
    }
    most = max(nbytes_of.values(), default=0)
    files = [path for path, nbytes in nbytes_of.items() if nbytes >= most / 100]
    seen = sum(map(nbytes_of.__getitem__, files))
    access = None if storage is None else storage.access
    n_read = 0 if access is None else sum(access.size_nbytes)
    if access is None or not n_read or 2 * seen < n_read:
        raise StorageError(
            "which files were read, and in what sizes, was not seen; --darshan auto or --detail "
            "sample may show it"
        )
    sums = list(accumulate(access.size_nbytes))
    middle = next(place for place, done in enumerate(sums) if 2 * done >= sums[-1])
    nbytes = access.size_nbytes[middle] // access.size_counts[middle]
    return files, nbytes, max(1, run.exposure.workers or run.about.threads)
