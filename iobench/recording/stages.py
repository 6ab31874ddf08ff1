"""``stage``: how code that is measured says what it does, at no cost where nothing is recorded."""

from __future__ import annotations

import functools
import inspect
import struct
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar

from iobench.errors import OptionError
from iobench.recording import activation
from iobench.recording import span_file as layout
from iobench.recording.kinds import MIXED_KINDS, WORKER_KINDS
from iobench.recording.recorder import Lane, Span

if TYPE_CHECKING:
    from collections.abc import Callable

# What is inside a stage of these kinds is named exactly, and not timed from outside as well.
EXACT_KINDS: Final = frozenset(kind.spelled for kind in WORKER_KINDS - MIXED_KINDS)

_pack_into: Final = layout.PREPARED_SPAN.pack_into

P = ParamSpec("P")
R = TypeVar("R")

# Names made up per call must not fill the memory of a long training.
IDLE_LIMIT: Final = 1024


class IdleStage:
    """A stage while nothing is recorded: times nothing, decorates all the same."""

    __slots__ = ("_name", "_nbytes")

    def __init__(self, name: str, nbytes: int | None) -> None:
        self._name = name
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        """Bytes the stage hands on; setting it does nothing here."""
        return -1 if self._nbytes is None else self._nbytes

    @nbytes.setter
    def nbytes(self, value: int) -> None:
        pass

    def __enter__(self) -> IdleStage:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, timed at every call made while a recording is active."""
        return _decorated(function, self._name, self._nbytes)


class ActiveStage(Span):
    """A stage being recorded: a light span that can decorate as well."""

    __slots__ = ("_name",)

    def __init__(self, lane: Lane, name: str, described: bytes, nbytes: int) -> None:
        self._lane = lane
        self._described = described
        self._name = name
        self.nbytes = nbytes

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, timed at every call made while a recording is active."""
        return _decorated(function, self._name, None if self.nbytes < 0 else self.nbytes)


class ExactStage(ActiveStage):
    """A stage whose kind was named: nothing inside is timed from outside as well."""

    __slots__ = ()

    def __enter__(self) -> Self:
        lane = self._lane
        lane.quiet += 1
        now_ns = lane.now_ns
        self._start_ns = now_ns()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        # As in Span, written out for its speed.
        lane = self._lane
        now_ns = lane.now_ns
        end_ns = now_ns()
        lane.quiet -= 1
        offset = lane.offset
        if offset == lane.end:
            if not lane.recorder._refill(lane):
                return
            offset = lane.offset
        lane.offset = offset + 64
        try:
            _pack_into(
                lane.buffer, offset, self._start_ns, end_ns, self.nbytes, -1,
                lane.position, self._described, (offset + lane.bias) >> 6,
            )  # fmt: skip
        except (TypeError, ValueError, struct.error) as failure:
            lane.recorder._refuse(lane, offset, failure)


class OpenStage(ActiveStage):
    """A stage whose body may be suspended by a ``yield``: each part of it is a span."""

    __slots__ = ("_quiet",)

    def __enter__(self) -> Self:
        lane = self._lane
        self._quiet = int(self._name in EXACT_KINDS)
        self._start_ns = -1
        if lane.open is None:
            lane.open = []
        lane.open.append(self)
        self.resume(lane.now_ns())
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.suspend(self._lane.now_ns())
        if self._lane.open is not None and self in self._lane.open:
            self._lane.open.remove(self)

    def suspend(self, now_ns: int) -> None:
        """Write what was spent since it was begun or resumed."""
        if self._start_ns < 0:
            return
        self._lane.quiet -= self._quiet
        self._lane.write(self._start_ns, now_ns, self.nbytes, -1, self._described)
        self._start_ns = -1
        self.nbytes = min(self.nbytes, 0)  # known bytes are told once

    def resume(self, now_ns: int) -> None:
        """Go on."""
        if self._start_ns < 0:
            self._start_ns = now_ns
            self._lane.quiet += self._quiet


_idle_stages: Final[dict[str, IdleStage]] = {}


def stage(name: str, nbytes: int | None = None) -> IdleStage | ActiveStage:
    """Time a part of a training script: ``with stage("augment"):`` or ``@stage("augment")``.

    The span is written even if the body raises, and carries the batch, epoch and sample its thread
    works on. With no recording active nothing is measured.

    Parameters
    ----------
    name : str
        A kind by its spelled name (``"read"``, ``"decode"``, ...); several sorts of loading that
        are done in one, as ``"read+decode"``, are a label of kind ``fused``; any other name is one
        of kind ``preprocess``. Inside a stage named by a kind of loading work other than
        ``fused`` and ``opaque``, functions of libraries are not timed (``iobench.adapters``).
    nbytes : int, optional
        Bytes the stage hands on, where known; may be set later as ``.nbytes``.

    Raises
    ------
    OptionError
        If a generator or coroutine function is decorated: its call does none of its work.
    """
    recorder = activation._active
    if recorder is not None:
        try:
            described = recorder._stages[name]
        except KeyError:
            described = recorder._describe_stage(name)
        try:
            lane: Lane = recorder._local.lane
        except AttributeError:
            lane = recorder._open_lane()
        stage_class = ExactStage if name in EXACT_KINDS else ActiveStage
        if lane.open is not None:
            stage_class = OpenStage
        return stage_class(lane, name, described, -1 if nbytes is None else nbytes)
    idle = _idle_stages.get(name)
    if idle is None or nbytes is not None:
        idle = IdleStage(name, nbytes)
        if nbytes is None and len(_idle_stages) < IDLE_LIMIT:
            _idle_stages[name] = idle
    return idle


def _decorated(function: Callable[P, R], name: str, nbytes: int | None) -> Callable[P, R]:
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise OptionError(
            f"stage({name!r}) cannot decorate {function.__qualname__}: calling a generator or "
            "coroutine function does none of its work; use 'with stage(...)' around that work"
        )

    @functools.wraps(function)
    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        if activation._active is None:
            return function(*args, **kwargs)
        with stage(name, nbytes):
            return function(*args, **kwargs)

    return timed
