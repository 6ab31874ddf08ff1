"""From a trace of tf.data to spans of loading work: each with its kind, thread, times and batch.

An element that one thread of tf.data makes and another takes has a number in both places
(``PrefetchProduce``, ``PrefetchConsume``), and a function that runs on other threads has one as
well: followed back from the batch that the training loop held, they tell whose work each is.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.tensorflow.operation_kinds import hands_on, kind_of, operation_name, waits_for_threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.recording.kinds import Kind
    from iobench.tensorflow.host_trace import TracedCall, TracedThread

__all__ = ["EXECUTED", "LoaderWait", "TracedWork", "find_work"]

ITERATOR: Final = "Iterator::"
ROOT: Final = "Iterator::Root"
MADE, TAKEN = "Produce", "Consume"
EXECUTED: Final = ("ExecutorState::Process", "ExecutorDoneCallback")
DONE: Final = "ExecutorDoneCallback"
LONGEST_CHAIN: Final = 16
"""Threads that an element passes through, at most."""


@dataclass(frozen=True, slots=True)
class LoaderWait:
    """A batch and when the training loop waited for it, on the clock of the trace."""

    asked_ns: int
    delivered_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class TracedWork:
    """A stretch of one thread that is work of one operation; they never overlap on a thread.

    ``batch`` is -1 where it was for none that was delivered within the trace. ``in_loop`` is
    whether the thread is the training loop's own.
    """

    thread: int
    thread_name: str
    in_loop: bool
    kind: Kind
    operation: str
    start_ns: int
    end_ns: int
    batch: int


def find_work(
    threads: Sequence[TracedThread],
    waits: Sequence[LoaderWait],
    kinds: Mapping[str, Kind] | None = None,
) -> list[TracedWork]:
    """Return the work of tf.data's threads in a trace, by thread and time.

    Parameters
    ----------
    threads : sequence of TracedThread
    waits : sequence of LoaderWait
        Of one training loop, in order of time.
    kinds : mapping of str to Kind, optional
        What comes before `OPERATION_KINDS`.
    """
    loops = _mark_waited(threads, waits)
    functions = _mark_made(threads)
    found = []
    for thread in threads:
        for call in thread.calls:
            described = _described(call, functions, kinds)
            if described is None:
                continue
            for start_ns, end_ns in _own_stretches(call):
                kind, operation = described
                in_loop = thread.number in loops
                found.append(
                    TracedWork(
                        thread=thread.number,
                        thread_name=thread.name,
                        in_loop=in_loop,
                        kind=kind,
                        operation=operation,
                        start_ns=start_ns,
                        end_ns=end_ns,
                        batch=call.batch,
                    )
                )
    return sorted(found, key=lambda work: (work.thread, work.start_ns, work.end_ns))


def _mark_waited(threads: Sequence[TracedThread], waits: Sequence[LoaderWait]) -> set[int]:
    """Give the batch to what the training loop's thread did to get it; return such threads."""
    asked = [wait.asked_ns for wait in waits]
    loops = set()
    for thread in threads:
        for call in thread.calls:
            if call.name != ROOT:
                continue
            middle = (call.start_ns + call.end_ns) // 2
            place = bisect_right(asked, middle) - 1
            if place >= 0 and middle < waits[place].delivered_ns:
                call.batch = waits[place].batch
                loops.add(thread.number)
    return loops


def _mark_made(threads: Sequence[TracedThread]) -> dict[tuple[object, object], str]:
    """Carry batches on, from who takes to who makes; return functions and who runs them."""
    taken: dict[tuple[str, object], int] = {}
    functions: dict[tuple[object, object], str] = {}
    batch_of: dict[tuple[object, object], int] = {}
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
                if "_p" in call.stats and "_pt" in call.stats:
                    batch_of.setdefault((call.stats["_pt"], call.stats["_p"]), call.batch)
        if len(taken) + len(batch_of) == n_known:
            break
    for thread in threads:
        for call in thread.calls:
            if "_p" in call.stats and (operation := _function_of(call)):
                functions[call.stats.get("_pt"), call.stats["_p"]] = operation
    return functions


def _batch(
    call: TracedCall,
    taken: Mapping[tuple[str, object], int],
    batch_of: Mapping[tuple[object, object], int],
) -> int:
    if call.within is not None and call.within.batch >= 0:
        return call.within.batch
    family = call.name.removesuffix(MADE)
    if family != call.name and "element_id" in call.stats:
        return taken.get((family, call.stats["element_id"]), -1)
    if "_c" in call.stats:
        return batch_of.get((call.stats.get("_ct"), call.stats["_c"]), -1)
    return -1


def _around(call: TracedCall) -> Iterator[TracedCall]:
    outer = call.within
    while outer is not None:
        yield outer
        outer = outer.within


def _function_of(call: TracedCall) -> str:
    """Return the operation of tf.data that runs a function from here, ``""`` if none does."""
    for outer in _around(call):
        if outer.name.endswith(MADE):
            return outer.name.removesuffix(MADE)
        if outer.short.startswith(ITERATOR):
            return operation_name(outer.short.removeprefix(ITERATOR))
    return ""


def _described(
    call: TracedCall,
    functions: Mapping[tuple[object, object], str],
    kinds: Mapping[str, Kind] | None,
) -> tuple[Kind, str] | None:
    """Return kind and name of what is work of tf.data; None for waiting, and for others' work."""
    if call.short.startswith(ITERATOR):
        operation = operation_name(call.short.removeprefix(ITERATOR))
        if waits_for_threads(operation) or hands_on(operation):
            return None
        return kind_of(operation, kinds), operation
    if call.name == DONE:
        operation = functions.get((call.stats.get("_ct"), call.stats.get("_c")), "")
        # There it copies what the function returned into the batch; elsewhere it hands it on.
        return (kind_of(operation, kinds), operation) if "Batch" in operation else None
    is_kernel = bool(call.short) and ":" in call.name
    if is_kernel and _is_loading(call, functions):
        return kind_of(call.short, kinds), call.short
    return None


def _is_loading(call: TracedCall, functions: Mapping[tuple[object, object], str]) -> bool:
    for outer in _around(call):
        if outer.short.startswith(ITERATOR) or outer.name.endswith(MADE):
            return True
        if outer.name in EXECUTED:
            return (outer.stats.get("_ct"), outer.stats.get("_c")) in functions
    return False


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
