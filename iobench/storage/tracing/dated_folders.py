"""The folders by date that some runtimes write logs to, and expect to be there."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["flatten", "make_dated"]


def make_dated(folder: Path, wall_ns: int, *, n_days: int) -> None:
    """Make ``YEAR/MONTH/DAY`` for processes that start on these days, and in other time zones."""
    first = datetime.fromtimestamp(wall_ns / 1e9).astimezone()
    for number in range(-1, n_days + 1):
        day = first + timedelta(days=number)
        (folder / str(day.year) / str(day.month) / str(day.day)).mkdir(parents=True, exist_ok=True)


def flatten(folder: Path) -> None:
    """Move whole logs out of the folders by date, and remove those that are empty then."""
    for path in sorted(folder.glob("*/*/*/*.darshan")):
        with contextlib.suppress(FileNotFoundError):  # another launcher of the job was first
            path.rename(folder / path.name)
    for depth in ("*/*/*", "*/*", "*"):
        for path in sorted(folder.glob(depth)):
            if path.is_dir() and path.name.isdecimal():
                with contextlib.suppress(OSError):  # not empty: something is being written
                    path.rmdir()
