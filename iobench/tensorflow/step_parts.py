"""Forward pass, backward pass and optimiser of Keras' steps, by names of operations in a trace.

Keras compiles a step into one function, whose operations keep the scopes they were made in: the
gradient tape's, the optimiser's, the model's and its loss'. An instant in which operations of one
of these run, and of no other, is that part's, and so is one between two operations of the same
part. An operation without a scope is the backward pass' where it lies between two of the gradient
tape's: a gradient of the user's own has none. What is neither (metrics, copies, parts that overlap)
stays the step's.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from iobench.recording.kinds import Kind
from iobench.tensorflow.traced_work import EXECUTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iobench.tensorflow.traced_work import TracedCall, TracedThread

TAPE: Final = "gradient_tape"
LOSS: Final = "compile_loss"
WRAPPERS: Final = frozenset(
    {"StatefulPartitionedCall", "PartitionedCall", "while", "cond", "body", "then", "else", ""}
)
"""Calls of functions and control flow that a scope may lie in."""
NUMBERS: Final = re.compile(r"(_\d+)+$")
NO_WORK: Final = frozenset({"ReadVariableOp", "Const", "Identity", "NoOp", "Placeholder"})
"""Operations that run long before what they are for."""
PARTS: Final = (Kind.FORWARD, Kind.BACKWARD, Kind.STEP)
FORWARD, BACKWARD, OPTIMISER = (1 << at for at in range(len(PARTS)))
KIND_OF: Final = {1 << at: kind for at, kind in enumerate(PARTS)}

BY_XLA: Final = "XLA made one of their operations (jit_compile)"
NOT_COMPILED: Final = (
    "operations that run one by one (run_eagerly) bear no names of a model's parts"
)
SEVERAL: Final = "those of one call overlap, since TensorFlow begins the next (steps_per_execution)"
UNNAMED: Final = "no operation bears the names of the model, its optimiser or a gradient tape"


class LoopStep(NamedTuple):
    """The computing of a step, on the clock of the trace or of the recording."""

    start_ns: int
    end_ns: int
    batch: int
    epoch: int


class StepScopes(msgspec.Struct, frozen=True):
    """The scopes in which a model computes and its optimiser works, as Keras names both.

    ``why_none`` is why operations may bear no names of these, in words; without any names no part
    is told of a step.
    """

    model: str
    optimizer: str
    why_none: str = UNNAMED

    @classmethod
    def of(cls, model: Any, n_steps: int) -> StepScopes:
        """Return those of a Keras model that makes so many steps in one call."""
        if n_steps > 1:
            return cls("", "", SEVERAL)
        optimizer = getattr(model, "optimizer", None)
        names = _plain(getattr(model, "name", None)), _plain(getattr(optimizer, "name", None))
        if getattr(model, "run_eagerly", False):
            return cls(*names, NOT_COMPILED)
        return cls(*names, BY_XLA if getattr(model, "jit_compile", False) is True else UNNAMED)

    def part_of(self, operation: str) -> int:
        """Return the part that an operation of a graph belongs to, 0 for none that is known."""
        if not self.model and not self.optimizer:
            return 0
        for component in operation.split("/"):
            plain = _plain(component)
            if plain in WRAPPERS:
                continue
            if plain == TAPE:
                return BACKWARD
            if plain == self.optimizer:
                return OPTIMISER
            return FORWARD if plain in (self.model, LOSS) else 0
        return 0


class StepPart(NamedTuple):
    """A stretch of a step that is of one part, on the clock of the trace."""

    kind: Kind
    start_ns: int
    end_ns: int
    step: LoopStep


def _plain(name: object) -> str:
    """Return a scope without the numbers that make it the only one of its name in a graph."""
    return NUMBERS.sub("", name) if isinstance(name, str) else ""


def find_parts(
    threads: Sequence[TracedThread], steps: Sequence[LoopStep], scopes: StepScopes
) -> list[StepPart]:
    """Return the parts of steps, in order of time; steps lie one after another."""
    named = [
        (call, scopes.part_of(name))
        for thread in threads
        for call in thread.calls
        if call.short not in NO_WORK and (name := _operation(call))
    ]
    runs = {_run_of(call) for call, part in named if part} - {None}
    calls = sorted(
        (call.start_ns, call.end_ns, part)
        for call, part in named
        if part or _run_of(call) in runs  # operations of datasets are of other runs
    )
    longest = max((end_ns - start_ns for start_ns, end_ns, _ in calls), default=0)
    parts = []
    for step in steps:
        low = bisect_left(calls, (step.start_ns - longest, 0, 0))
        high = bisect_left(calls, (step.end_ns, 0, 0))
        inside = [
            (max(start_ns, step.start_ns), min(end_ns, step.end_ns), part)
            for start_ns, end_ns, part in calls[low:high]
            if end_ns > step.start_ns
        ]
        parts += [
            StepPart(KIND_OF[part], start_ns, end_ns, step)
            for start_ns, end_ns, part in _joined(_running(_scoped(inside)))
        ]
    return parts


def _run_of(call: TracedCall) -> object:
    """Return the run of a function that an operation is of, None where nobody tells."""
    while call.within is not None:
        call = call.within
        if call.name in EXECUTED:
            return call.stats.get("id")
    return None


def _scoped(calls: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the operations of a step that are of a part."""
    backward = [(start_ns, end_ns) for start_ns, end_ns, part in calls if part == BACKWARD]
    first_ns = min((end_ns for _, end_ns in backward), default=math.inf)
    last_ns = max((start_ns for start_ns, _ in backward), default=-math.inf)
    for start_ns, end_ns, part in calls:
        if part or first_ns <= start_ns <= end_ns <= last_ns:
            yield start_ns, end_ns, part or BACKWARD


def _operation(call: TracedCall) -> str:
    """Return the name of an operation of a graph, ``""`` of all else that is traced."""
    return call.name.rpartition(":")[0] if call.short and call.short in call.name else ""


def _running(calls: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the stretches in which any operation runs, with the parts that do."""
    edges: list[tuple[int, int, int]] = []
    for start_ns, end_ns, part in calls:
        if end_ns > start_ns:
            edges += [(start_ns, 1, part), (end_ns, -1, part)]
    running = dict.fromkeys(KIND_OF, 0)
    at = 0
    for time_ns, change, part in sorted(edges):
        parts = sum(each for each, count in running.items() if count)
        if parts and time_ns > at:
            yield at, time_ns, parts
        at = time_ns
        running[part] += change


def _joined(stretches: Iterator[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the stretches of single parts; those of one part in a row are one."""
    last: tuple[int, int, int] | None = None
    for each in stretches:
        if last is not None and last[2] == each[2]:
            last = last[0], each[1], last[2]
            continue
        if last is not None and last[2] in KIND_OF:
            yield last
        last = each
    if last is not None and last[2] in KIND_OF:
        yield last
