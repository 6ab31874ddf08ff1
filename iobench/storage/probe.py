"""A bounded, read-only probe of what storage gives a reader of a run's shape, by existing files.

It reads past the page cache, and leaves that as it was.
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

import numpy as np

from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.files.urls import is_url
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.this_process import host_name
from iobench.storage.file_systems import file_system_of
from iobench.storage.probe_figures import (
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
ENOUGH_NBYTES, ENOUGH_READS = 160 << 20, 1280
"""What ends a probe: its figure stands then."""
HELD_NBYTES: Final = 256 << 20
"""Of all buffers: larger requests are read in parts."""
MOST_READERS, MOST_PATHS, MOST_FILES, MOST_ENTRIES = 128, 1024, 128, 20_000
ALIGNMENT: Final = max(4096, mmap.PAGESIZE)
"""Of offsets, lengths and buffers of direct reads."""


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
    paths, sizes = zip(*chosen, strict=True)
    on = file_system_of(paths[0])
    served_by = {"local": DEVICE, "network": SERVER, "memory": MEMORY}.get(on.reach, STORAGE)
    if on.reach == "local" and not on.in_page_cache:
        served_by = UNKNOWN  # ZFS quietly reads through its own cache
    n = min(ENOUGH_READS, max(readers, ENOUGH_NBYTES // request))
    requests = random_requests(sizes, request, n, np.random.default_rng(0))
    calls, refused = [], "no time was left for it"
    try:
        calls = _read(paths, requests, readers, start_ns + round(duration_s * 1e9), clock)
    except OSError as error:
        if error.errno != errno.EINVAL:
            name = error.filename or paths[0]
            raise StorageError(f"{name}: cannot be read: {error.strerror or error}") from error
        refused = f"{on.name} refuses O_DIRECT"
    return StorageLimits(
        path=os.path.commonpath([path.resolve() for path in paths]),
        mount=on.mount,
        host=host_name(),
        file_system=on.name,
        wall_ns=clock.wall_ns(),
        like=like,
        request_nbytes=request,
        n_files=len(chosen),
        files_nbytes=sum(sizes),
        reads=(_figures(calls, readers, served_by, refused),),
        spent_ns=clock.now_ns() - start_ns,
    )


def _read(
    paths: Sequence[Path],
    requests: NDArray[Any],
    readers: int,
    deadline_ns: int,
    clock: Clock,
) -> list[tuple[int, int, int]]:
    """Read each share of the requests by a thread; return begin, end and bytes of each read."""
    with contextlib.ExitStack() as stack:
        fds = []
        for path in paths:
            fds.append(open_quietly(path, os.O_DIRECT))
            stack.callback(os.close, fds[-1])
        # Anonymous mappings: aligned as direct reads need it, and touched before the first.
        size = int(requests[:, 2].max(initial=0))
        buffers = [stack.enter_context(mmap.mmap(-1, size)) for _ in range(readers)]
        for buffer in buffers:
            buffer[:: mmap.PAGESIZE] = bytes(len(buffer[:: mmap.PAGESIZE]))

        def read_share(share: NDArray[Any], buffer: mmap.mmap) -> list[tuple[int, int, int]]:
            calls: list[tuple[int, int, int]] = []
            with memoryview(buffer) as whole:
                for file, offset, nbytes in share.tolist():
                    with whole[:nbytes] as part:
                        start_ns = clock.now_ns()
                        if start_ns >= deadline_ns:
                            break
                        returned = os.preadv(fds[file], [part], offset)
                        calls.append((start_ns, clock.now_ns(), returned))
            return calls

        with ThreadPoolExecutor(readers) as pool:
            done = pool.map(read_share, np.array_split(requests, readers), buffers)
            return [call for each in done for call in each]


def _figures(
    calls: Sequence[tuple[int, int, int]], threads: int, served_by: str, refused: str
) -> ReadFigures:
    if not calls:
        return ReadFigures(way=DIRECT, threads=threads, refused=refused)
    latencies_ns = [end - start for start, end, _ in calls]
    nbytes = sum(nbytes for *_, nbytes in calls)
    wall_ns = max(end for _, end, _ in calls) - min(start for start, *_ in calls)
    points = np.quantile(latencies_ns, (0.5, 0.9, 0.99, 1.0), method="inverted_cdf")
    return ReadFigures(
        way=DIRECT,
        threads=threads,
        n_reads=len(calls),
        nbytes=nbytes,
        wall_ns=wall_ns,
        bytes_per_s=nbytes / wall_ns * 1e9 if wall_ns else None,
        reads_per_s=len(calls) / wall_ns * 1e9 if wall_ns else None,
        latency_ns=tuple(map(int, points)),
        served_by=served_by,
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
) -> NDArray[np.int64]:
    """Return file, offset and bytes of at most ``n`` requests in random order, none twice.

    A file that is shorter than a request is one range. They are as wide as direct reads need.
    """
    lengths = np.asarray(sizes, np.int64)
    ends = np.cumsum(np.maximum(1, lengths // request_nbytes))
    slots = rng.choice(ends[-1], min(n, int(ends[-1])), replace=False)
    file = np.searchsorted(ends, slots, side="right")
    start = (slots - np.append(0, ends[:-1])[file]) * request_nbytes
    stop = start + np.minimum(request_nbytes, lengths[file])
    start = start // ALIGNMENT * ALIGNMENT
    return np.stack((file, start, -(-stop // ALIGNMENT) * ALIGNMENT - start), axis=1)


def open_quietly(path: os.PathLike[str], flags: int = 0) -> int:
    """Open for reading, without leaving a time of access where that is ours to choose."""
    flags |= os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:  # a file of somebody else
        return os.open(path, flags)
