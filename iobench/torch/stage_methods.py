"""The methods ``read``, ``decode``, ``preprocess``, ``transform`` of a user's dataset, timed.

They are timed on the class that defines them, while a loader makes batches: no instance is touched.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import ConcatDataset, Subset

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from iobench.torch.batch_recorder import BatchRecorder

STAGES: Final = {
    "read": Kind.READ,
    "decode": Kind.DECODE,
    "preprocess": Kind.PREPROCESS,
    "transform": Kind.TRANSFORM,
}


class _Makers(threading.local):
    """What makes a batch on the calling thread."""

    maker: BatchRecorder | None = None


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
        places = (_defined(type(part), name) for part in _parts(dataset) for name in STAGES)
        self._places = tuple(dict.fromkeys(place for place in places if place is not None))
        self._is_timed = False

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> None:
        self.timed(True)

    def __exit__(self, *error: object) -> None:
        self.timed(False)

    def timed(self, is_recorded: bool) -> None:
        """Time the methods from now on, or leave them as they are without us."""
        if self._is_timed == is_recorded:
            return
        self._is_timed = is_recorded
        change = _add if is_recorded else _take_away
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


# -- sums of samples that are too short for a span each ---


Stage = tuple[int, str]


@dataclass(slots=True)
class StageSum:
    """What a stage of several samples took, and the bytes it handed on; -1 where one is unknown."""

    spent_ns: int = 0
    nbytes: int = 0

    def add(self, spent_ns: int, nbytes: int) -> None:
        """Add a sample, or several."""
        self.spent_ns += spent_ns
        self.nbytes = -1 if nbytes < 0 or self.nbytes < 0 else self.nbytes + nbytes


class StageSums:
    """Sums of one batch at a time; batches that are not timed are split as the others were."""

    def __init__(self) -> None:
        self._batch: dict[Stage, StageSum] = {}
        self._all: dict[Stage, StageSum] = {}
        self.all_ns = self._n_samples = 0

    def clear(self) -> None:
        """Begin another batch."""
        self._batch.clear()

    def add(self, stage: Stage, spent_ns: int, nbytes: int) -> None:
        """Add what a stage of a sample took, and the bytes it handed on (-1 is unknown)."""
        stage_sum = self._batch.get(stage)
        if stage_sum is None:
            stage_sum = self._batch[stage] = StageSum()
        # As `StageSum.add`, written out: this runs for every stage of every sample.
        stage_sum.spent_ns += spent_ns
        stage_sum.nbytes = -1 if nbytes < 0 or stage_sum.nbytes < 0 else stage_sum.nbytes + nbytes

    def add_nested(self, spans: Iterable[tuple[int, str, int, int, int]]) -> None:
        """Add spans of one thread in the order of their ends: each has what is in none inside."""
        before: list[tuple[int, int]] = []  # start and length of those not known to be inside one
        for kind, label, start_ns, end_ns, nbytes in spans:
            inner_ns = 0
            while before and before[-1][0] >= start_ns:
                inner_ns += before.pop()[1]
            before.append((start_ns, end_ns - start_ns))
            self.add((kind, label), max(end_ns - start_ns - inner_ns, 0), nbytes)

    def of_batch(self, spent_ns: int, n_samples: int) -> Mapping[Stage, StageSum]:
        """Return the stages of a batch that took so long, and remember them."""
        for stage, each in self._batch.items():
            self._all.setdefault(stage, StageSum()).add(each.spent_ns, each.nbytes)
        self.all_ns += spent_ns
        self._n_samples += n_samples
        return self._batch

    def like_others(self, spent_ns: int, n_samples: int) -> Mapping[Stage, StageSum]:
        """Return stages that a batch will have had, in proportion to those of all others."""
        return {
            stage: StageSum(
                spent_ns * each.spent_ns // max(self.all_ns, 1),
                -1 if each.nbytes < 0 else each.nbytes * n_samples // max(self._n_samples, 1),
            )
            for stage, each in self._all.items()
        }
