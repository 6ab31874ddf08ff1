"""A thread's place in the span file, and the context managers that write to it.

Run once per span, and written for speed: no lock, no system call but the clocks'.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol, Self

from iobench.recording import span_file as layout

if TYPE_CHECKING:
    import mmap

    from iobench.recording.recorder import Recorder

NOWHERE: Final = layout.POSITION.pack(-1, -1, -1)

_pack_into: Final = layout.PREPARED_SPAN.pack_into
_pack_position: Final = layout.POSITION.pack


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
            _pack_into(
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
            _pack_into(
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
