"""Which existing files a probe reads, and which ranges of them, so that no set warms another's."""

from __future__ import annotations

import os
import stat
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock

__all__ = ["REQUEST_DTYPE", "ChosenFiles", "ProbeFile", "RequestSlots", "choose_files"]

MAX_FILES: Final = 128
MAX_ENTRIES: Final = 20_000
MAX_ENTRIES_OF_A_FOLDER: Final = 2_000
SMALL: Final = 0.1
"""Files shorter than half a request are left out if they hold less than this share of all."""


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """A file that is there, with its size."""

    path: Path
    nbytes: int


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """Files to read, by path, and what was not looked at, in words."""

    files: tuple[ProbeFile, ...]
    notes: tuple[str, ...] = ()


def choose_files(path: Path, request_nbytes: int, *, clock: Clock, deadline_ns: int) -> ChosenFiles:
    """Return files below ``path``, or itself; hidden ones and links to folders are left out.

    Folders are looked through level by level, at most 20,000 entries, 2,000 of one folder, and
    none after the deadline.

    Raises
    ------
    OptionError
        If the path is a URL, or neither a file nor a folder.
    MissingFileError
        If it is not there, or holds no file with a byte in it.
    StorageError
        If it cannot be read.
    """
    if is_url(str(path)):
        raise OptionError(f"{path}: is read over the network; limits are those of a mounted folder")
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: is not there; name a file or folder that is") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    notes: list[str] = []
    if stat.S_ISREG(status.st_mode):
        found = [ProbeFile(path, status.st_size)] if status.st_size else []
    elif stat.S_ISDIR(status.st_mode):
        found, notes = _below(path, clock, deadline_ns)
    else:
        raise OptionError(f"{path}: is neither a file nor a folder")
    if not found:
        why = f" ({notes[0]})" if notes else ""
        raise MissingFileError(
            f"{path}: holds no file to read{why}; a probe reads existing files and writes none"
        )
    found = sorted(_without_small(found, request_nbytes), key=lambda file: file.path)
    n = min(len(found), MAX_FILES)
    chosen = tuple(found[number * len(found) // n] for number in range(n))
    return ChosenFiles(chosen, tuple(notes))


def _below(root: Path, clock: Clock, deadline_ns: int) -> tuple[list[ProbeFile], list[str]]:
    folders = deque([root])
    found: list[ProbeFile] = []
    notes: list[str] = []
    closed = 0
    left = MAX_ENTRIES
    while folders:
        if left <= 0 or clock.now_ns() >= deadline_ns:
            notes.append(f"{len(folders)} folders were not looked into")
            break
        try:
            entries = list(_first(folders.popleft(), min(left, MAX_ENTRIES_OF_A_FOLDER)))
        except OSError as error:
            if not found and not folders and not closed:
                raise StorageError(f"{root}: cannot be read: {error.strerror}") from error
            closed += 1
            continue
        left -= len(entries)
        if len(entries) == MAX_ENTRIES_OF_A_FOLDER:
            notes.append("of a large folder its first 2,000 entries were looked at")
        for entry in entries:
            kind = _kind(entry)
            if isinstance(kind, int):
                found.append(ProbeFile(Path(entry.path), kind))
            elif kind == "folder":
                folders.append(Path(entry.path))
    if closed:
        notes.append(f"{closed} folders cannot be read")
    return found, list(dict.fromkeys(notes))


def _first(folder: Path, n: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from islice(entries, n)


def _kind(entry: os.DirEntry[str]) -> int | str:
    """Return the size of a file, ``"folder"``, or ``""`` of what is left out."""
    if entry.name.startswith("."):
        return ""
    try:
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        return (entry.stat().st_size or "") if entry.is_file() else ""
    except OSError:
        return ""  # gone meanwhile, or a link to nothing


def _without_small(files: list[ProbeFile], request_nbytes: int) -> list[ProbeFile]:
    """Leave out manifests and their like beside the data."""
    large = [file for file in files if 2 * file.nbytes >= request_nbytes]
    all_nbytes = sum(file.nbytes for file in files)
    rest_nbytes = all_nbytes - sum(file.nbytes for file in large)
    return large if large and rest_nbytes < SMALL * all_nbytes else files


REQUEST_DTYPE: Final = np.dtype([("file", "<i8"), ("offset", "<i8"), ("nbytes", "<i8")])
LONGEST_STRETCH: Final = 64
"""RequestSlots in a row that belong to one set."""
SHUFFLED: Final = 1 << 20
"""So many slots are shuffled; of more, some are drawn."""


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Files cut into ranges of one request each, and these dealt out in stretches to sets.

    Where there are too few for all sets, each has all of them.

    Parameters
    ----------
    sizes : sequence of int
        Of the files.
    request_nbytes : int
        A file shorter than that is one range.
    n_sets : int
    """

    sizes: Sequence[int]
    request_nbytes: int
    n_sets: int

    @property
    def n(self) -> int:
        """Ranges in all."""
        return int(self._counts().sum())

    @property
    def shared(self) -> bool:
        """Whether sets have ranges in common."""
        return self.n < 2 * self.n_sets

    def requests(self, number: int, n: int, order: str, rng: np.random.Generator) -> NDArray[Any]:
        """Return at most ``n`` requests of a set as `REQUEST_DTYPE`; none twice.

        Random, or in the order in which they lie in stretches spread over the files.
        """
        total = self.n
        n_sets, number = (1, 0) if self.shared else (self.n_sets, number)
        length = max(1, min(LONGEST_STRETCH, total // (4 * n_sets)))
        # The end of a stretch is left out: what is read ahead of it must not warm another set.
        used = length - length // 4 if n_sets > 1 else length
        n_stretches = -(-total // length)
        n_own = len(range(number, n_stretches, n_sets))
        if order == "sequential":
            wanted = min(n_own, max(1, -(-n // used)))
            own = np.unique(np.linspace(0, n_own - 1, wanted).round().astype(np.int64))
        elif n_own * length <= SHUFFLED:
            own = np.arange(n_own, dtype=np.int64)
        else:
            own = np.unique(rng.integers(0, n_own, n))
        first = (number + own * n_sets) * length
        if order != "sequential" and n_own * length > SHUFFLED:
            slots = first + rng.integers(0, used, len(first))
        else:
            slots = (first[:, None] + np.arange(used)).ravel()
        slots = slots[slots < total]
        if order != "sequential":
            slots = rng.permutation(slots)
        return self._ranges(slots[: max(0, n)])

    def _counts(self) -> NDArray[np.int64]:
        return np.maximum(1, np.asarray(self.sizes, np.int64) // self.request_nbytes)

    def _ranges(self, slots: NDArray[np.int64]) -> NDArray[Any]:
        ends = np.cumsum(self._counts())
        file = np.searchsorted(ends, slots, side="right")
        within = slots - np.append(0, ends[:-1])[file]
        made = np.zeros(len(slots), REQUEST_DTYPE)
        made["file"] = file
        made["offset"] = within * self.request_nbytes
        made["nbytes"] = np.minimum(self.request_nbytes, np.asarray(self.sizes, np.int64)[file])
        return made
