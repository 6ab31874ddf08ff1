"""Which recorder ``stage`` writes to in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.recording.recorder import Recorder

_active: Recorder | None = None


class _Activation:
    """Puts back, at the end of a ``with`` statement, the recorder that was active before."""

    __slots__ = ("_before",)

    def __init__(self, before: Recorder | None) -> None:
        self._before = before

    def __enter__(self) -> Recorder | None:
        return _active

    def __exit__(self, *error: object) -> None:
        activate(self._before)


def activate(recorder: Recorder | None) -> _Activation:
    """Make a recorder the one that ``stage`` writes to, or none; takes effect at once."""
    global _active
    before, _active = _active, recorder
    return _Activation(before)


def active_recorder() -> Recorder | None:
    """Return the recorder that ``stage`` writes to in this process."""
    return _active
