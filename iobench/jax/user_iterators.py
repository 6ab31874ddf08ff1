"""Iterators and functions of the user's in a pipeline that grain's own statistics do not time."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from iobench.jax.elements import name_of_function, timed_stage
from iobench.recording import activation
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

MOST_PARTS: Final = 1000
# Where iterators keep a function of the user's that they call beside their statistics.
UNTIMED: Final = {"_FilterDatasetIterator": "_filter_fn", "_FlatMapDatasetIterator": "_flat_map"}
WAITING: Final = frozenset(
    {
        "PrefetchDatasetIterator", "ThreadPrefetchDatasetIterator", "InterleaveDatasetIterator",
        "ProcessPrefetchDatasetIterator",
    }
)  # fmt: skip


@functools.cache
def derived_from(own: Hashable, methods: Callable[[Any], dict[str, Any]]) -> Any:
    """Return a class of the same name, of one base alone: else its layout would be another."""
    kind: Any = own
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    make: Any = type(kind)
    return make(kind.__name__, (kind,), {**names, "__slots__": (), **methods(kind)})


def time_user_parts(iterator: Any) -> list[str]:
    """Time what grain does not, in an iterator and all that it takes from.

    Returns
    -------
    list of str
        Classes of the user's that wait for threads of grain's as they work: what they do themselves
        cannot be told from that.
    """
    found: list[str] = []
    for part in _all_of(iterator):
        kind: Any = type(part)
        attribute = UNTIMED.get(kind.__name__)
        if attribute is not None:
            function = vars(part)[attribute]
            setattr(part, attribute, _timed(function))
        elif not kind.__module__.startswith("grain."):
            if any(type(each).__name__ in WAITING for each in _all_of(part)):
                found.append(kind.__qualname__)
                continue
            try:
                part.__class__ = derived_from(kind, _fused)
            except (AttributeError, TypeError):  # with slots, or a layout of its own
                found.append(kind.__qualname__)
    return found


def _all_of(iterator: Any) -> Iterator[Any]:
    """Yield an iterator and all that it takes elements from, in its own thread."""
    waiting = [iterator]
    for _ in range(MOST_PARTS):
        if not waiting:
            return
        part = waiting.pop()
        yield part
        waiting.extend(getattr(part, "_parents", ()))
        inner = vars(part).get("_iterator")  # of a DataLoader
        if inner is not None and hasattr(inner, "_parents"):
            waiting.append(inner)


def _timed(function: Any) -> Any:
    """Return the function, timed as a transform."""
    label = name_of_function(function)
    if not label or getattr(function, "_iobench", False):
        return function

    def call(element: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return function(element)
        with timed_stage(recorder, Kind.PREPROCESS, label):
            return function(element)

    call._iobench = True  # type: ignore[attr-defined]
    return call


def _fused(own: Any) -> dict[str, Any]:
    """Return the methods of an iterator of the user's, which reads and makes as it likes."""

    def __next__(self: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return own.__next__(self)
        with timed_stage(recorder, Kind.FUSED):
            return own.__next__(self)

    return {"__next__": __next__}
