"""How much of its spans a run keeps one by one: the bound, and files of ended workers within it.

What reads span files is loaded where it is used: most recordings read none.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import zlib
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError, ProfileError
from iobench.recording import span_file as layout
from iobench.recording.folding import Fold

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iobench.recording.recorder import Recorder

KEEP: Final = "IOBENCH_KEEP"
"""Environment: how many bytes of spans a run keeps one by one: ``500MB``, ``2GB``."""
KEPT_NBYTES: Final = 500_000_000
"""By default: a report takes about nine times as much memory, which a laptop still has."""
KEPT_TEXT: Final = "500 MB"
LEAST_NBYTES: Final = 1_000_000
UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SHARES: Final = 16
"""Files that those of ended workers are joined to, about; each is folded at once."""


def keep_nbytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes of spans a run keeps one by one.

    Raises
    ------
    OptionError
        If the environment names no such size.
    """
    text = environment.get(KEEP, "").strip()
    if not text:
        return KEPT_NBYTES
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)\s*([KMGT]?B?)", text.upper())
    unit = "" if found is None else found[2] if found[2].endswith("B") else f"{found[2]}B"
    nbytes = 0 if found is None else int(float(found[1]) * UNITS[unit])
    if nbytes < LEAST_NBYTES:
        raise OptionError(f"{KEEP}={text}: expected a size of 1 MB at least, such as 500MB or 2GB")
    return nbytes


def keep_text(environment: Mapping[str, str] = os.environ) -> str:
    """Return `keep_nbytes` as it was spelled."""
    return environment.get(KEEP, "").strip() or KEPT_TEXT


def day_line(day_nbytes: int, kept_nbytes: int) -> str:
    """Return what a day of spans takes, and how much of it a run keeps one by one."""
    takes = f"a day of spans takes about {max(day_nbytes // 10**6, 1):,} MB at this pace"
    if day_nbytes > kept_nbytes:
        hours = 24 * kept_nbytes // day_nbytes
        lasts = f"{hours:,} hours" if hours > 1 else f"{24 * 60 * kept_nbytes // day_nbytes} min"
        return (
            f"{takes}: {keep_text()} ({KEEP}) keep at most the last {lasts}, of older ones there "
            "are sums"
        )
    return f"{takes}; {keep_text()} ({KEEP}) keep {kept_nbytes // max(day_nbytes, 1):,} days of it"


def written_nbytes(folder: Path, rank: int) -> int:
    """Return what a training process and its workers have written, but for space in reserve."""
    from iobench.recording.span_reader import read_head

    found = 0
    for path in folder.glob("*.spans"):
        try:
            head = read_head(path)
            if head.identity.rank != rank:
                continue
            with path.open("rb", buffering=0) as file:
                for start in range(layout.HEADER_NBYTES, path.stat().st_size, layout.CHUNK_NBYTES):
                    file.seek(start)
                    found += layout.CHUNK_NBYTES if any(file.read(layout.RECORD_NBYTES)) else 0
        except (OSError, ProfileError):
            continue  # being made, or folded and gone
    return found


class EndedWorkers:
    """The span files of a training process's ended workers: a few, and within a bound.

    Workers made anew for each epoch leave one file each. They are joined, and of too many bytes
    the oldest are folded.

    Parameters
    ----------
    folder : Path
        Where workers write.
    recorder : Recorder
        Of the training process; it holds the sums.
    keep_nbytes : int
        What the files may take; the oldest are folded, and removed.
    """

    def __init__(self, folder: Path, recorder: Recorder, keep_nbytes: int) -> None:
        self._folders = tuple(dict.fromkeys((folder, recorder.directory)))
        self._recorder = recorder
        self._keep_nbytes = keep_nbytes
        self._others = {recorder.path.name} if recorder.path is not None else set()
        self._ended: dict[str, int] = {}  # name: bytes, oldest first
        self._joined: list[Path] = []
        self._lock = threading.Lock()

    def fold(self) -> int:
        """Join files that are new, fold the oldest of too many bytes; return how many are gone."""
        with self._lock, self._recorder.quiet():
            for path, nbytes in self._new():
                if nbytes > self._keep_nbytes // SHARES // 4 or not self._join(path, nbytes):
                    self._ended[path.name] = nbytes
            n_folded, nbytes = 0, sum(self._ended.values())
            while self._ended and nbytes > self._keep_nbytes:
                name = next(iter(self._ended))
                nbytes -= self._ended.pop(name)
                n_folded += self._fold_file(name)
            return n_folded

    def close(self) -> None:
        """Mark the joined files closed, so that they may be moved."""
        clock = self._recorder.clock
        end = layout.END.pack(clock.now_ns(), clock.wall_ns(), 1)
        with self._lock, self._recorder.quiet():
            for path in self._joined:
                with contextlib.suppress(OSError), path.open("rb+") as file:
                    file.seek(layout.END_OFFSET)
                    file.write(end)

    def _new(self) -> list[tuple[Path, int]]:
        """Return the files of workers that have ended since, oldest first, with their bytes."""
        from iobench.recording.span_reader import read_head

        found = []
        for path in (path for folder in self._folders for path in folder.glob("*.spans")):
            if path.name in self._others or path.name in self._ended:
                continue
            try:
                head = read_head(path)
            except ProfileError:
                continue  # being made
            if head.identity.ppid != os.getpid() or head.identity.role != "worker":
                self._others.add(path.name)
            elif head.end is not None:
                found.append((head.identity.monotonic_ns, path.name, path, head.reserved_nbytes))
        return [(path, nbytes) for _, _, path, nbytes in sorted(found)]

    def _join(self, path: Path, nbytes: int) -> bool:
        """Add a file to the newest of the joined ones, or a new one, and remove it.

        A kill in between leaves it in both, which readers count once.
        """
        try:
            data = path.read_bytes()
            if len(data) != nbytes:
                return False
            target = self._joined[-1] if self._joined else None
            size = 0 if target is None else self._ended.get(target.name, self._keep_nbytes)
            if target is None or size + nbytes > self._keep_nbytes // SHARES:
                target = self._new_joined()
            with target.open("rb+", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    written = file.write(data)
                except OSError:
                    written = 0
                if written != nbytes:  # a full disk
                    file.truncate(end)
                    return False
        except OSError:
            return False
        self._ended[target.name] += nbytes
        self._others.add(path.name)
        self._remove(path.name)
        return True

    def _new_joined(self) -> Path:
        """Make a file that others are added to; it is not moved before it is closed."""
        recorder = self._recorder
        assert recorder.path is not None
        identity = recorder.identity(layout.JOINED).packed()
        header = bytearray(layout.HEADER_NBYTES)
        header[: len(identity)] = identity
        layout.IDENTITY_CRC.pack_into(header, layout.IDENTITY_CRC_OFFSET, zlib.crc32(identity))
        layout.RESERVED.pack_into(header, layout.RESERVED_OFFSET, layout.HEADER_NBYTES)
        stem = recorder.path.stem.rpartition("-")[0]
        path = self._folders[0] / f"{stem}-j{len(self._joined)}.spans"
        with path.open("xb") as file:
            file.write(header)
        self._joined.append(path)
        self._others.add(path.name)
        self._ended[path.name] = layout.HEADER_NBYTES
        return path

    def _fold_file(self, name: str) -> bool:
        from iobench.recording.span_reader import read_span_files

        path = next((folder / name for folder in self._folders if (folder / name).exists()), None)
        if path is None:
            return False  # removed by somebody
        try:
            files = read_span_files([path])
        except ProfileError:
            return False
        folds = []
        for file in files:
            fold = file.fold or Fold()
            fold.own_ns += file.own_ns or 0
            for lane in range(len(file.thread_names)):
                fold.add(file.spans[file.threads == lane], lane)
            folds.append((fold, file.strings))
        if not self._recorder.fold_in(folds, name):
            return False
        self._remove(name)
        return True

    def _remove(self, name: str) -> None:
        for folder in self._folders:  # where a file was gathered while its process was alive, too
            with contextlib.suppress(OSError):
                (folder / name).unlink()
