"""Which bytes of which source file were read, so that it can be told later whether they are there.

Size and time of a file say little: tools that rewrite a file in place may keep both. So whoever
makes something of source files in several goes notes digests of some stretches as they are read,
and reads those stretches again before it goes on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from iobench.errors import FileFormatError, MissingFileError
from iobench.files.crc32c import crc32c
from iobench.files.source_files import open_source_file
from iobench.files.urls import URL, range_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

NOTED_NBYTES: Final = 1 << 16
"""Of a stretch no more than its beginning: a CRC-32C of it takes some microseconds."""
NOTED_NUMBERS: Final = frozenset(4**n for n in range(16)) | {0}
"""Of the stretches of a source the first, second, fifth, 17th ...: few, and from all over it."""

Noted = tuple[int, str, int, int, int]
"""Number of the source, path of the file in it (``""``: it is a file), offset, length, CRC-32C."""

_active: tuple[UsedBytes, ...] = ()
_changing = threading.Lock()


class UsedBytes:
    """Digests of stretches of source files that are read between `start` and `stop`.

    What threads of this process read through `iobench.datasets.read_extents`, or as chunks of Zarr
    stores, is seen. What libraries read by themselves is not.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._numbers = {range_file(file): number for number, file in enumerate(files)}
        self._folders: dict[str, tuple[int, str]] = {}
        self._counts: dict[int, int] = {}
        self._noted: list[Noted] = []

    @property
    def noted(self) -> list[Noted]:
        """What was noted; JSON-ready."""
        return list(self._noted)

    def start(self) -> None:
        """Begin to note."""
        global _active
        with _changing:
            _active = (*_active, self)

    def stop(self) -> None:
        """Note no more."""
        global _active
        with _changing:
            _active = tuple(each for each in _active if each is not self)

    def note(self, path: str, offset: int, content: memoryview) -> None:
        """Note a stretch that was read, if it is one of the few of its source."""
        source = self._numbers.get(path)
        inside = ""
        if source is None:
            folder, name = _divided(path)
            found = self._folders.get(folder)
            if found is None:
                found = self._folders[folder] = self._of_folder(folder)
            source, inside = found[0], f"{found[1]}{name}"
        if source < 0:
            return
        # Two threads may count the same number: then one more is noted, or one less.
        count = self._counts.get(source, 0)
        self._counts[source] = count + 1
        if count in NOTED_NUMBERS and len(content):
            some = content[:NOTED_NBYTES]
            self._noted.append((source, inside, offset, len(some), crc32c(some)))

    def _of_folder(self, folder: str) -> tuple[int, str]:
        """Return the source that a folder is in, and what leads there from it; -1: in none."""
        above, name, inside = folder, folder, ""
        while above and name:
            if above in self._numbers:
                return self._numbers[above], inside
            above, name = _divided(above)
            inside = f"{name}/{inside}"
        return -1, ""


def _divided(path: str) -> tuple[str, str]:
    """Return a folder and the name in it; no folder where there is none."""
    if isinstance(path, URL):
        return (range_file(path.parent), path.name) if path.parent != path else ("", "")
    folder, _, name = path.rpartition("/")
    return folder, name


def note_used(stretches: Sequence[tuple[str, int, memoryview]]) -> None:
    """Tell whoever notes that (path, offset, content) were read."""
    for each in _active:
        for path, offset, content in stretches:
            each.note(path, offset, content)


def first_changed(files: Sequence[Path], noted: Iterable[Noted]) -> tuple[Path, int] | None:
    """Return the first file, and where in it, whose bytes are not as noted; None if all are."""
    for source, inside, offset, nbytes, digest in noted:
        file = files[source] / inside if inside else files[source]
        content = memoryview(bytearray(nbytes))
        try:
            open_source_file(file).fill(content, offset)
        except (FileFormatError, MissingFileError):  # shorter now, or a chunk that is gone
            return file, offset
        if crc32c(content) != digest:
            return file, offset
    return None
