"""How the operations of a tf.data pipeline hang together, by a trace of them: for its replay."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from iobench.frozen import frozen
from iobench.recording.kinds import stage_name
from iobench.tensorflow.operation_kinds import operation_name, waits_for_threads
from iobench.tensorflow.traced_work import ITERATOR, ROOT, SEPARATOR, iterator_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.tensorflow.host_trace import TracedCall, TracedThread
    from iobench.tensorflow.traced_work import TracedWork

LAST_CALLS: Final = 8
INNER: Final = "[]"
OPERATIONS: Final = re.compile(r"(\w+):(\d+)")
POOLS: Final = ("tf_data_private_threadpool", "tf_Compute")
PULL, OWN = 0, 2
"""Places in `analysis.replay.operation_pipeline.PARTS`; what the pool does comes next to each."""


@frozen
class DatasetFunctions:
    """What a dataset tells of itself that no trace does.

    Parameters
    ----------
    names : mapping of (str, int) to str
        The user's functions, by their operation and its place from the source on.
    pool : int
        Threads that functions may use; 0 where TensorFlow takes as many as there are CPUs.
    """

    names: Mapping[tuple[str, int], str]
    pool: int


def labels_of(
    works: Sequence[TracedWork], threads: Sequence[TracedThread], told: DatasetFunctions
) -> dict[tuple[str, bool, str], str]:
    """Return what each sort of work is called: its operation, and whose where several have one."""
    functions = _functions(threads, told)
    sorts = sorted({(work.iterator, work.in_function, work.operation) for work in works})
    n_of = Counter(operation for _, _, operation in sorts)
    found: dict[tuple[str, bool, str], str] = {}
    given: Counter[str] = Counter()
    for iterator, in_function, operation in sorts:
        label = operation
        if n_of[operation] > 1:
            whose = functions.get(iterator) or operation_name(iterator.rpartition(SEPARATOR)[2])
            label = f"{whose}/{operation}" if in_function or iterator in functions else operation
        given[label] += 1
        found[iterator, in_function, operation] = (
            label if given[label] == 1 else f"{label}-{given[label]}"
        )
    return found


def _functions(threads: Sequence[TracedThread], told: DatasetFunctions) -> dict[str, str]:
    """Return the user's functions by the iterators that run them.

    TensorFlow numbers the operations of a process, those of one pipeline in a row.
    """
    operations: dict[str, list[tuple[str, int]]] = {}
    for thread in threads:
        for call in thread.calls:
            if call.short.startswith(ITERATOR) and INNER not in (
                iterator := iterator_of(call.name)
            ):
                name = str(call.stats.get("name", ""))
                operations[iterator] = [(kind, int(at)) for kind, at in OPERATIONS.findall(name)]
    first = min((at for each in operations.values() for _, at in each), default=0)
    found = {}
    for iterator, each in operations.items():
        names = [told.names.get((operation_name(kind), at - first), "") for kind, at in each]
        if any(names):
            found[iterator] = next(filter(None, names))
    return found


def pipeline_of(
    threads: Sequence[TracedThread],
    works: Sequence[TracedWork],
    batches: Sequence[int],
    told: DatasetFunctions,
    cpu_ns: int,
) -> dict[str, Any] | None:
    """Return a pipeline as `LoaderFacts.pipeline` has it; None where the trace shows none.

    Parameters
    ----------
    works : sequence of TracedWork
        What `find_work` found in them.
    batches : sequence of int
        Numbers of those that were delivered in the trace, in order.
    cpu_ns : int
        That the process computed meanwhile.
    """
    calls: dict[str, list[TracedCall]] = defaultdict(list)
    for thread in threads:
        for call in thread.calls:
            if call.name.startswith(ITERATOR):
                calls[iterator_of(call.name)].append(call)
    n_batches = len(calls.get(ROOT.removeprefix(ITERATOR), ()))
    if not n_batches or not works:
        return None
    functions, labels = _functions(threads, told), labels_of(works, threads, told)
    own = {iterator for iterator in calls if waits_for_threads(_operation(iterator))}
    stages: dict[str, list[set[str]]] = defaultdict(lambda: [set() for _ in range(4)])
    of_iterator: dict[str, set[str]] = defaultdict(set)
    pulled_by: dict[str, str] = {}
    spread: Counter[str] = Counter()
    shares: dict[str, float] = {}
    first_seen: dict[str, int] = {}
    for work in works:
        label = labels[work.iterator, work.in_function, work.operation]
        stage = stage_name(work.kind, label)
        group, part = _place(work, own)
        if part == PULL:
            of_iterator[work.iterator].add(stage)
            pulled_by[work.iterator] = group
        stages[group][part + work.thread_name.startswith(POOLS)].add(stage)
        if _unnumbered(work.iterator, own):
            spread[stage] += work.end_ns - work.start_ns
            shares[stage] = _share_of_batch(work.iterator, calls, own, n_batches)
        elif work.batch >= 0:
            first_seen[stage] = min(first_seen.get(stage, work.batch), work.batch)
    # After the last one, what wrote the trace takes its time in the training loop.
    begun = max(first_seen.values(), default=-1)
    whole = [number for number in batches[:-1] if number > begun]
    if len(whole) < 2:
        return None
    order = sorted(own, key=lambda iterator: (-iterator.count(SEPARATOR), iterator))
    if "" in stages or len([iterator for iterator in order if not _feeds(iterator, own)]) != 1:
        order.append("")  # the training loop itself
    pools = {
        thread.number
        for thread in threads
        if thread.name.startswith(POOLS)
        and any(call.name == "ExecutorState::Process" for call in thread.calls)
    }
    budget = calls[ROOT.removeprefix(ITERATOR)][-1].stats.get("cpu_budget", 0)
    return {
        "first": whole[0],
        "last": whole[-1],
        "pool": told.pool or max(len(pools), int(budget)),
        "groups": [
            {
                "operation": _operation(iterator) if iterator else "",
                "function": functions.get(iterator, ""),
                **_settings(iterator, calls, n_batches),
                "feeds": order.index(_feeds(iterator, own)) if iterator != order[-1] else -1,
                "stages": [sorted(each) for each in stages[iterator]],
                "inside": [
                    {
                        "function": functions[each],
                        "units": max(1, round(len(calls[each]) / n_batches)),
                        "stages": sorted(of_iterator[each]),
                    }
                    for each in sorted(of_iterator, key=lambda name: -name.count(SEPARATOR))
                    if each in functions and each not in own and pulled_by[each] == iterator
                ],
            }
            for iterator in order
        ],
        "in_python": any("PyFunc" in work.operation for work in works),
        "cpu_ns": cpu_ns // n_batches,
        "each_ns": {stage: round(spread[stage] * shares[stage]) for stage in sorted(spread)},
    }


def _operation(iterator: str) -> str:
    return operation_name(iterator.rpartition(SEPARATOR)[2])


def _feeds(iterator: str, own: set[str]) -> str:
    """Return the nearest iterator with threads of its own that pulls from one, ``""`` for none."""
    while iterator:
        iterator = iterator.rpartition(SEPARATOR)[0].removesuffix(INNER)
        if iterator in own:
            return iterator
    return ""


def _place(work: TracedWork, own: set[str]) -> tuple[str, int]:
    """Return whose threads did some work, and whether that was pulling or working on its own."""
    iterator = work.iterator
    if work.in_function and iterator in own:
        return iterator, PULL if "Interleave" in _operation(iterator) else OWN
    while iterator:
        iterator, inner = iterator.rpartition(SEPARATOR)[0], ""
        if iterator.endswith(INNER):
            iterator, inner = iterator.removesuffix(INNER), INNER
        if iterator in own:
            return iterator, OWN if inner else PULL
    return "", PULL


def _unnumbered(iterator: str, own: set[str]) -> bool:
    """Return whether elements of an iterator are made ahead under no number."""
    while INNER in iterator:
        iterator = iterator.rpartition(INNER)[0]
        if iterator in own:
            return True
    return False


def _share_of_batch(
    iterator: str, calls: Mapping[str, Sequence[TracedCall]], own: set[str], n_batches: int
) -> float:
    """Return which share a batch takes of all that was made inside an interleave."""
    while INNER in iterator:
        outer, _, rest = iterator.rpartition(INNER)
        if outer in own:
            inside = outer + INNER + SEPARATOR + rest.split(SEPARATOR)[1]
            stats = calls[outer][-1].stats
            # An input's last call finds no more.
            ended = len({call.name for call in calls[inside]}) - int(stats.get("cycle_length", 1))
            made = max(len(calls[inside]) - max(ended, 0), 1)
            return len(calls[outer]) / n_batches / made
        iterator = outer
    return 1 / n_batches


def _settings(
    iterator: str, calls: Mapping[str, Sequence[TracedCall]], n_batches: int
) -> dict[str, int]:
    """Return how many items an iterator works on, keeps, and hands on for a batch."""
    if not iterator:
        return {"threads": 1, "ahead": 0, "units": 1}
    stats, operation = calls[iterator][-1].stats, _operation(iterator)
    known = {name: value for name, value in stats.items() if isinstance(value, int)}
    # As tuned last; a call that ends the trace may tell of one alone.
    told = [call.stats.get("parallelism", 1) for call in calls[iterator][-LAST_CALLS:]]
    threads = max([1, *(each for each in told if isinstance(each, int))])
    ahead, n_items = threads, len(calls[iterator])
    if operation == "Prefetch":
        threads, ahead = 1, max(known.get("buffer_limit", 1), 1)
    elif operation == "MapAndBatch":
        ahead = known.get("max_batch_results", 1) * known.get("batch_size", 1)
        n_items *= known.get("batch_size", 1)
    elif "Interleave" in operation:
        cycle = known.get("cycle_length", threads)
        inputs = cycle + known.get("prefetch_input_elements", 0)
        threads, ahead = min(threads, cycle), inputs * known.get("buffer_output_elements", 1)
    return {
        "threads": threads,
        "ahead": max(ahead, 1),
        "units": max(1, round(n_items / n_batches)),
    }
