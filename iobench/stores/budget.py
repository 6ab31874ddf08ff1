"""How much a probe may take: bytes and seconds, whichever ends first."""

from __future__ import annotations

from iobench.recording.clocks import now_ns

__all__ = ["Budget"]


class Budget:
    """Time since its making against a limit; the clock itself is read in ``iobench.recording``.

    Parameters
    ----------
    limit_s : float or None
        Seconds that may pass; None for no limit.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._end_ns = None if limit_s is None else now_ns() + round(limit_s * 1e9)

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return self._end_ns is not None and now_ns() >= self._end_ns
