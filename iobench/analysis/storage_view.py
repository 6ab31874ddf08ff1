"""What storage did in a run: the figures of a profile and of what a tracer saw of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.analysis.storage_figures import StorageFigures
from iobench.analysis.storage_ledger import byte_rows
from iobench.analysis.storage_stages import stage_storage
from iobench.analysis.windows import profile_of_loop

if TYPE_CHECKING:
    from iobench.profiles import Profile
    from iobench.storage.traces import StorageTrace

__all__ = ["storage_figures"]


def storage_figures(
    profile: Profile, trace: StorageTrace | None, *, rank: int | None = None
) -> StorageFigures:
    """Return what storage did in a run of one training process.

    Parameters
    ----------
    profile : Profile
    trace : StorageTrace or None
        What a tracer saw of it; None leaves what ``/proc`` and the spans themselves tell.
    rank : int, optional
        Which training process; may be left out where only one recorded.

    Raises
    ------
    ProfileError
        If several training processes recorded and none is named.
    """
    profile = profile_of_loop(profile, rank)
    return StorageFigures(
        placement=None,
        rows=byte_rows(profile, None, None),
        stages=stage_storage(profile, None),
        costliest=(),
        access=None,
    )
