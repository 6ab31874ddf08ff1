"""What storage did in a run: the figures of a profile and of what a tracer saw of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.analysis.storage.access_patterns import access_figures, sanity_line
from iobench.analysis.storage.byte_ledger import byte_rows
from iobench.analysis.storage.named_files import NamedFiles
from iobench.analysis.storage.placing import place_segments
from iobench.analysis.storage.read_costs import costliest_reads
from iobench.analysis.storage.read_spans import counted_bytes, find_read_spans
from iobench.analysis.storage.single_reads import find_single_reads
from iobench.analysis.storage.stage_storage import stage_storage
from iobench.analysis.storage.storage_figures import UNSEEN, ByteRow, SanityLine, StorageFigures
from iobench.analysis.windows import MeasuredRank, measure_rank

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.analysis.figures import Exposure
    from iobench.analysis.storage.storage_figures import Placement
    from iobench.profiles import Profile
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["figures_of_placement", "storage_figures", "storage_of_rank"]


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
        Which training process; may be left out where only one recorded. Indices in what is
        returned are those of ``profile.of_rank(rank)``.

    Raises
    ------
    ProfileError
        If several training processes recorded and none is named, or the waits of one overlap.
    """
    return storage_of_rank(measure_rank(profile, rank=rank), trace)


def storage_of_rank(measured: MeasuredRank, trace: StorageTrace | None) -> StorageFigures:
    """Return `storage_figures` of a training process that is analysed already."""
    share, placement = measured.share(), None
    if trace is not None:
        placement = place_segments(measured.profile, trace, share)
    return figures_of_placement(measured, trace, placement, share)


def figures_of_placement(
    measured: MeasuredRank,
    trace: StorageTrace | None,
    placement: Placement | None,
    share: NDArray[np.float64],
) -> StorageFigures:
    """Return `storage_of_rank` with the trace's segments placed already.

    ``share`` is the exposed share of each span.
    """
    profile, exposure = measured.profile, measured.exposure
    names, reading = NamedFiles(profile, trace), find_read_spans(profile)
    counted = counted_bytes(profile, reading)
    rows = byte_rows(profile, trace, placement, names, reading, counted)
    read_nbytes = _read_nbytes(rows)
    reads = find_single_reads(profile, reading, share, names, trace, placement)
    timed = reads
    if placement is not None and not all(each.is_clock_known for each in placement.processes):
        timed = find_single_reads(profile, reading, share, names, trace, placement, timed=True)
    access = None
    if reads is not None:
        access = access_figures(
            profile, reads, timed, read_nbytes=read_nbytes, used_nbytes=exposure.whole.nbytes
        )
    return StorageFigures(
        placement=placement,
        rows=rows,
        stages=stage_storage(profile, trace, placement, names, counted),
        costliest=costliest_reads(profile, timed) if timed else (),
        access=access,
        sanity=_sanity(exposure, read_nbytes, access.bandwidths if access else ()),
    )


def _read_nbytes(rows: tuple[ByteRow, ...]) -> int | None:
    """Return the bytes of files that the run read: as a tracer saw, else the kernel, else spans."""
    if not rows:
        return None
    run = rows[0]
    gaps = {gap.name: gap.nbytes for gap in run.gaps}
    if "mapping" in gaps:
        return run.asked
    traced = run.segments if run.posix is None else run.posix + (run.stdio or 0)
    unseen = any(gap.name in UNSEEN and gap.between[1] == "asked" for gap in run.gaps)
    if traced is not None and not unseen:
        return traced - (gaps.get("stray segments", 0) if run.posix is not None else 0)
    return run.rchar if run.rchar is not None else run.asked


def _sanity(
    exposure: Exposure, nbytes: int | None, bandwidths: tuple[tuple[str, float], ...]
) -> SanityLine | None:
    """Check the run as MLPerf HPC does; a round of its main loader is an epoch."""
    n_rounds = exposure.loaders[0].n_rounds if len(exposure.loaders) == 1 else exposure.n_rounds
    if not n_rounds or nbytes is None:
        return None
    return sanity_line(nbytes // n_rounds, bandwidths, exposure.whole.wall_ns / n_rounds / 1e9)
