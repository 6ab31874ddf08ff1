"""What storage did in a run: its figures, from a profile and what a tracer saw of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np

from iobench.findings.storage.byte_rows import MMAP, ByteRow, byte_rows
from iobench.findings.storage.evidence import evidence_of
from iobench.findings.storage.read_sizes import AccessFigures, access_figures
from iobench.findings.storage.stage_storage import StageStorage, stage_storage
from iobench.json_keys import INLINE, figure, key
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import lane_keys

if TYPE_CHECKING:
    from iobench.analysis.placement.placed_calls import TraceCoverage
    from iobench.analysis.read_spans import ReadSpans
    from iobench.analysis.run import RankRun
    from iobench.storage.storage_trace import StorageTrace


class LogClock(msgspec.Struct, frozen=True):
    """How the clock of one log was set by that of its process.

    Parameters
    ----------
    process : str
        Its name.
    log : str
        The file.
    offset_ns : int
        By how much the log's times were moved.
    low_ns, high_ns : int
        What the marker allows.
    """

    process: str
    log: str
    offset_ns: int
    low_ns: int
    high_ns: int
    JSON_KEYS: ClassVar = {
        "offset_ns": key("offset_ns"),
        "low_ns": key("low_ns"),
        "high_ns": key("high_ns"),
    }


class TracedStorage(msgspec.Struct, frozen=True):
    """What Darshan saw of a run.

    Parameters
    ----------
    notes : tuple of str
        What else there is to know of the logs.
    clocks : tuple of LogClock
        Of the logs that are of the run.
    """

    coverage: TraceCoverage
    notes: tuple[str, ...]
    clocks: tuple[LogClock, ...]
    JSON_KEYS: ClassVar = {
        "coverage": INLINE,
    }


class SanityLine(msgspec.Struct, frozen=True):
    """MLPerf HPC's check: what reading an epoch should take, against what the epoch took.

    Parameters
    ----------
    nbytes : int
        Read in an epoch by all processes, for the batches of the training's loader.
    n_processes : int
        Processes and threads that read in an epoch; those made again for the next one count once.
    bytes_per_s : float
        Of one of them while it reads.
    epoch_s, wait_s : float
        What an epoch took, and how much of it the training loop waited.
    """

    nbytes: int
    n_processes: int
    bytes_per_s: float
    epoch_s: float
    wait_s: float
    JSON_KEYS: ClassVar = {
        "nbytes": key("epoch_nbytes"),
        "n_processes": key("processes"),
        "wait_s": key("epoch_wait_s"),
    }

    @figure.named("reading_s")
    def estimated_s(self) -> float:
        """Seconds of reading in an epoch: bytes / processes / bandwidth."""
        return self.nbytes / self.n_processes / self.bytes_per_s

    @property
    def fits(self) -> bool:
        """Whether the rest of the training is long enough to hide the reading."""
        return self.estimated_s <= self.epoch_s - self.wait_s


class StorageFigures(msgspec.Struct, frozen=True):
    """What storage did in a run of one training process.

    Parameters
    ----------
    traced : TracedStorage or None
        None without a tracer's logs.
    rows : tuple of ByteRow
        Bytes by who counted them: the run first, then processes, then files, largest first.
    stages : tuple of StageStorage
        The longest first.
    access : AccessFigures or None
        None where single reads are not known.
    sanity : SanityLine or None
        None where bytes, bandwidths or epochs are not known.
    untold : tuple of str
        Of logs that no figures are made of: how many there are and why, a line each.
    """

    traced: TracedStorage | None = None
    rows: tuple[ByteRow, ...] = ()
    stages: tuple[StageStorage, ...] = ()
    access: AccessFigures | None = None
    sanity: SanityLine | None = None
    untold: tuple[str, ...] = ()
    JSON_KEYS: ClassVar = {
        "rows": key("bytes"),
        "untold": key("not_evaluated"),
    }


UNCOUNTED: Final = "the run counted no bytes to compare them with"
TOO_MANY: Final = "not evaluated for jobs with so many training processes"


def storage_of(run: RankRun) -> StorageFigures | None:
    """Return what storage did in one training process of a run; None of one of many.

    Of what a tracer saw where it has a trace, else what ``/proc`` and the spans themselves tell.
    """
    trace = run.trace
    if run.is_one_of_many:
        return None if trace is None else StorageFigures(untold=_untold(trace, TOO_MANY))
    known = evidence_of(run)
    rows = byte_rows(known)
    return StorageFigures(
        traced=None if trace is None or run.placement is None else _traced(run, trace),
        rows=rows,
        stages=stage_storage(known),
        access=access_figures(
            known,
            read_nbytes=_read_in_loop(run, known.reading, rows),
            used_nbytes=run.exposure.whole.nbytes,
        ),
        sanity=_sanity(run, known.reading),
        untold=() if trace is None or rows else _untold(trace, UNCOUNTED),
    )


def _untold(trace: StorageTrace, why: str) -> tuple[str, ...]:
    found = f"Logs of {len(trace.processes):,} processes, not evaluated: {why}."
    return found, *trace.refused, *trace.notes


def _traced(run: RankRun, trace: StorageTrace) -> TracedStorage:
    placement = run.placement
    assert placement is not None
    return TracedStorage(
        coverage=placement.coverage,
        notes=trace.notes,
        clocks=tuple(
            LogClock(
                process=run.processes[each.process].name,
                log=str(trace.processes[each.trace].path),
                offset_ns=each.offset_ns,
                low_ns=each.low_ns,
                high_ns=each.high_ns,
            )
            for each in placement.processes
        ),
    )


def _read_in_loop(run: RankRun, reading: ReadSpans, rows: tuple[ByteRow, ...]) -> int | None:
    """Return the bytes read for the batches delivered: by the kernel's count, else as seen.

    What a script reads before its loop is in none of its batches.
    """
    counted = run.exposure.whole.read_nbytes
    if counted is not None:
        return counted
    batches = run.deliveries.batch
    inside = (
        np.isin(run.spans["batch"][reading.rows], batches[batches >= 0])
        & run.loop.mine[run.spans["process"][reading.rows]]
    )
    if inside.all():
        return _read_nbytes(rows)
    nbytes = reading.nbytes[inside]
    return None if (nbytes < 0).any() else int(nbytes.sum())


def _read_nbytes(rows: tuple[ByteRow, ...]) -> int | None:
    """Return the bytes of files that the run read: as Darshan saw, else the kernel, else spans."""
    if not rows:
        return None
    run = rows[0]
    counted = (run.darshan, run.read_calls, run.requested)
    if any(each.reason == MMAP for each in run.differences):
        return run.requested
    return next((each for each in counted if each is not None), None)


def _sanity(run: RankRun, reading: ReadSpans) -> SanityLine | None:
    """Check a whole epoch as MLPerf HPC does; None where none was run, or not what it read.

    An epoch is one of the training's own loader, all its batches delivered; what is read for
    other loaders, for evaluations, or before the loop, is in none.
    """
    deliveries, spans = run.deliveries, run.spans
    number, main = deliveries.of_epoch, deliveries.of_main & deliveries.trains
    complete = sorted(deliveries.complete_epochs)
    rows = np.flatnonzero(main & np.isin(number, complete))
    batches = deliveries.batch[rows]
    epoch = np.full(int(deliveries.batch.max(initial=-1)) + 2, -1, dtype=np.int64)
    epoch[batches[batches >= 0]] = number[rows][batches >= 0]  # the last one is of no batch
    inside = np.zeros(len(spans), dtype=bool)
    inside[reading.rows] = True
    inside &= run.loop.mine[spans["process"]] & (spans["batch"] < len(epoch) - 1)
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
        bytes_per_s=float(nbytes.sum() / busy_ns * 1e9),
        epoch_s=float(deliveries.wall_ns[rows].sum() / len(complete) / 1e9),
        wait_s=float(deliveries.wait_ns[rows].sum() / len(complete) / 1e9),
    )
