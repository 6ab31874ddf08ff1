"""The recorder of one process: spans go into its file, and never disturb what is measured.

A span costs a few hundred nanoseconds, so the parts run per span are written for speed: no lock,
no system call, no call that can be avoided.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import struct
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from iobench.recording import span_file as layout
from iobench.recording.clocks import SYSTEM_CLOCK, Clock, mark_clock
from iobench.recording.kinds import WORKER_KINDS, Kind
from iobench.recording.rotation import Rotation
from iobench.recording.span_writer import SpanWriter, leave_mark, mark_losses, new_span_file
from iobench.recording.this_process import boot_id, host_name

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

PIECES_LIMIT: Final = 0xFFFF
SEQUENCE_LIMIT: Final = 0xFFFFFFFF - layout.SPANS_PER_CHUNK

NOWHERE: Final = layout.POSITION.pack(-1, -1, -1)

_pack_into: Final = layout.SPAN.pack_into
_pack_prepared: Final = layout.PREPARED_SPAN.pack_into
_pack_position: Final = layout.POSITION.pack
_open_recorders: Final[set[Recorder]] = set()


class Suspendable(Protocol):
    """A stage that is begun, in code that may be suspended inside of it."""

    def suspend(self, now_ns: int) -> None:
        """Write what was spent since it was begun or resumed."""

    def resume(self, now_ns: int) -> None:
        """Go on."""


class Lane:
    """Where one thread writes next, and the sample, batch and epoch it works on."""

    __slots__ = (
        "__weakref__", "bias", "buffer", "cpu_ns", "end", "foreign", "loading", "now_ns", "number",
        "offset", "open", "position", "quiet", "recorder", "tally",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, foreign: str = "") -> None:
        self.recorder = recorder
        self.foreign = foreign  # name of a thread that cannot record for itself
        self.now_ns = recorder.clock.now_ns
        self.cpu_ns = recorder.clock.cpu_ns
        self.quiet = 0  # above 0 where library spans would only repeat what is timed already
        self.loading = 0  # above 0 while the thread makes a batch
        # Where spans of libraries are noted as well: (kind, label, start, end, bytes).
        self.tally: list[tuple[int, str, int, int, int]] | None = None
        # Stages begun and not ended, outermost first, around a generator that yields samples.
        self.open: list[Suspendable] | None = None
        self.detach()

    def detach(self) -> None:
        """Write nowhere: the next span asks for a chunk."""
        self.number = 0
        self.buffer: mmap.mmap | bytearray = bytearray()
        self.offset = 0
        self.end = 0
        # sequence = (offset + bias) / 64: one number less to keep per span.
        self.bias = layout.RECORD_NBYTES
        self.position = NOWHERE

    def place(self, batch: int, epoch: int = -1, sample: int = -1) -> bytes:
        """Say what the thread works on, as `Recorder.position`; return it for ``position``."""
        try:
            self.position = packed = _pack_position(sample, batch, epoch)
        except struct.error:
            self.position = packed = NOWHERE
        return packed

    def suspend(self) -> None:
        """Write the time in the open stages so far: the code inside of them is suspended."""
        if self.open:
            now_ns = self.now_ns()
            for each in reversed(self.open):  # inner ones before what is around them
                each.suspend(now_ns)

    def resume(self) -> None:
        """Go on with the open stages."""
        for each in self.open or ():
            each.resume(self.now_ns())

    def write(self, start_ns: int, end_ns: int, nbytes: int, cpu_ns: int, described: bytes) -> None:
        """Write one span at the thread's position, as described by its recorder."""
        offset = self.offset
        if offset == self.end:
            if not self.recorder._refill(self):
                return
            offset = self.offset
        self.offset = offset + 64
        try:
            _pack_prepared(
                self.buffer, offset, start_ns, end_ns, nbytes, cpu_ns,
                self.position, described, (offset + self.bias) >> 6,
            )  # fmt: skip
        except (TypeError, ValueError, struct.error) as failure:
            self.recorder._refuse(self, offset, failure)


class Span:
    """Times the body of a ``with`` statement; ``nbytes``, -1 if unknown, may be set meanwhile."""

    __slots__ = ("_described", "_lane", "_start_ns", "nbytes")

    def __init__(self, lane: Lane, described: bytes, nbytes: int) -> None:
        self._lane = lane
        self._described = described
        self.nbytes = nbytes

    def __enter__(self) -> Self:
        now_ns = self._lane.now_ns  # apart from its call, which Python 3.11 makes slower
        self._start_ns = now_ns()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        lane = self._lane
        now_ns = lane.now_ns
        end_ns = now_ns()
        # As in Recorder.emit, written out: calling it would cost a sixth of a span.
        offset = lane.offset
        if offset == lane.end:
            if not lane.recorder._refill(lane):
                return
            offset = lane.offset
        lane.offset = offset + 64
        try:
            _pack_prepared(
                lane.buffer, offset, self._start_ns, end_ns, self.nbytes, -1,
                lane.position, self._described, (offset + lane.bias) >> 6,
            )  # fmt: skip
        except (TypeError, ValueError, struct.error) as failure:
            lane.recorder._refuse(lane, offset, failure)


class FullSpan(Span):
    """A span with its thread's CPU time: two system calls more."""

    __slots__ = ("_start_cpu_ns",)

    def __enter__(self) -> Self:
        lane = self._lane
        now_ns = lane.now_ns
        read_cpu_ns = lane.cpu_ns
        self._start_ns = now_ns()
        # Inside the wall times, so that the CPU time never exceeds them.
        self._start_cpu_ns = read_cpu_ns()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        lane = self._lane
        now_ns = lane.now_ns
        read_cpu_ns = lane.cpu_ns
        cpu_ns = read_cpu_ns() - self._start_cpu_ns
        lane.write(self._start_ns, now_ns(), self.nbytes, cpu_ns, self._described)


class Recorder:
    """Writes the spans of this process into one file; safe from any thread, and across forks.

    A forked child writes to a file of its own, opened at its first span, with role ``"child"``.
    Where no space is left, recording stops and ``lost`` counts; nothing is ever raised into the
    code that is measured.
    """

    __slots__ = (
        "__weakref__", "_closed", "_descriptions", "_kind_descriptions", "_lane_count", "_lanes",
        "_local", "_lock", "_mark", "_stages", "_strings", "_writer", "clock", "directory",
        "failure", "lost", "n_parts", "once_ns", "own_ns", "path", "rank", "role", "rotation",
        "spool", "worker",
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,  # where the span file belongs; made if missing
        *,
        role: str,
        worker: int = -1,  # number of the loading process
        rank: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        spool: Path | None = None,  # where the file lies until it is gathered
        at_first_span: bool = False,  # open the file then: a process without any leaves none
        rotation: Rotation | None = None,  # how much is kept; by default all
    ) -> None:
        self.directory = Path(directory)
        self.role = role
        self.worker = worker
        self.rank = rank
        self.clock = clock
        self.spool = spool
        self.rotation = rotation or Rotation(0, None)
        self._strings: dict[str, int] = {}
        self._descriptions: dict[tuple[int, str, str], bytes] = {}
        self._kind_descriptions: dict[int, bytes] = {}
        self._stages: dict[str, bytes] = {}
        self._lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._closed = False
        self._forget_file()
        if not at_first_span:
            self._open()
        _open_recorders.add(self)

    def _forget_file(self) -> None:
        self._local = threading.local()
        # Re-entrant: a signal handler or finaliser that records must not wait for its own thread.
        self._lock = threading.RLock()
        self._writer: SpanWriter | None = None
        self._lane_count = 0
        self.lost = 0  # spans that could not be written
        self._mark: Path | None = None
        # What recording took of this process's time, as those who record measure it.
        self.once_ns = self.own_ns = 0
        self.n_parts = 0  # spans of parts of a step, which say nothing of batches
        self.path: Path | None = None  # the file being written
        self.failure: str | None = None  # why recording stopped, in one line

    # -- the file -------------------------------------------------------------------------

    def _open(self) -> None:
        """Make the file and write what strings there are; on failure only count from now on."""
        try:
            self._writer = new_span_file(
                self.directory, self.spool, self._identity(), self.rotation.segment_nbytes
            )
            self.path = self._writer.path
            for text, number in self._strings.items():
                self._writer.string(number, text)
            mark_clock(self.directory, self.clock)
        except OSError as error:
            self._fail(error)

    def _identity(self) -> layout.Identity:
        return layout.Identity(
            pid=os.getpid(), ppid=os.getppid(), rank=self.rank, worker=self.worker, role=self.role,
            host=host_name(), boot_id=boot_id(), monotonic_ns=self.clock.now_ns(),
            wall_ns=self.clock.wall_ns(),
        )  # fmt: skip

    def _fail(self, error: OSError) -> None:
        where = self.path or (self.spool or self.directory)
        self.failure = f"{where}: {error.strerror or error}; further spans are counted as lost"
        folders = [self.directory, *([] if self.spool is None else [self.spool])]
        self._mark = leave_mark(folders, host_name(), self.rank, error)
        logger.warning("recording stopped: %s", self.failure)

    def _lose(self) -> None:
        with self._lock:
            self.lost += 1
            if self._writer is not None:
                self._writer.write_lost(self.lost)

    def close(self) -> None:
        """Cut the file to its size and mark it closed; spans after this are lost. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _open_recorders.discard(self)
            if self._mark is not None:
                mark_losses(self._mark, self.lost)
            writer, self._writer = self._writer, None
            if writer is None:
                return
            try:
                writer.write_own(self.once_ns, self.own_ns)
                writer.close(self.clock.now_ns(), self.clock.wall_ns())
            except OSError as error:
                self._fail(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def _after_fork_in_child(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
        # A span begun before the fork ends in the child as well: not in the parent's file.
        for lane in self._lanes:
            lane.detach()
        parent = self.path
        self._forget_file()
        self.role = "child"
        self.worker = -1
        self.rotation = Rotation(self.rotation.keep_nbytes, self.rotation.loop or parent)

    def drop(self) -> None:
        """Drop spans that are not to stay, as the training loop says."""
        with self._lock:
            writer = self._writer
            if writer is not None and not self._closed:
                live = {each.number for each in self._lanes}
                busy = {chunk for lane, chunk in writer.newest.items() if lane in live}
                texts = {number: text for text, number in self._strings.items()}
                self.rotation.drop(writer, texts, busy)

    # -- lanes and strings ----------------------------------------------------------------

    def _open_lane(self) -> Lane:
        lane = Lane(self)
        with self._lock:
            self._lanes.add(lane)
        self._local.lane = lane
        return lane

    def lane(self) -> Lane:
        """Return the calling thread's place in the file: for spans written by `Lane.write`."""
        try:
            lane: Lane = self._local.lane
        except AttributeError:
            lane = self._open_lane()
        return lane

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Let this thread's own opening and reading of files be no spans."""
        lane = self.lane()
        lane.quiet += 1
        try:
            yield
        finally:
            lane.quiet -= 1

    def _refill(self, lane: Lane) -> bool:
        """Give the thread a new chunk; False, with the span counted as lost, if there is none."""
        with self._lock:
            if self._writer is None and self.failure is None and not self._closed:
                # Making our own file must not ask for a span, which would ask for the file.
                lane.quiet += 1
                self._open()
                lane.quiet -= 1
            writer = self._writer
            if writer is None or self.failure is not None or self._closed:
                self._lose()
                return False
            if not lane.number:
                self._lane_count += 1
                lane.number = self._lane_count
            sequence = (lane.offset + lane.bias) // layout.RECORD_NBYTES
            if sequence > SEQUENCE_LIMIT:
                sequence = 1
                self._lane_count += 1
                lane.number = self._lane_count
            thread = (0, lane.foreign)
            if not lane.foreign:
                thread = (threading.get_native_id(), threading.current_thread().name)
            writer.write_own(self.once_ns, self.own_ns)
            try:
                buffer, offset = writer.chunk(layout.SPANS, lane.number, sequence, thread)
            except OSError as error:
                self._fail(error)
                self._lose()
                return False
            lane.buffer = buffer
            lane.bias = sequence * layout.RECORD_NBYTES - offset
            lane.end = offset + layout.SPANS_PER_CHUNK * layout.RECORD_NBYTES
            lane.offset = offset
            self.rotation.chunk_taken(self, writer)
            return True

    def string(self, text: str) -> int:
        """Return the number of a text in this process's string table; 0 for ``""``."""
        if not text:
            return 0
        known = self._strings.get(text)
        if known is not None:
            return known
        with self._lock:
            number = self._strings.get(text)
            if number is not None:
                return number
            number = len(self._strings) + 1
            self._strings[text] = number
            if self._writer is not None and self.failure is None and not self._closed:
                try:
                    self._writer.string(number, text)
                except OSError as error:
                    self._fail(error)
            return number

    def described(self, kind: int, label: str = "", detail: str = "") -> bytes:
        """Return what `Lane.write` needs to know of a span but its times."""
        known = self._descriptions.get((kind, label, detail))
        return self._describe(kind, label, detail) if known is None else known

    def _describe(self, kind: int, label: str, detail: str) -> bytes:
        described = layout.DESCRIPTION.pack(self.string(detail), self.string(label), kind, 0, 1)
        self._descriptions[kind, label, detail] = described
        if not label and not detail:
            self._kind_descriptions[kind] = described
        return described

    def _describe_stage(self, name: str) -> bytes:
        kind, label = _KINDS_BY_NAME.get(name), ""
        if kind is None:
            steps = name.split("+")
            fused = len(steps) > 1 and _LOADING.issuperset(steps)
            kind, label = Kind.FUSED if fused else Kind.PREPROCESS, name
        described = self._describe(kind, label, "")
        self._stages[name] = described
        return described

    # -- spans ----------------------------------------------------------------------------

    def position(self, batch: int, epoch: int = -1, sample: int = -1) -> None:
        """Say what the calling thread works on: its spans carry it until the next call."""
        try:
            lane: Lane = self._local.lane
        except AttributeError:
            lane = self._open_lane()
        try:
            lane.position = layout.POSITION.pack(sample, batch, epoch)
        except struct.error:
            lane.position = NOWHERE

    def where(self) -> tuple[int, int, int]:
        """Return the sample, batch and epoch that the calling thread works on; -1 is unknown."""
        sample, batch, epoch = layout.POSITION.unpack(self.lane().position)
        return sample, batch, epoch

    def emit(
        self,
        kind: int,
        start_ns: int,
        end_ns: int,
        nbytes: int = -1,
        cpu_ns: int = -1,
        batch: int = -1,
        epoch: int = -1,
        sample: int = -1,
        label: int = 0,
        detail: int = 0,
        flags: int = 0,
        pieces: int = 1,
    ) -> None:
        """Write one span whose times are known; exactly what is given, not the position.

        ``label`` and ``detail`` are numbers from :meth:`string`. A value the record cannot hold
        makes the span a lost one; ``pieces`` saturates at 65535.
        """
        try:
            lane: Lane = self._local.lane
        except AttributeError:
            lane = self._open_lane()
        offset = lane.offset
        if offset == lane.end:
            if not self._refill(lane):
                return
            offset = lane.offset
        # Before the record is written: a signal handler that records then takes the next place.
        lane.offset = offset + 64
        try:
            _pack_into(
                lane.buffer, offset, start_ns, end_ns, nbytes, cpu_ns, sample, batch, epoch,
                detail, label, kind, flags, pieces if pieces < 65536 else PIECES_LIMIT,
                (offset + lane.bias) >> 6,
            )  # fmt: skip
        except (TypeError, ValueError, struct.error) as error:
            self._refuse(lane, offset, error)

    def note_wait(self, requested_ns: int, number: int, epoch: int) -> None:
        """Note that a wait of this pass and epoch has begun; 0 that none has."""
        writer = self._writer
        if writer is not None:
            try:  # noqa: SIM105 - once for each batch
                writer.write_request(requested_ns, number, epoch)
            except (ValueError, struct.error):  # another thread has closed it
                pass

    def foreign_lane(self, name: str) -> Lane:
        """Return a new place for spans of a thread that cannot record itself, called ``name``."""
        lane = Lane(self, name or "foreign")
        with self._lock:
            self._lanes.add(lane)
        return lane

    def emit_on(self, lane: Lane, kind: int, start_ns: int, end_ns: int, **more: int) -> None:
        """Write one span as `emit` does, with its keywords, on a lane of `foreign_lane`."""
        local = self._local
        own: Lane | None = getattr(local, "lane", None)
        local.lane = lane
        try:
            self.emit(kind, start_ns, end_ns, **more)
        finally:
            if own is None:
                del local.lane
            else:
                local.lane = own

    def _refuse(self, lane: Lane, offset: int, error: Exception) -> None:
        """Count a span that cannot be written: the file is closed, or a value does not fit."""
        if isinstance(error, struct.error) and not self._closed:
            logger.warning("span lost, a value does not fit its record: %s", error)
            lane.buffer[offset : offset + layout.RECORD_NBYTES] = bytes(layout.RECORD_NBYTES)
            if lane.offset == offset + layout.RECORD_NBYTES:
                lane.offset = offset
        self._lose()

    def span(self, kind: int, label: str = "", *, nbytes: int = -1, detail: str = "") -> Span:
        """Return a context manager that times its body: a light span at the thread's position."""
        try:
            if label or detail:
                described = self._descriptions[kind, label, detail]
            else:
                described = self._kind_descriptions[kind]
        except KeyError:
            described = self._describe(kind, label, detail)
        try:
            lane: Lane = self._local.lane
        except AttributeError:
            lane = self._open_lane()
        return Span(lane, described, nbytes)

    def full_span(
        self, kind: int, label: str = "", *, nbytes: int = -1, detail: str = ""
    ) -> FullSpan:
        """Return what :meth:`span` does, with the thread's CPU time: two system calls more."""
        return FullSpan(self.lane(), self.described(kind, label, detail), nbytes)


def close_recorders() -> None:
    """Close every recorder of this process: at its end, where nobody else does."""
    for recorder in list(_open_recorders):
        recorder.close()


def _after_fork_in_child() -> None:
    for recorder in _open_recorders:
        recorder._after_fork_in_child()


_KINDS_BY_NAME: Final = {kind.spelled: kind for kind in Kind}
_LOADING: Final = frozenset(kind.spelled for kind in WORKER_KINDS)

atexit.register(close_recorders)
os.register_at_fork(after_in_child=_after_fork_in_child)
