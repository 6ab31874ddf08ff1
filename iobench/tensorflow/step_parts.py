"""Forward pass, backward pass and optimiser of Keras' steps, by names of operations in a trace.

Operations keep the scopes they were made in: the gradient tape's, the optimiser's, the model's. An
instant in which operations of one of these run, and of no other, is that part's. One without a
scope is the backward pass' between two of the tape's: a gradient of the user's own has none.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from iobench.recording.kinds import Kind
from iobench.tensorflow.traced_work import EXECUTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.tensorflow.traced_work import TracedCall, TracedThread

    Stretch = tuple[int, int, int]  # start, end and what part, as a number; `OTHERS` is none

TAPE: Final = "gradient_tape"
LOSS: Final = "compile_loss"
WRAPPERS: Final = frozenset(
    {"StatefulPartitionedCall", "PartitionedCall", "while", "cond", "body", "then", "else", ""}
)
"""Calls of functions and control flow that a scope may lie in."""
NUMBERS: Final = re.compile(r"(_\d+)+$")
NO_WORK: Final = frozenset({"ReadVariableOp", "Const", "Identity", "NoOp", "Placeholder"})
"""Operations that run long before what they are for."""
OTHERS: Final = -1

SEVERAL: Final = "those of one call overlap, since TensorFlow begins the next (steps_per_execution)"
UNNAMED: Final = (
    "no operation bears the names of the model, its optimiser or a gradient tape, as with "
    "run_eagerly and jit_compile"
)


class LoopStep(NamedTuple):
    """The computing of a step, on the clock of the trace or of the recording."""

    start_ns: int
    end_ns: int
    batch: int
    epoch: int


class StepScopes(msgspec.Struct, frozen=True):
    """The scopes in which a model computes and its optimiser works; ``why_none`` if unknown."""

    model: str
    optimizer: str
    why_none: str = UNNAMED

    @classmethod
    def of(cls, model: Any, n_steps: int) -> StepScopes:
        """Return those of a Keras model that makes so many steps in one call."""
        if n_steps > 1:
            return cls("", "", SEVERAL)
        optimizer = getattr(model, "optimizer", None)
        return cls(_plain(getattr(model, "name", None)), _plain(getattr(optimizer, "name", None)))

    def part_of(self, operation: str) -> int:
        """Return the part that an operation of a graph belongs to."""
        components = map(_plain, operation.split("/") if self.model or self.optimizer else ())
        scope = next((each for each in components if each not in WRAPPERS), None)
        if scope == TAPE:
            return Kind.BACKWARD
        if scope is not None and scope == self.optimizer:
            return Kind.STEP
        return Kind.FORWARD if scope in (self.model, LOSS) else OTHERS


def _plain(name: object) -> str:
    """Return a scope without the numbers that make it the only one of its name in a graph."""
    return NUMBERS.sub("", name) if isinstance(name, str) else ""


def find_parts(
    threads: Sequence[TracedThread], steps: Sequence[LoopStep], scopes: StepScopes
) -> Iterator[tuple[Kind, int, int, LoopStep]]:
    """Yield the parts of steps, which lie one after another, in order of time."""
    named = [
        (call, scopes.part_of(call.name.rpartition(":")[0]))
        for thread in threads
        for call in thread.calls
        if call.short and f":{call.short}" in call.name and call.short not in NO_WORK
    ]
    runs = {_run_of(call) for call, part in named if part != OTHERS} - {None}
    calls = sorted(
        (call.start_ns, call.end_ns, part)
        for call, part in named
        if part != OTHERS or _run_of(call) in runs  # operations of datasets are of other runs
    )
    longest = max((end_ns - start_ns for start_ns, end_ns, _ in calls), default=0)
    for step in steps:
        low = bisect_left(calls, (step.start_ns - longest,))
        high = bisect_left(calls, (step.end_ns,))
        inside = [
            (max(start_ns, step.start_ns), min(end_ns, step.end_ns), part)
            for start_ns, end_ns, part in calls[low:high]
            if end_ns > step.start_ns
        ]
        for start_ns, end_ns, part in _alone(_scoped(inside)):
            yield Kind(part), start_ns, end_ns, step


def _run_of(call: TracedCall) -> object:
    """Return the run of a function that an operation is of, None where nobody tells."""
    while call.within is not None:
        call = call.within
        if call.name in EXECUTED:
            return call.stats.get("id")
    return None


def _scoped(calls: Sequence[Stretch]) -> Iterator[Stretch]:
    """Yield the operations of a step that are of a part."""
    backward = [(start_ns, end_ns) for start_ns, end_ns, part in calls if part == Kind.BACKWARD]
    first_ns = min((end_ns for _, end_ns in backward), default=math.inf)
    last_ns = max((start_ns for start_ns, _ in backward), default=-math.inf)
    for start_ns, end_ns, part in calls:
        if part != OTHERS:
            yield start_ns, end_ns, part
        elif first_ns <= start_ns <= end_ns <= last_ns:
            yield start_ns, end_ns, Kind.BACKWARD


def _alone(calls: Iterator[Stretch]) -> Iterator[Stretch]:
    """Yield stretches in which operations of one part alone run, and the time between such."""
    edges = []
    for start_ns, end_ns, part in calls:
        if end_ns > start_ns:
            edges += [(start_ns, 1, part), (end_ns, -1, part)]
    running: Counter[int] = Counter()
    begun_ns = ended_ns = at = 0
    last: list[int] = []  # the parts that ran last
    for time_ns, change, part in sorted(edges):
        parts = sorted(+running)
        if parts and time_ns > at:
            if parts != last:
                if len(last) == 1:
                    yield begun_ns, ended_ns, last[0]
                begun_ns, last = at, parts
            ended_ns = time_ns
        at = time_ns
        running[part] += change
    if len(last) == 1:
        yield begun_ns, ended_ns, last[0]
