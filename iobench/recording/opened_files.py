"""How often a loading process opened files again, for want of room: told beside its spans."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from iobench.json_files import read_fields, read_json

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)
OPENED_FOLDER: Final = "opened"

Counts = tuple[int, int, int]
"""Files opened, those of them opened again, and how many may stay open."""
_counters: list[Callable[[], Counts]] = []


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """What one process opened while it recorded.

    Parameters
    ----------
    pid, rank, worker : int
        Which process; of the training process itself ``worker`` is -1.
    role : str
    opened, reopened : int
        Files opened, and how many of them had been open before and were closed for want of room.
    limit : int
        How many may stay open: a share of ``ulimit -n``.
    """

    pid: int
    rank: int
    role: str
    worker: int
    opened: int
    reopened: int
    limit: int

    def write(self, run: Path, name: str) -> None:
        """Write it into a run directory; where that cannot be, spans count without it."""
        with contextlib.suppress(OSError):
            (run / OPENED_FOLDER).mkdir(exist_ok=True)
            (run / OPENED_FOLDER / f"{name}.json").write_text(json.dumps(asdict(self)), "utf-8")


def count_opened_files(counter: Callable[[], Counts]) -> None:
    """Ask ``counter`` from now on: for the room that opens files, which lies above this one."""
    _counters.append(counter)


def opened_so_far() -> Counts:
    """Return what this process has opened; zeros where it opens nothing."""
    return _counters[-1]() if _counters else (0, 0, 0)


def read_opened(run: Path) -> tuple[OpenedFiles, ...]:
    """Return what the processes of a run told, those that opened files again."""
    found = []
    for path in sorted((run / OPENED_FOLDER).glob("*.json")):
        try:
            found.append(read_fields(OpenedFiles, read_json(path, finite=True)))
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s: cannot be read (%s)", path, error)
    return tuple(sorted(found, key=lambda each: (each.rank, each.worker, each.pid)))
