"""What TensorFlow's host tracer wrote, as plain values: threads, and what ran on them when.

Format: ``tensorflow/tsl/profiler/protobuf/xplane.proto``; the parser comes with TensorFlow.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST_PLANE: Final = "/host:CPU"


@dataclass(slots=True, eq=False)
class TracedCall:
    """One stretch of a thread that TensorFlow named."""

    name: str  # as written, e.g. ``Iterator::Root::Prefetch`` or ``mul:Mul``
    short: str  # as displayed: ``Iterator::Prefetch``, ``Mul``; ``""`` where it is the name
    start_ns: int
    end_ns: int  # from the start of the trace on
    stats: dict[str, Any]  # ``element_id``, ``_p`` and the like
    batch: int = -1  # whose work it is, once that is known
    within: TracedCall | None = None  # the stretch of the same thread that it lies in
    inner: list[TracedCall] = field(default_factory=list)  # those that lie directly in it, in order


class TracedThread(msgspec.Struct, frozen=True):
    """A thread, by its name and number, with its calls in order of their starts."""

    name: str
    number: int
    calls: list[TracedCall]


def read_trace(path: Path) -> list[TracedThread]:
    """Return the threads of a trace that TensorFlow wrote below a folder."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = sorted(path.rglob("*.xplane.pb"))
    if not files:
        raise FileNotFoundError(f"{path}: TensorFlow wrote no trace")
    threads: list[TracedThread] = []
    for file in files:
        space = xplane_pb2.XSpace()
        try:
            space.ParseFromString(file.read_bytes())
        except _decode_error() as error:
            raise ValueError(f"{file}: {error}") from error
        for plane in space.planes:
            if plane.name == HOST_PLANE:
                threads += _threads(plane)
    return threads


def _decode_error() -> type[Exception]:
    # Of the library that TensorFlow brings along, which is no dependency of ours.
    error_class: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    return error_class


def _threads(plane: Any) -> Iterator[TracedThread]:
    names = {key: (entry.name, entry.display_name) for key, entry in plane.event_metadata.items()}
    stats = {key: entry.name for key, entry in plane.stat_metadata.items()}
    for line in plane.lines:
        calls = []
        for entry in line.events:
            name, short = names[entry.metadata_id]
            start_ns = line.timestamp_ns + entry.offset_ps // 1000
            values = {stats[stat.metadata_id]: _value(stat, stats) for stat in entry.stats}
            end_ns = start_ns + entry.duration_ps // 1000
            calls.append(TracedCall(name, short, start_ns, end_ns, values))
        calls.sort(key=lambda call: (call.start_ns, -call.end_ns))
        _nest(calls)
        yield TracedThread(line.display_name or line.name, line.id, calls)


def _value(stat: Any, names: dict[int, str]) -> Any:
    which = stat.WhichOneof("value")
    if which is None:
        return None
    value = getattr(stat, which)
    return names.get(value, "") if which == "ref_value" else value


def _nest(calls: list[TracedCall]) -> None:
    """Say of calls by their starts in which ones they lie; one that overlaps another ends there."""
    around: list[TracedCall] = []
    for call in calls:
        while around and around[-1].end_ns <= call.start_ns:
            around.pop()
        if around:
            call.within = around[-1]
            call.end_ns = min(call.end_ns, around[-1].end_ns)
            around[-1].inner.append(call)
        if call.end_ns > call.start_ns:
            around.append(call)
