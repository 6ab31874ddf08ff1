"""A thread's place in the span file, and the context managers that write to it.

Run once per span, and written for speed: no lock, no system call but the clocks'.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol, Self

from iobench.recording import span_file as layout

if TYPE_CHECKING:
    import mmap
    from types import TracebackType

    from iobench.recording.recorder import Recorder

NOWHERE: Final = layout.POSITION.pack(-1, -1, -1)

_pack_into: Final = layout.PREPARED_SPAN.pack_into
_pack_position: Final = layout.POSITION.pack


class Suspendable(Protocol):
    """A stage that is begun, in code that may be suspended inside of it."""

    def suspend(self, now_ns: int) -> None:
        """Write what was spent since it was begun or resumed."""
        ...

    def resume(self, now_ns: int) -> None:
        """Go on."""
        ...


class Lane:
    """Where one thread writes next, and the sample, batch and epoch it works on.

    Attributes
    ----------
    quiet : int
        Above 0 where spans from outside (``iobench.recording.outside``) would only repeat what
        is timed already: inside another one, or inside a stage named by its kind.
    loading : int
        Above 0 while the thread makes a batch, for spans from outside that are limited to it.
    foreign : str
        Name of a thread that cannot record for itself; ``""`` is the thread that writes.
    tally : list or None
        Where spans from outside are noted as well, as (kind, label, start, end, bytes), so that
        somebody can say what others will have had. None elsewhere.
    open : list of stages or None
        Stages that were begun and have not ended, outermost first, where the thread runs code that
        may be suspended inside of them: a generator that yields samples. None elsewhere.
    """

    __slots__ = (
        "__weakref__",
        "bias",
        "buffer",
        "cpu_ns",
        "end",
        "foreign",
        "loading",
        "now_ns",
        "number",
        "offset",
        "open",
        "position",
        "quiet",
        "recorder",
        "tally",
    )

    def __init__(self, recorder: Recorder, foreign: str = "") -> None:
        self.recorder = recorder
        self.foreign = foreign
        self.now_ns = recorder.clock.now_ns
        self.cpu_ns = recorder.clock.cpu_ns
        self.quiet = 0
        self.loading = 0
        self.tally: list[tuple[int, str, int, int, int]] | None = None
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
        """End what was spent in the open stages so far: the code inside of them is suspended."""
        if self.open:
            now_ns = self.now_ns()
            for each in reversed(self.open):  # inner ones before what is around them
                each.suspend(now_ns)

    def resume(self) -> None:
        """Go on with the stages that were open when the code inside of them was suspended."""
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
            _pack_into(
                self.buffer,
                offset,
                start_ns,
                end_ns,
                nbytes,
                cpu_ns,
                self.position,
                described,
                (offset + self.bias) >> 6,
            )
        except (TypeError, ValueError, struct.error) as failure:
            self.recorder._refuse(self, offset, failure)


class Span:
    """Times the body of a ``with`` statement; made by :meth:`Recorder.span`.

    Attributes
    ----------
    nbytes : int
        Bytes the stage handed on; -1 is unknown. May be set until the body ends.
    """

    __slots__ = ("_described", "_lane", "_start_ns", "nbytes")

    def __init__(self, lane: Lane, described: bytes, nbytes: int) -> None:
        self._lane = lane
        self._described = described
        self.nbytes = nbytes

    def __enter__(self) -> Self:
        now_ns = self._lane.now_ns  # apart from its call, which Python 3.11 makes slower
        self._start_ns = now_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            _pack_into(
                lane.buffer,
                offset,
                self._start_ns,
                end_ns,
                self.nbytes,
                -1,
                lane.position,
                self._described,
                (offset + lane.bias) >> 6,
            )
        except (TypeError, ValueError, struct.error) as failure:
            lane.recorder._refuse(lane, offset, failure)


class FullSpan(Span):
    """A span that also carries its thread's CPU time; made by :meth:`Recorder.full_span`."""

    __slots__ = ("_start_cpu_ns",)

    def __enter__(self) -> Self:
        lane = self._lane
        now_ns = lane.now_ns
        read_cpu_ns = lane.cpu_ns
        self._start_ns = now_ns()
        # Inside the wall times, so that the CPU time never exceeds them.
        self._start_cpu_ns = read_cpu_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lane = self._lane
        now_ns = lane.now_ns
        read_cpu_ns = lane.cpu_ns
        cpu_ns = read_cpu_ns() - self._start_cpu_ns
        end_ns = now_ns()
        offset = lane.offset
        if offset == lane.end:
            if not lane.recorder._refill(lane):
                return
            offset = lane.offset
        lane.offset = offset + 64
        try:
            _pack_into(
                lane.buffer,
                offset,
                self._start_ns,
                end_ns,
                self.nbytes,
                cpu_ns,
                lane.position,
                self._described,
                (offset + lane.bias) >> 6,
            )
        except (TypeError, ValueError, struct.error) as failure:
            lane.recorder._refuse(lane, offset, failure)
