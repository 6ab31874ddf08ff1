"""How many threads read a store ahead in a profile, where nobody said how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from iobench.loaders.planned_ring import HELD_BY_LOOP
from iobench.loaders.ring.probe_ahead import ahead_of
from iobench.storage.page_cache import evict

if TYPE_CHECKING:
    from iobench.profiling.config import RunConfig
    from iobench.profiling.formats import Prepared


def with_read_ahead(config: RunConfig, one: Prepared, batch_size: int) -> tuple[Prepared, str]:
    """Return what is to be measured with as many reader threads as its storage takes, and why.

    What was read to find that out is not in the page cache afterwards, where ``--cache cold`` asks
    for that.
    """
    if config.workers is not None or one.extents is None or not one.threads:
        return one, ""
    depth = max(one.prefetch, one.threads) + HELD_BY_LOOP
    choice = ahead_of(one.extents, batch_size, threads=one.threads, depth=depth)
    if choice is None:
        return one, ""
    if choice.speeds is not None and config.cache == "cold":
        evict(one.files)
    if choice.threads == one.threads:
        return one, ""
    return replace(one, threads=choice.threads), f"{choice.threads} threads: {choice.why}"
