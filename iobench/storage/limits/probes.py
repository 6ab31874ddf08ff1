"""What a probe of storage is asked to read, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DEFAULT_REQUEST_NBYTES",
    "MAX_HELD_NBYTES",
    "MAX_REQUEST_NBYTES",
    "ORDERS",
    "Probe",
]

DEFAULT_REQUEST_NBYTES: Final = 1 << 20
MAX_REQUEST_NBYTES: Final = 64 << 20
MAX_HELD_NBYTES: Final = 4 << 30
"""Of the buffers of all threads."""
ORDERS: Final = ("random", "sequential")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What to read and for how long at most; all of it within these bounds.

    Parameters
    ----------
    path : Path
        A file or folder.
    threads : tuple of int
    request_nbytes : int
        One read; at most 64 MiB, larger ones are cut to that.
    orders : tuple of str
        ``"random"`` and ``"sequential"``, or one of them.
    like : str
        Whose requests these are, in words.
    duration_s : float
    max_nbytes : int
    """

    path: Path
    threads: tuple[int, ...] = (1,)
    request_nbytes: int = DEFAULT_REQUEST_NBYTES
    orders: tuple[str, ...] = ORDERS
    like: str = ""
    duration_s: float = 20.0
    max_nbytes: int = 4 << 30

    def __post_init__(self) -> None:
        if not self.threads or min(self.threads) < 1 or max(self.threads) > 1024:
            raise OptionError(f"threads {self.threads}: expected numbers from 1 to 1024")
        if self.request_nbytes < 1 or self.max_nbytes < 1 or not 0 < self.duration_s < 1e6:
            raise OptionError("a probe needs a request, a size and a duration of more than 0")
        held = max(self.threads) * min(self.request_nbytes, MAX_REQUEST_NBYTES)
        if held > MAX_HELD_NBYTES:
            raise OptionError(
                f"{max(self.threads)} threads with {held} B of buffers: expected fewer threads; "
                f"buffers may have {MAX_HELD_NBYTES} B in all"
            )
        if not self.orders or set(self.orders) - set(ORDERS):
            raise OptionError(f"orders {self.orders}: expected some of {', '.join(ORDERS)}")
