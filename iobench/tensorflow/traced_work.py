"""From a trace of tf.data to spans of loading work: each with its kind, thread, times and batch.

An element that one thread of tf.data makes and another takes has a number in both places
(``PrefetchProduce``, ``PrefetchConsume``), and a function that runs on other threads has one as
well: followed back from the batch that the training loop held, they tell whose work each is.
"""

from __future__ import annotations

import importlib
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    Run = tuple[object, object]  # by what names a run of a function goes
    LoaderWait = tuple[int, int, int]  # when a loop asked, when it held the batch, and its number

OPERATION_KINDS: Final[dict[str, Kind]] = {
    "TFRecord": Kind.READ,
    "TextLine": Kind.READ,
    "FixedLengthRecord": Kind.READ,
    "Snapshot*": Kind.READ,
    "Load": Kind.READ,
    "ReadFile": Kind.READ,
    "MatchingFiles": Kind.OPEN,
    "ListDataset": Kind.OPEN,
    "Parse*": Kind.DECODE,
    "Decode*": Kind.DECODE,
    "IO>Decode*": Kind.DECODE,
    "StringToNumber": Kind.DECODE,
    "*Batch*": Kind.COLLATE,
    "Rebatch*": Kind.COLLATE,
    "*PyFunc*": Kind.OPAQUE,
    "Generator": Kind.OPAQUE,
    "*": Kind.PREPROCESS,
}
"""By name of the operation (patterns as in a shell; the first that fits): iterators without their
version and ``Dataset`` (``TFRecord``, ``ParallelMap``), and kernels of mapped functions
(``ParseExampleV2``). Scripts may change it."""

# Iterators that hand on what other threads make, whose own time is waiting, and those that only
# pass on what they are given.
THREADED: Final = frozenset(
    {"Prefetch", "ParallelMap", "MapAndBatch", "ParallelInterleave", "LegacyParallelInterleave"}
    | {"ParallelBatch", "ParallelFilter"}
)
HANDING_ON: Final = frozenset(
    {"Root", "Options", "Model", "MaxIntraOpParallelism", "PrivateThreadPool", "Take"}
    | {"FiniteTake", "Repeat", "FiniteRepeat", "ForeverRepeat"}
)

HOST_PLANE: Final = "/host:CPU"
ITERATOR: Final = "Iterator::"
SEPARATOR: Final = "::"
NUMBERED: Final = re.compile(r"\[\d+\]")
FUNCTION_RUN: Final = "InstantiatedCapturedFunction::"
ROOT: Final = "Iterator::Root"
MADE, TAKEN = "Produce", "Consume"
EXECUTED: Final = ("ExecutorState::Process", "ExecutorDoneCallback")
DONE: Final = "ExecutorDoneCallback"
LONGEST_CHAIN: Final = 16
"""Threads that an element passes through, at most."""


def operation_name(name: str) -> str:
    """Return an operation without version, number, ``Dataset``: ``Map`` of ``MapDatasetV2:1``."""
    plain = name.partition("[")[0].partition(":")[0].partition("(")[0]
    head, result, version = plain.rpartition("V")
    if result and head and version.isdecimal():
        plain = head
    return plain.removesuffix("Dataset") or name


def kind_of(name: str) -> Kind:
    """Return the kind of an operation, by `OPERATION_KINDS`."""
    kinds = (kind for pattern, kind in OPERATION_KINDS.items() if fnmatchcase(name, pattern))
    return next(kinds, Kind.PREPROCESS)


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


class TracedWork(msgspec.Struct, frozen=True):
    """A stretch of one thread that is work of one operation; they never overlap on a thread."""

    thread: int
    thread_name: str
    in_loop: bool  # on the training loop's own thread
    kind: Kind
    label: str  # the operation; of one that several iterators run, whose it is
    start_ns: int
    end_ns: int
    batch: int  # -1 for none that was delivered within the trace


def find_work(threads: Sequence[TracedThread], waits: Sequence[LoaderWait]) -> list[TracedWork]:
    """Return the work of tf.data's threads in a trace, by thread and time."""
    loops = _mark_waited(threads, waits)
    _mark_producers(threads)
    runs = _functions_run(threads)
    calls = [
        (thread, call, *described)
        for thread in threads
        for call in thread.calls
        if (described := _described(call, runs)) is not None
    ]
    places = {(operation, _operation_at(iterator)) for *_, operation, iterator in calls if iterator}
    n_of = Counter(operation for operation, _ in places)
    result = []
    for thread, call, kind, operation, iterator in calls:
        is_ambiguous = iterator and n_of[operation] > 1
        label = f"{_operation_at(iterator)}/{operation}" if is_ambiguous else operation
        result += [
            TracedWork(
                thread.number, thread.name, thread.number in loops, kind, label,
                start_ns, end_ns, call.batch,
            )
            for start_ns, end_ns in _own_stretches(call)
        ]  # fmt: skip
    return sorted(result, key=lambda work: (work.thread, work.start_ns, work.end_ns))


def _mark_waited(threads: Sequence[TracedThread], waits: Sequence[LoaderWait]) -> set[int]:
    """Give the batch to what the training loop's thread did to get it; return such threads."""
    requested = [requested_ns for requested_ns, _, _ in waits]
    loops = set()
    for thread in threads:
        for call in thread.calls:
            if call.name != ROOT:
                continue
            middle = (call.start_ns + call.end_ns) // 2
            place = bisect_right(requested, middle) - 1
            if place >= 0 and middle < waits[place][1]:
                call.batch = waits[place][2]
                loops.add(thread.number)
    return loops


def _mark_producers(threads: Sequence[TracedThread]) -> None:
    """Carry batches on, from who takes to who makes."""
    taken: dict[tuple[str, object], int] = {}
    batch_of: dict[Run, int] = {}
    for _ in range(LONGEST_CHAIN):
        n_known = len(taken) + len(batch_of)
        for thread in threads:
            for call in thread.calls:
                if call.batch < 0:
                    call.batch = _batch(call, taken, batch_of)
                if call.batch < 0:
                    continue
                family = call.name.removesuffix(TAKEN)
                if family != call.name and "element_id" in call.stats:
                    taken.setdefault((family, call.stats["element_id"]), call.batch)
                for run in _runs_begun(call):
                    batch_of.setdefault(run, call.batch)
        if len(taken) + len(batch_of) == n_known:
            break


def _runs_begun(call: TracedCall) -> list[Run]:
    """Return by what names the run of a function goes that a call begins."""
    result: list[Run] = []
    if "_p" in call.stats and "_pt" in call.stats:
        result.append((call.stats["_pt"], call.stats["_p"]))
    if call.name.startswith(FUNCTION_RUN) and "id" in call.stats:
        result.append((FUNCTION_RUN, call.stats["id"]))
    return result


def _run_names(call: TracedCall) -> tuple[Run, Run]:
    """Return by what names the run of a function goes that an executor's call is part of."""
    return (call.stats.get("_ct"), call.stats.get("_c")), (FUNCTION_RUN, call.stats.get("id"))


def _batch(
    call: TracedCall, taken: Mapping[tuple[str, object], int], batch_of: Mapping[Run, int]
) -> int:
    if call.within is not None and call.within.batch >= 0:
        return call.within.batch
    family = call.name.removesuffix(MADE)
    if family != call.name and "element_id" in call.stats:
        return taken.get((family, call.stats["element_id"]), -1)
    if call.name in EXECUTED or "_c" in call.stats:
        return next((batch_of[name] for name in _run_names(call) if name in batch_of), -1)
    return -1


def _functions_run(threads: Sequence[TracedThread]) -> dict[Run, str]:
    """Return the iterators that run functions, by the runs."""
    result: dict[Run, str] = {}
    for thread in threads:
        for call in thread.calls:
            begun = _runs_begun(call)
            if begun and (iterator := _iterator_around(call, {})):
                result |= dict.fromkeys(begun, iterator)
    return result


def iterator_of(name: str) -> str:
    """Return the place of an iterator in its pipeline, without numbers, from the loop's end on."""
    return NUMBERED.sub("[]", name.removeprefix(ITERATOR))


def _operation_at(iterator: str) -> str:
    return operation_name(iterator.rpartition(SEPARATOR)[2])


def _described(call: TracedCall, runs: Mapping[Run, str]) -> tuple[Kind, str, str] | None:
    """Return kind, operation and, in a function, iterator of tf.data's work; else None."""
    if call.short.startswith(ITERATOR):
        operation = operation_name(call.short.removeprefix(ITERATOR))
        if operation in THREADED or operation in HANDING_ON:
            return None
        return kind_of(operation), operation, ""
    if call.name == DONE:
        operation = _operation_at(_iterator_run(call, runs))
        # There it copies what the function returned into the batch; elsewhere it hands it on.
        return (kind_of(operation), operation, "") if "Batch" in operation else None
    if call.short and ":" in call.name and (iterator := _iterator_around(call, runs)):
        return kind_of(call.short), call.short, iterator
    return None


def _iterator_run(call: TracedCall, runs: Mapping[Run, str]) -> str:
    return next((runs[name] for name in _run_names(call) if name in runs), "")


def _iterator_around(call: TracedCall, runs: Mapping[Run, str]) -> str:
    """Return the iterator that a call works for, ``""`` if it is none of tf.data."""
    outer = call.within
    while outer is not None:
        if outer.short.startswith(ITERATOR):
            return iterator_of(outer.name)
        if outer.name.endswith(MADE):  # by the iterator from which it pulls
            pulled = (each.name for each in outer.inner if each.short.startswith(ITERATOR))
            parent = iterator_of(next(pulled, "")).rpartition(SEPARATOR)[0]
            return parent or outer.name.removesuffix(MADE)
        if outer.name in EXECUTED:
            return _iterator_run(outer, runs)
        outer = outer.within
    return ""


def _own_stretches(call: TracedCall) -> Iterator[tuple[int, int]]:
    """Yield the parts of a call in which it did not call anything that is traced."""
    at = call.start_ns
    for inner in call.inner:
        if inner.end_ns <= inner.start_ns:
            continue
        if inner.start_ns > at:
            yield at, inner.start_ns
        at = max(at, inner.end_ns)
    if call.end_ns > at:
        yield at, call.end_ns


# -- what it wrote: ``tensorflow/tsl/profiler/protobuf/xplane.proto``; TensorFlow has the parser ---


def read_trace(path: Path) -> list[TracedThread]:
    """Return the threads of a trace that TensorFlow wrote below a folder."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = sorted(path.rglob("*.xplane.pb"))
    if not files:
        raise FileNotFoundError(f"{path}: TensorFlow wrote no trace")
    # Of the library that TensorFlow brings along, which is no dependency of ours.
    decode_error: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    threads: list[TracedThread] = []
    for file in files:
        space = xplane_pb2.XSpace()
        try:
            space.ParseFromString(file.read_bytes())
        except decode_error as error:
            raise ValueError(f"{file}: {error}") from error
        for plane in space.planes:
            if plane.name == HOST_PLANE:
                threads += _threads(plane)
    return threads


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
