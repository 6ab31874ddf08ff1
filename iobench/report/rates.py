"""Quotients of measured figures: what a report shows that no analysis sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.analysis.figures import PartExposure, StageExposure

__all__ = ["busy_bytes_per_s", "bytes_per_s", "off_cpu_ns", "read_per_byte", "samples_per_s"]


def samples_per_s(window: PartExposure) -> float | None:
    """Return delivered samples over wall time; None where either is unknown."""
    return _per_s(window.n_samples, window.wall_ns)


def bytes_per_s(window: PartExposure) -> float | None:
    """Return delivered bytes over wall time; None where either is unknown."""
    return _per_s(window.nbytes, window.wall_ns)


def read_per_byte(window: PartExposure) -> float | None:
    """Return the bytes read over the bytes delivered; None where either is unknown."""
    if window.read_nbytes is None or not window.nbytes:
        return None
    return window.read_nbytes / window.nbytes


def busy_bytes_per_s(row: StageExposure) -> float | None:
    """Return the bytes a stage handed on over the time it was busy, of one process or thread."""
    return _per_s(row.nbytes, row.busy_ns)


def off_cpu_ns(row: StageExposure) -> int | None:
    """Return the busy time in which the thread was on no CPU: waiting for a device or a core.

    Not below 0: the clock of CPU time is coarser than that of wall time.
    """
    return None if row.cpu_ns is None else max(0, row.busy_ns - row.cpu_ns)


def _per_s(amount: int | None, ns: int) -> float | None:
    return None if amount is None or not ns else amount * 1_000_000_000 / ns
