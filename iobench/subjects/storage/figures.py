"""What storage did in a run: the figures of a profile and of what a tracer saw of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.placement.placed_calls import UNSEEN, ByteRow, SanityLine, StorageFigures
from iobench.analysis.placement.placing import place_segments
from iobench.analysis.read_spans import counted_bytes, find_read_spans
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import lane_keys
from iobench.subjects.storage.access_patterns import access_figures
from iobench.subjects.storage.byte_ledger import byte_rows
from iobench.subjects.storage.named_files import NamedFiles
from iobench.subjects.storage.read_costs import costliest_reads
from iobench.subjects.storage.single_reads import find_single_reads
from iobench.subjects.storage.stage_storage import stage_storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.placement.placed_calls import Placement
    from iobench.analysis.read_spans import ReadSpans
    from iobench.analysis.run import RankRun
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["figures_of_placement", "storage_figures"]


def storage_figures(measured: RankRun) -> StorageFigures:
    """Return what storage did in one training process of a run.

    Of what a tracer saw where it has a trace, else what ``/proc`` and the spans themselves tell.
    Indices in what is returned are those of ``measured.profile``.
    """
    trace = measured.trace
    share, placement = measured.share, None
    if trace is not None:
        placement = place_segments(measured.profile, trace, share)
    return figures_of_placement(measured, trace, placement, share)


def figures_of_placement(
    measured: RankRun,
    trace: StorageTrace | None,
    placement: Placement | None,
    share: NDArray[np.float64],
) -> StorageFigures:
    """Return `storage_figures` with the trace's segments placed already.

    ``share`` is the exposed share of each span.
    """
    profile, exposure = measured.profile, measured.exposure
    names, reading = NamedFiles(profile, trace), find_read_spans(profile)
    counted = counted_bytes(profile, reading)
    rows = byte_rows(profile, trace, placement, names, reading, counted)
    reads = find_single_reads(profile, reading, share, names, trace, placement)
    timed = reads
    if placement is not None and not all(each.is_clock_known for each in placement.processes):
        timed = find_single_reads(profile, reading, share, names, trace, placement, timed=True)
    access = None
    if reads is not None:
        access = access_figures(
            profile,
            reads,
            timed,
            read_nbytes=_read_in_loop(measured, reading, rows),
            used_nbytes=exposure.whole.nbytes,
        )
    return StorageFigures(
        placement=placement,
        rows=rows,
        stages=stage_storage(profile, trace, placement, names, counted),
        costliest=costliest_reads(profile, timed) if timed else (),
        access=access,
        sanity=_sanity(measured, reading),
    )


def _read_in_loop(measured: RankRun, reading: ReadSpans, rows: tuple[ByteRow, ...]) -> int | None:
    """Return the bytes read for the batches delivered: by the kernel's count, else as seen.

    What a script reads before its loop is in none of its batches.
    """
    counted = measured.exposure.whole.read_nbytes
    if counted is not None:
        return counted
    batches = measured.deliveries.batch
    inside = (
        np.isin(measured.profile.spans["batch"][reading.rows], batches[batches >= 0])
        & measured.loop.mine[measured.profile.spans["process"][reading.rows]]
    )
    if inside.all():
        return _read_nbytes(rows)
    nbytes = reading.nbytes[inside]
    return None if (nbytes < 0).any() else int(nbytes.sum())


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


def _sanity(measured: RankRun, reading: ReadSpans) -> SanityLine | None:
    """Check a whole epoch as MLPerf HPC does; None where none was measured, or not what it read.

    An epoch is one of the training's own loader, all its batches delivered; what is read for
    other loaders, or before the loop, is in none.
    """
    deliveries, spans = measured.deliveries, measured.profile.spans
    number, main = deliveries.of_epoch, deliveries.of_main
    complete = sorted(deliveries.complete_epochs)
    rows = np.flatnonzero(main & np.isin(number, complete))
    batches = deliveries.batch[rows]
    epoch = np.full(int(deliveries.batch.max(initial=-1)) + 2, -1, dtype=np.int64)
    epoch[batches[batches >= 0]] = number[rows][batches >= 0]  # the last one is of no batch
    inside = np.zeros(len(spans), dtype=bool)
    inside[reading.rows] = True
    inside &= measured.loop.mine[spans["process"]] & (spans["batch"] < len(epoch) - 1)
    of_read = epoch[np.where(inside, spans["batch"], -1)[reading.rows]]
    read, nbytes = spans[reading.rows][of_read >= 0], reading.nbytes[of_read >= 0]
    guessed = np.unique(spans["batch"][(spans["flags"] & Flag.ESTIMATED) != 0])
    unseen = np.setdiff1d(np.intersect1d(guessed, batches), read["batch"])
    if not nbytes.sum() or (nbytes < 0).any() or len(unseen):
        return None
    lane = lane_keys(read)
    reads_of = np.unique(np.stack([of_read[of_read >= 0], lane]), axis=1)[0]
    busy_ns = int((read["end_ns"] - read["start_ns"])[nbytes > 0].sum())
    if not busy_ns:
        return None
    return SanityLine(
        nbytes=int(nbytes.sum()) // len(complete),
        n_processes=int(np.unique(reads_of, return_counts=True)[1].max()),
        bandwidth=float(nbytes.sum() / busy_ns * 1e9),
        epoch_s=float(deliveries.wall_ns[rows].sum() / len(complete) / 1e9),
        wait_s=float(deliveries.wait_ns[rows].sum() / len(complete) / 1e9),
    )
