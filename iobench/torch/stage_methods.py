"""The methods ``read``, ``decode``, ``preprocess``, ``transform`` of a user's dataset, timed.

They are timed on the class that defines them, for as long as a loader makes batches (in a worker,
for its life): copies of the dataset, slots and ``super()`` work as ever, and an instance is not
touched. Calls on threads that make no batch pass through.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import ConcatDataset, Subset

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iobench.torch.batch_maker import BatchMaker

STAGES: Final = {
    "read": Kind.READ,
    "decode": Kind.DECODE,
    "preprocess": Kind.PREPROCESS,
    "transform": Kind.TRANSFORM,
}


class _Makers(threading.local):
    """What makes a batch on the calling thread."""

    maker: BatchMaker | None = None


makers: Final = _Makers()
_lock = threading.Lock()
# (class, name): what it was before, what it is meanwhile, and how many loaders time it.
_timed: Final[dict[tuple[type, str], tuple[FunctionType, Callable[..., Any], int]]] = {}


def _unlock_fork() -> None:
    """Forget who held the lock: another thread of the parent's, and there is none of them here."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_fork)


class StageMethods:
    """The stages of one dataset; ``with`` it, they are timed."""

    def __init__(self, dataset: Any) -> None:
        found = dict.fromkeys(
            place
            for part in _parts(dataset)
            for name in STAGES
            if (place := _defined(type(part), name)) is not None
        )
        self._places = tuple(found)
        self._is_timed = False

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> None:
        self.timed(True)

    def __exit__(self, *error: object) -> None:
        self.timed(False)

    def timed(self, wanted: bool) -> None:
        """Time the methods from now on, or leave them as they are without us."""
        if self._is_timed == wanted:
            return
        self._is_timed = wanted
        change = _add if wanted else _take_away
        with _lock:
            for place in self._places:
                change(*place)


def _parts(dataset: Any) -> Iterator[Any]:
    # A subclass need not have called the constructor of torch's class. Of all others the __dict__
    # is left alone: who asks for it makes every attribute slower from then on (Python 3.11).
    own = vars(dataset) if isinstance(dataset, (Subset, ConcatDataset)) else {}
    if isinstance(dataset, Subset) and "dataset" in own:
        yield from _parts(own["dataset"])
    elif isinstance(dataset, ConcatDataset) and type(own.get("datasets")) is list:
        for part in own["datasets"]:
            yield from _parts(part)
    else:
        yield dataset


def _defined(kind: type, name: str) -> tuple[type, str] | None:
    """Return the class that defines the method; None if it is no plain Python function."""
    for each in kind.__mro__:
        if name in vars(each):
            method = vars(each)[name]
            lazy = inspect.isgeneratorfunction(method) or inspect.iscoroutinefunction(method)
            return (each, name) if isinstance(method, FunctionType) and not lazy else None
    return None


def _add(owner: type, name: str) -> None:
    known = _timed.get((owner, name))
    if known is not None:
        _timed[owner, name] = (*known[:2], known[2] + 1)
        return
    function = vars(owner).get(name)
    if isinstance(function, FunctionType):
        timing = _timing(function, STAGES[name])
        _timed[owner, name] = (function, timing, 1)
        type.__setattr__(owner, name, timing)


def _take_away(owner: type, name: str) -> None:
    known = _timed.pop((owner, name), None)
    if known is None:
        return
    function, timing, users = known
    if users > 1:
        _timed[owner, name] = (function, timing, users - 1)
    elif vars(owner).get(name) is timing:  # else the user's code has replaced it: that stays
        type.__setattr__(owner, name, function)


def _timing(function: FunctionType, kind: Kind) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        maker = makers.maker
        if maker is None or maker.tag is None:
            return function(*args, **kwargs)
        # As `quiet`, written out: this runs for every stage of every sample.
        lane, value, outer_ns = maker.lane, None, maker.inner_ns
        maker.inner_ns = 0
        lane.quiet += 1
        now_ns, read_cpu_ns = lane.now_ns, lane.cpu_ns
        start_ns = now_ns()
        cpu_ns = read_cpu_ns() if maker.with_cpu else -1
        try:
            value = function(*args, **kwargs)
        finally:
            lane.quiet -= 1
            maker.inner_ns = outer_ns + maker.stage(kind, start_ns, cpu_ns, value)
        return value

    return timed
