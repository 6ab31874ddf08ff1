"""What a probe reads: existing files, ranges of them, each call timed in its thread."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock

T = TypeVar("T")
MAX_FILES, MAX_PATHS = 128, 1024
MAX_ENTRIES: Final = 20_000
MAX_ENTRIES_OF_A_FOLDER: Final = 2_000
SMALL: Final = 0.1
"""Files shorter than half a request are left out if they hold less than this share of all."""


class ProbeFile(msgspec.Struct, frozen=True):
    """A file that is there, with its size."""

    path: Path
    nbytes: int


class ChosenFiles(msgspec.Struct, frozen=True):
    """Files to read, by path, and what was not looked at, in words."""

    files: tuple[ProbeFile, ...]
    notes: tuple[str, ...] = ()


def choose_files(
    paths: Path | list[Path] | tuple[Path, ...],
    request_nbytes: int,
    *,
    clock: Clock,
    deadline_ns: int,
) -> ChosenFiles:
    """Return files below paths, or themselves; hidden ones and links to folders are left out.

    Of more than 1,024 paths so many are looked at. Folders are looked through level by level, at
    most 20,000 entries, 2,000 of one folder, and none after the deadline.

    Raises
    ------
    OptionError
        If the path is a URL, or neither a file nor a folder.
    MissingFileError
        If it is not there, or holds no file with a byte in it.
    StorageError
        If it cannot be read.
    """
    several = _spread(paths, MAX_PATHS) if isinstance(paths, list | tuple) else [paths]
    found: list[ProbeFile] = []
    notes: list[str] = []
    for path in several:
        files, told = _files_at(path, clock, deadline_ns)
        found += files
        notes += told
    if not found:
        why = f" ({notes[0]})" if notes else ""
        raise MissingFileError(
            f"{several[0]}: holds no file to read{why}; a probe reads existing files and writes "
            "none"
        )
    found = sorted(_without_small(found, request_nbytes), key=lambda file: file.path)
    return ChosenFiles(tuple(_spread(found, MAX_FILES)), tuple(dict.fromkeys(notes)))


def _spread(among: Sequence[T], most: int) -> Sequence[T]:
    n = min(len(among), most)
    return [among[number * len(among) // n] for number in range(n)]


def _files_at(path: Path, clock: Clock, deadline_ns: int) -> tuple[list[ProbeFile], list[str]]:
    if is_url(path):
        raise OptionError(f"{path}: is read over the network; limits are those of a mounted folder")
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file or folder; check the spelling") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    if stat.S_ISREG(status.st_mode):
        return [ProbeFile(path, status.st_size)] if status.st_size else [], []
    if stat.S_ISDIR(status.st_mode):
        return _below(path, clock, deadline_ns)
    raise OptionError(f"{path}: is neither a file nor a folder")


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
SHUFFLED: Final = 1 << 20
"""So many ranges are shuffled; of more, some are drawn."""


def random_requests(
    sizes: Sequence[int], request_nbytes: int, n: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Return at most ``n`` requests as `REQUEST_DTYPE`, in random order, none twice.

    Parameters
    ----------
    sizes : sequence of int
        Of the files; one shorter than a request is one range.
    """
    lengths = np.asarray(sizes, np.int64)
    ends = np.cumsum(np.maximum(1, lengths // request_nbytes))
    total = int(ends[-1])
    some = np.arange(total) if total <= SHUFFLED else np.unique(rng.integers(0, total, n))
    slots = rng.permutation(some)[:n]
    file = np.searchsorted(ends, slots, side="right")
    found = np.zeros(len(slots), REQUEST_DTYPE)
    found["file"] = file
    found["offset"] = (slots - np.append(0, ends[:-1])[file]) * request_nbytes
    found["nbytes"] = np.minimum(request_nbytes, lengths[file])
    return found


ALIGNMENT: Final = max(4096, mmap.PAGESIZE)
"""Of offsets, lengths and buffers of direct reads; no device in use asks for more, and whole pages
can be dropped again."""


@dataclass(slots=True)
class Timed:
    """What one thread did: when it began and ended, how long each call took, what it returned."""

    start_ns: int = 0
    end_ns: int = 0
    nbytes: int = 0
    latencies_ns: list[int] = field(default_factory=list)
    error: OSError | None = None


class ProbedFiles:
    """Files open for reading; closed as a context. Their access times are kept where we may."""

    def __init__(self, files: Sequence[ProbeFile], flags: int = 0) -> None:
        self.fds: list[int] = []
        try:
            for file in files:
                self.fds.append(open_quietly(file.path, flags))
        except OSError:
            self.close()
            raise

    def __enter__(self) -> ProbedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all."""
        while self.fds:
            os.close(self.fds.pop())


def open_quietly(path: os.PathLike[str], flags: int = 0) -> int:
    """Open for reading, without leaving a time of access where that is ours to choose."""
    flags |= os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:  # a file of somebody else
        return os.open(path, flags)


def aligned(requests: NDArray[Any]) -> NDArray[Any]:
    """Return the requests widened to what direct reads need."""
    made = requests.copy()
    made["offset"] = requests["offset"] // ALIGNMENT * ALIGNMENT
    end = requests["offset"] + requests["nbytes"]
    made["nbytes"] = -(-end // ALIGNMENT) * ALIGNMENT - made["offset"]
    return made


def read_ranges(
    fds: Sequence[int],
    shares: Sequence[NDArray[Any]],
    buffers: Sequence[mmap.mmap],
    *,
    clock: Clock,
    deadline_ns: int,
) -> list[Timed]:
    """Read each share of the requests by a thread of its own; none begins after the deadline.

    What the system refuses ends a thread; it is in `Timed.error`.
    """
    done = [Timed() for _ in shares]
    stop = threading.Event()

    def read(number: int) -> None:
        now_ns, preadv, timed = clock.now_ns, os.preadv, done[number]
        try:
            with memoryview(buffers[number]) as whole:
                for file, offset, nbytes in shares[number].tolist():
                    with whole[:nbytes] as part:
                        start_ns = now_ns()
                        if start_ns >= deadline_ns or stop.is_set():
                            return
                        timed.nbytes += preadv(fds[file], [part], offset)
                        timed.end_ns = now_ns()
                    timed.latencies_ns.append(timed.end_ns - start_ns)
                    timed.start_ns = timed.start_ns or start_ns
        except OSError as error:
            timed.error = error

    threads = [
        threading.Thread(target=read, args=(number,), daemon=True) for number in range(len(shares))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:  # an interruption ends them all
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return done


def latency_figures(latencies_ns: Sequence[int]) -> tuple[int, ...]:
    """Return median, 90th and 99th percentile and maximum; nothing of nothing.

    Each is a latency that was measured: of an even number, the lower one.
    """
    if not latencies_ns:
        return ()
    ordered = np.sort(np.asarray(latencies_ns, np.int64))
    places = [max(0, -(-len(ordered) * percent // 100) - 1) for percent in (50, 90, 99, 100)]
    return tuple(int(ordered[place]) for place in places)


def refuse(error: OSError, path: os.PathLike[str] | str) -> StorageError:
    """Return what is said of a read that failed."""
    return StorageError(f"{path}: cannot be read: {error.strerror or error}")
