"""Putting timed functions in the place of others, and everything back as it was."""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from iobench.adapters import scope
from iobench.recording import activation
from iobench.recording.kinds import Kind, kind_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.outside import OutsideSpan

    Arguments = tuple[Any, ...]
    Options = dict[str, Any]
    Note = Callable[[OutsideSpan, Any, Arguments, Options], None]
    Condition = Callable[[Arguments, Options], bool]

MISSING: Final = object()


class TimedCall(NamedTuple):
    """A function that is timed, and what its span has.

    Parameters
    ----------
    attribute : str
        Its name below the module: ``"open"``, ``"Dataset.__getitem__"``. The last name must be its
        owner's own, not inherited.
    kind : str or Kind
        ``"open"``, ``"read"``, ``"decode"``, ``"fused"`` (read and decode in one), or another
        name that `iobench.stage` takes.
    note : callable, optional
        Called with the span, the result, the arguments and the named arguments of a call that
        went well; sets ``span.nbytes`` (bytes read, or of the values decoded), ``span.detail``
        (name of the file), ``span.kind``. What it raises makes the bytes unknown.
    label : str
        A name shown within the kind.
    only_if : callable, optional
        Called with the arguments before the call: whether it has a span.
    with_cpu : bool
        Whether the thread's CPU time is measured, which costs two system calls.
    encloses : bool
        Whether functions inside that are timed have spans of their own, which this one is less.
    by_threads : bool
        Whether an event loop or thread pool of the library does the work: its spans are the call's.
    optional : bool
        Whether some versions of the library have no such function.
    """

    attribute: str
    kind: Kind | str
    note: Note | None = None
    label: str = ""
    only_if: Condition | None = None
    with_cpu: bool = False
    encloses: bool = False
    by_threads: bool = False
    optional: bool = False


def timed(original: Callable[..., Any], row: TimedCall) -> Callable[..., Any]:
    """Return a function that calls another one and records a span of the call."""
    kind = row.kind if isinstance(row.kind, Kind) else kind_named(row.kind)
    if kind is None:
        raise ValueError(f"{row.attribute}: no kind of stage is called {row.kind!r}")
    _, _, note, label, only_if, with_cpu, encloses, by_threads, _ = row

    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return original(*args, **kwargs)
        if only_if is not None:
            try:
                is_timed = only_if(args, kwargs)
            except Exception:  # noqa: BLE001 - the call is made, whatever a condition may do
                is_timed = False
            if not is_timed:
                return original(*args, **kwargs)
        span = scope.begin(recorder, kind, label, with_cpu, not encloses)
        if span is None:
            return original(*args, **kwargs)
        with span:
            token = scope.ELSEWHERE.set([]) if by_threads else None
            try:
                result = original(*args, **kwargs)
            finally:
                if token is not None:
                    scope.ELSEWHERE.reset(token)
            if note is not None:
                span.stop()
                try:
                    note(span, result, args, kwargs)
                except Exception:  # noqa: BLE001 - the call went well, whatever a note may do
                    span.nbytes = -1
        return result

    return call


class Patches:
    """What is in the place of something else, and what was there."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def put(
        self,
        owner: Any,
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        *,
        inherited: bool = False,
    ) -> None:
        """Put what ``make`` returns for a function in its place, looking like it from outside.

        ``inherited``: a class may have it of another one, which stays as it is.
        """
        before = vars(owner).get(name, MISSING)
        if before is MISSING and not inherited:
            raise AttributeError(f"{owner.__name__} has no {name} of its own")
        bound = isinstance(before, (staticmethod, classmethod))
        original = before.__func__ if bound else getattr(owner, name)
        if not callable(original):
            raise TypeError(f"{owner.__name__}.{name} cannot be called")
        after: Any = functools.wraps(original)(make(original))
        if isinstance(owner, ModuleType):
            after.__module__ = owner.__name__  # so it is pickled by reference
            after.__name__ = after.__qualname__ = name
        elif inherited:
            after.__module__, after.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
        after = type(before)(after) if bound else after
        setattr(owner, name, after)
        self.undo_by(functools.partial(_put_back, owner, name, before, after))

    def undo_by(self, undo: Callable[[], None]) -> None:
        """Have a function called when everything is put back."""
        self._undo.append(undo)

    def time(self, owner: Any, name: str, row: TimedCall) -> None:
        """Put a timed function in the place of one."""
        self.put(owner, name, lambda original: timed(original, row))

    def take_back(self) -> None:
        """Put everything back, last first; what somebody replaced in turn stays theirs."""
        while self._undo:
            self._undo.pop()()


def _put_back(owner: Any, name: str, before: object, after: object) -> None:
    if vars(owner).get(name) is not after:
        return
    if before is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


class Hooks(Patches):
    """What ``begin`` puts in the place of something else, once, from whatever thread."""

    def __init__(self, begin: Callable[[Patches], None]) -> None:
        super().__init__()
        self._begin = begin
        self._lock = threading.RLock()

    def install(self) -> None:
        """Put it there, all or nothing. Idempotent."""
        with self._lock:
            if self:
                return
            try:
                self._begin(self)
            except BaseException:
                self.take_back()
                raise

    def uninstall(self) -> None:
        """Put everything back as it was. Idempotent."""
        with self._lock:
            self.take_back()
