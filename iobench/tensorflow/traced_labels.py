"""What the work that a trace of a tf.data pipeline shows is called in reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from iobench.tensorflow.operation_kinds import operation_name
from iobench.tensorflow.traced_work import ITERATOR, SEPARATOR, iterator_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.tensorflow.host_trace import TracedThread
    from iobench.tensorflow.traced_work import TracedWork

INNER: Final = "[]"
OPERATIONS: Final = re.compile(r"(\w+):(\d+)")
FunctionNames = Mapping[tuple[str, int], str]
"""The user's functions, by their operation and its place from the source on."""


def labels_of(
    works: Sequence[TracedWork], threads: Sequence[TracedThread], told: FunctionNames
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


def _functions(threads: Sequence[TracedThread], told: FunctionNames) -> dict[str, str]:
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
        names = [told.get((operation_name(kind), at - first), "") for kind, at in each]
        if any(names):
            found[iterator] = next(filter(None, names))
    return found
