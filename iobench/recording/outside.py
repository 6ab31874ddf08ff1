"""Spans of calls of libraries whose caller named no stage, where the process loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import numpy as np

from iobench.recording import activation
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS, is_one_of
from iobench.recording.span_file import RECORD_NBYTES, SPAN_DTYPE, SPANS_PER_CHUNK

if TYPE_CHECKING:
    from iobench.recording.recorder import Lane, Recorder

# A text stays in the span file's table for good, and a training may open files without end.
DETAIL_LIMIT: Final = 4096
_READ: Final = READING_KINDS | MIXED_KINDS


def thread_lane() -> Lane | None:
    """Return the calling thread's lane of the active recorder; None without one."""
    recorder = activation._active
    return None if recorder is None else recorder.lane()


def outside_lane(recorder: Recorder, everywhere: bool, inside: bool = False) -> Lane | None:
    """Return the thread's lane if a call about to be made is to be timed, ``inside`` of stages."""
    try:
        lane: Lane = recorder._local.lane
    except AttributeError:
        lane = recorder._open_lane()
    if (lane.quiet and not inside) or not (
        everywhere or lane.loading or recorder.role != "consumer"
    ):
        return None
    return lane


def describe(recorder: Recorder, kind: int, label: str, detail: str) -> bytes:
    """Return what `Lane.write` needs, without a detail that is new when there are many already."""
    described = recorder._descriptions.get((kind, label, detail))
    if described is not None:
        return described
    if len(recorder._strings) >= DETAIL_LIMIT and detail not in recorder._strings:
        detail = ""
    return recorder.described(kind, label, detail)


class OutsideSpan:
    """Times a ``with`` statement; kind (0 is not written), label, detail, nbytes may be set."""

    __slots__ = (
        "_chunk", "_cpu_ns", "_end_ns", "_hiding", "_start_ns", "_with_cpu", "detail", "kind",
        "label", "lane", "nbytes",
    )  # fmt: skip

    def __init__(self, lane: Lane, kind: int, label: str, with_cpu: bool, hiding: bool) -> None:
        self.lane = lane
        self.kind = kind
        self.label = label
        self.detail = ""
        self.nbytes = -1
        self._with_cpu = with_cpu
        self._hiding = hiding
        self._cpu_ns = -1
        self._end_ns = 0

    def __enter__(self) -> Self:
        lane = self.lane
        if self._hiding:
            lane.quiet += 1
        self._chunk = (lane.buffer, lane.offset, lane.end, lane.bias)
        now_ns = lane.now_ns
        self._start_ns = now_ns()
        if self._with_cpu:
            read_cpu_ns = lane.cpu_ns
            self._cpu_ns = read_cpu_ns()
        return self

    @property
    def holds_spans(self) -> bool:
        """Whether the thread wrote spans inside this one."""
        return self._inside > 0

    @property
    def _inside(self) -> int:
        """Bytes of spans that the thread wrote inside this one, in however many chunks."""
        _, offset, _, bias = self._chunk
        return self.lane.offset + self.lane.bias - offset - bias

    @property
    def holds_bytes(self) -> bool:
        """Whether a span inside this one tells the bytes of what it handed on."""
        lane, left = self.lane, self._inside
        buffer, offset, end, bias = self._chunk
        parts = [(buffer, offset, lane.offset)]
        if lane.buffer is not buffer or lane.bias != bias:
            begin = lane.end - SPANS_PER_CHUNK * RECORD_NBYTES
            parts = [(lane.buffer, begin, lane.offset), (buffer, offset, end)]
        for data, begin, until in parts:
            if left <= 0 or begin >= until:
                continue
            inside = np.frombuffer(data, SPAN_DTYPE, (until - begin) // RECORD_NBYTES, begin)
            if (is_one_of(inside["kind"], _READ) & (inside["nbytes"] >= 0)).any():
                return True
            left -= until - begin
        return left > 0  # a whole chunk of spans lies between: somebody reads there

    def stop(self) -> None:
        """End the time here; what the rest of the body finds out is not part of it."""
        lane = self.lane
        if self._with_cpu:
            read_cpu_ns = lane.cpu_ns
            self._cpu_ns = read_cpu_ns() - self._cpu_ns
        now_ns = lane.now_ns
        self._end_ns = now_ns()

    def split(self, kind: int, start_ns: int, end_ns: int, nbytes: int = -1) -> None:
        """Write a span inside this one, of what other threads did for it; after `stop`."""
        start_ns, end_ns = max(start_ns, self._start_ns), min(end_ns, self._end_ns)
        if start_ns > end_ns:
            return
        described = self.lane.recorder.described(kind)
        self.lane.write(start_ns, end_ns, nbytes, -1, described)
        if self.lane.tally is not None:
            self.lane.tally.append((kind, "", start_ns, end_ns, nbytes))

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if not self._end_ns:
            self.stop()
        lane = self.lane
        if self.kind:
            described = describe(lane.recorder, self.kind, self.label, self.detail)
            lane.write(self._start_ns, self._end_ns, self.nbytes, self._cpu_ns, described)
            if lane.tally is not None:
                lane.tally.append(
                    (self.kind, self.label, self._start_ns, self._end_ns, self.nbytes)
                )
        # Last: writing may make a file, which is no read of the training's.
        if self._hiding:
            lane.quiet -= 1
