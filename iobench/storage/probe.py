"""A bounded, read-only probe of what storage gives a reader of a run's shape, by existing files.

It reads in short turns, past the page cache and out of it, and leaves the page cache as it was:
through it only such ranges are read of which it holds nothing, and these are dropped again, or of
which it holds all.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.urls import is_url
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.this_process import host_name
from iobench.storage.file_systems import file_system_of
from iobench.storage.page_cache import pages_of
from iobench.storage.probe_figures import (
    CACHE,
    CACHED,
    DEVICE,
    DIRECT,
    MEMORY,
    SERVER,
    STORAGE,
    UNKNOWN,
    ReadFigures,
    StorageLimits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock

LIMITS: Final = "IOBENCH_LIMITS"
"""What ``--limits auto`` stands for: seconds, or ``off``."""
DEFAULT_S, MOST_S = "2", 60.0
TURNS: Final = 5
"""Of each way of reading, spread over the time."""
TURN_NBYTES, TURN_READS = 32 << 20, 256
"""What ends a turn: its figure stands then."""
WARM_NBYTES: Final = 8 << 20
"""What is brought into the page cache to be read out of it."""
HELD_NBYTES: Final = 256 << 20
"""Of all buffers: larger requests are read in parts."""
MOST_READERS, MOST_PATHS, MOST_FILES, MOST_ENTRIES = 128, 1024, 128, 20_000
ALIGNMENT: Final = max(4096, mmap.PAGESIZE)
"""Of offsets, lengths and buffers of direct reads."""
DROP_TRIES: Final = 4
"""A page that the kernel is moving just then is dropped at the next."""
REQUEST_DTYPE: Final = np.dtype([("file", "<i8"), ("offset", "<i8"), ("nbytes", "<i8")])


def probe_seconds(limits: str, environ: Mapping[str, str] = os.environ) -> float | None:
    """Return how long the probe of a run may take, by ``--limits``; None for none."""
    text = environ.get(LIMITS, DEFAULT_S) if limits == "auto" else limits
    if text == "off":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_S:
        named = f"{LIMITS}={text}" if limits == "auto" else f"--limits {text}"
        raise OptionError(f"{named}: expected off, or seconds, more than 0 and at most {MOST_S:g}")
    return seconds


def probe_run(
    files: Sequence[Path],
    request_nbytes: int,
    readers: int,
    *,
    like: str = "",
    duration_s: float,
    clock: Clock = SYSTEM_CLOCK,
) -> StorageLimits:
    """Read ranges of a run's files as the run does, for so long at most, and return what that gave.

    A read that was begun by then is waited for. A folder stands for the files below it; ``like``
    says whose requests these are. Where there is nothing to probe it is an `IobenchError`.
    """
    start_ns = clock.now_ns()
    if not files:
        raise OptionError("which files are read is unknown")
    readers = min(readers, MOST_READERS)
    request = max(1, min(request_nbytes, HELD_NBYTES // readers))
    chosen = choose_files(files, request)
    probe = _Probe([path for path, _ in chosen], readers, clock)
    sizes = [nbytes for _, nbytes in chosen]
    n = min(TURN_READS, max(readers, TURN_NBYTES // request))
    requests = random_requests(sizes, request, 2 * TURNS * n, np.random.default_rng(0))
    try:
        probe.measure(aligned(requests), n, start_ns + round(duration_s * 1e9))
    except OSError as error:
        name = error.filename or chosen[0][0]
        raise StorageError(f"{name}: cannot be read: {error.strerror or error}") from error
    on = probe.file_system
    return StorageLimits(
        path=os.path.commonpath([path.resolve() for path, _ in chosen]),
        mount=on.mount,
        host=host_name(),
        file_system=on.name,
        wall_ns=clock.wall_ns(),
        like=like,
        request_nbytes=request,
        n_files=len(chosen),
        files_nbytes=sum(sizes),
        reads=probe.figures(),
        spent_ns=clock.now_ns() - start_ns,
    )


def choose_files(paths: Sequence[Path], request_nbytes: int) -> list[tuple[Path, int]]:
    """Return files at paths or below them, with their sizes; hidden ones are left out."""
    files = [each for path in _spread(paths, MOST_PATHS) for each in _files_at(path)]
    if not files:
        raise MissingFileError(
            f"{paths[0]}: holds no file to read; a probe reads existing files and writes none"
        )
    # Manifests and their like lie with the data.
    large = [each for each in files if 2 * each[1] >= request_nbytes]
    return _spread(sorted(large or files), MOST_FILES)


def _spread(among: Sequence[Any], most: int) -> list[Any]:
    n = min(len(among), most)
    return [among[number * len(among) // n] for number in range(n)]


def _files_at(path: Path) -> list[tuple[Path, int]]:
    if is_url(path):
        raise OptionError(f"{path}: is read over the network; limits are those of a mounted folder")
    if not path.exists():
        raise MissingFileError(f"{path}: no such file or folder; check the spelling")
    files = [path] if path.is_file() else islice(_below(path), MOST_ENTRIES)
    sizes = []
    for file in files:
        with contextlib.suppress(OSError):  # gone meanwhile, or a link to nothing
            sizes.append((file, file.stat().st_size))
    return [each for each in sizes if each[1]]


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def random_requests(
    sizes: Sequence[int], request_nbytes: int, n: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Return at most ``n`` requests as `REQUEST_DTYPE`, in random order, none twice.

    A file that is shorter than a request is one range.
    """
    lengths = np.asarray(sizes, np.int64)
    ends = np.cumsum(np.maximum(1, lengths // request_nbytes))
    slots = rng.choice(ends[-1], min(n, int(ends[-1])), replace=False)
    file = np.searchsorted(ends, slots, side="right")
    requests = np.zeros(len(slots), REQUEST_DTYPE)
    requests["file"] = file
    requests["offset"] = (slots - np.append(0, ends[:-1])[file]) * request_nbytes
    requests["nbytes"] = np.minimum(request_nbytes, lengths[file])
    return requests


def aligned(requests: NDArray[Any]) -> NDArray[Any]:
    """Return the requests widened to what direct reads need."""
    wide = requests.copy()
    wide["offset"] = requests["offset"] // ALIGNMENT * ALIGNMENT
    end = requests["offset"] + requests["nbytes"]
    wide["nbytes"] = -(-end // ALIGNMENT) * ALIGNMENT - wide["offset"]
    return wide


def open_quietly(path: os.PathLike[str], flags: int = 0) -> int:
    """Open for reading, without leaving a time of access where that is ours to choose."""
    flags |= os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:  # a file of somebody else
        return os.open(path, flags)


class _Reads(msgspec.Struct):
    """Reads of one way, over its turns."""

    refused: str = ""
    nbytes: int = 0
    wall_ns: int = 0
    latencies_ns: list[int] = []

    def figures(self, method: str, threads: int, served_by: str) -> ReadFigures:
        n_reads = len(self.latencies_ns)
        if not n_reads:
            refused = self.refused or "no time was left for it"
            return ReadFigures(way=method, threads=threads, refused=refused)
        points = np.quantile(self.latencies_ns, (0.5, 0.9, 0.99, 1.0), method="inverted_cdf")
        return ReadFigures(
            way=method,
            threads=threads,
            n_reads=n_reads,
            nbytes=self.nbytes,
            wall_ns=self.wall_ns,
            bytes_per_s=self.nbytes / self.wall_ns * 1e9 if self.wall_ns else None,
            reads_per_s=n_reads / self.wall_ns * 1e9 if self.wall_ns else None,
            latency_ns=tuple(map(int, points)),
            served_by=served_by,
        )


class _Probe:
    """A probe that is being made."""

    def __init__(self, files: Sequence[Path], readers: int, clock: Clock) -> None:
        self.files, self.readers, self.clock = files, readers, clock
        self.file_system = file_system_of(files[0])
        self.direct, self.cached = _Reads(), _Reads()

    def measure(self, requests: NDArray[Any], n: int, deadline_ns: int) -> None:
        """Read turns of ``n`` requests past the page cache and out of it, one after the other."""
        with contextlib.ExitStack() as stack:

            def opened(flags: int = 0) -> list[int]:
                fds = []
                for file in self.files:
                    fds.append(open_quietly(file, flags))
                    stack.callback(os.close, fds[-1])
                return fds

            # Anonymous mappings: aligned as direct reads need it, and touched before the first.
            size = int(requests["nbytes"].max(initial=0))
            buffers = [stack.enter_context(mmap.mmap(-1, size)) for _ in range(self.readers)]
            for buffer in buffers:
                buffer[:: mmap.PAGESIZE] = bytes(len(buffer[:: mmap.PAGESIZE]))
            through = opened()
            for fd in through:  # nothing beside a range is read
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            try:
                past = opened(os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                past = []
                self.direct.refused = f"{self.file_system.name} refuses O_DIRECT"
            for turn in range(2 * TURNS):
                now_ns = self.clock.now_ns()
                if now_ns >= deadline_ns:
                    break
                until_ns = now_ns + (deadline_ns - now_ns) // (2 * TURNS - turn)
                own = requests[np.arange(turn * n, turn * n + n) % len(requests)]
                if turn % 2:
                    self._read_cached(through, own, buffers, until_ns)
                elif past:
                    self._read(self.direct, past, own, buffers, until_ns)

    def _read_cached(
        self,
        fds: list[int],
        requests: NDArray[Any],
        buffers: Sequence[mmap.mmap],
        until_ns: int,
    ) -> None:
        """Read what the page cache holds; if it holds nothing, bring a little in, and drop it."""
        held = np.array([_held(fds[file], *where) for file, *where in requests.tolist()])
        if not self.file_system.in_page_cache or np.isnan(held).any():
            self.cached.refused = (
                "how much of these files the page cache holds cannot be queried, so it is left "
                "alone"
            )
            return
        cold, remaining = requests[held == 0.0], requests[held == 1.0]
        if len(remaining):
            self._read(self.cached, fds, np.resize(remaining, len(requests)), buffers, until_ns)
            return
        some = cold[: max(1, WARM_NBYTES // max(int(cold["nbytes"].max(initial=1)), 1))]
        try:
            warmed = []
            for each in some:
                if self.clock.now_ns() >= until_ns:
                    break
                warmed.append(each)
                view = memoryview(buffers[0])[: int(each["nbytes"])]
                os.preadv(fds[each["file"]], [view], int(each["offset"]))
                view.release()
            if warmed:
                again = np.resize(np.array(warmed, REQUEST_DTYPE), len(requests))
                self._read(self.cached, fds, again, buffers, until_ns)
        finally:
            for _ in range(DROP_TRIES):
                for file, offset, nbytes in some.tolist():
                    os.posix_fadvise(fds[file], offset, nbytes, os.POSIX_FADV_DONTNEED)
                some = some[[_held(fds[file], *where) != 0.0 for file, *where in some.tolist()]]

    def _read(
        self,
        reads: _Reads,
        fds: list[int],
        requests: NDArray[Any],
        buffers: Sequence[mmap.mmap],
        until_ns: int,
    ) -> None:
        """Read each share of the requests by a thread of its own; none begins after the end."""
        shares = [each for each in np.array_split(requests, self.readers) if len(each)]
        try:
            with ThreadPoolExecutor(self.readers) as pool:
                done = pool.map(
                    lambda share, buffer: self._read_share(fds, share, buffer, until_ns),
                    shares,
                    buffers,
                )
                calls = [call for each in done for call in each]
        except OSError as error:
            if reads is not self.direct or error.errno != errno.EINVAL:
                raise
            reads.refused = f"{self.file_system.name} refuses O_DIRECT"
            return
        if calls:
            reads.nbytes += sum(nbytes for *_, nbytes in calls)
            reads.wall_ns += max(end for _, end, _ in calls) - min(start for start, *_ in calls)
            reads.latencies_ns += [end - start for start, end, _ in calls]

    def _read_share(
        self, fds: Sequence[int], requests: NDArray[Any], buffer: mmap.mmap, deadline_ns: int
    ) -> list[tuple[int, int, int]]:
        """Return begin, end and bytes of each read."""
        calls: list[tuple[int, int, int]] = []
        with memoryview(buffer) as whole:
            for file, offset, nbytes in requests.tolist():
                with whole[:nbytes] as part:
                    start_ns = self.clock.now_ns()
                    if start_ns >= deadline_ns:
                        break
                    returned = os.preadv(fds[file], [part], offset)
                    calls.append((start_ns, self.clock.now_ns(), returned))
        return calls

    def figures(self) -> tuple[ReadFigures, ...]:
        """Return the figures of both ways."""
        on = self.file_system
        storage = {"local": DEVICE, "network": SERVER, "memory": MEMORY}.get(on.reach, STORAGE)
        if on.reach == "local" and not on.in_page_cache:
            storage = UNKNOWN  # ZFS quietly reads through its own cache
        cache = MEMORY if on.reach == "memory" else CACHE
        return (
            self.direct.figures(DIRECT, self.readers, storage),
            self.cached.figures(CACHED, self.readers, cache),
        )


def _held(fd: int, offset: int, nbytes: int) -> float:
    """Return which share of a range the page cache holds; NaN where nothing tells."""
    pages = pages_of(fd, offset, nbytes)
    return float("nan") if pages is None else pages[0] / max(pages[1], 1)
