"""Which recorder ``stage`` writes to in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from iobench.recording.recorder import Recorder

_active: Recorder | None = None


class _Activation:
    """Puts back, at the end of a ``with`` statement, the recorder that was active before."""

    __slots__ = ("_before", "_recorder")

    def __init__(self, recorder: Recorder | None, before: Recorder | None) -> None:
        self._recorder = recorder
        self._before = before

    def __enter__(self) -> Recorder | None:
        return self._recorder

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _set_active(self._before)


def _set_active(recorder: Recorder | None) -> None:
    global _active
    _active = recorder


def activate(recorder: Recorder | None) -> _Activation:
    """Make a recorder the one that ``stage`` writes to, or none; takes effect at once.

    As a context manager it puts the one before back at the end.
    """
    activation = _Activation(recorder, _active)
    _set_active(recorder)
    return activation


def active_recorder() -> Recorder | None:
    """Return the recorder that ``stage`` writes to in this process."""
    return _active
