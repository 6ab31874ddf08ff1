"""One name for each file, however spans and a tracer spell it.

A name of a stage may be a path, a path and a variable (``x.nc:t2m``), relative, or that of a folder
(a Zarr store) that holds the file; the tracer's are absolute.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.read_spans import NOT_SUMMED
from iobench.recording.kinds import WORKER_KINDS, is_one_of
from iobench.storage.storage_trace import is_of_interpreter

if TYPE_CHECKING:
    from iobench.runs.contents import RunData
    from iobench.storage.storage_trace import StorageTrace

Integers = NDArray[np.int64]


class FileNames(msgspec.Struct, frozen=True):
    """Which texts of stages name which files of a tracer.

    Parameters
    ----------
    file : dict of str to int
        Index of the file that a text names.
    folder : dict of str to int
        Number of the folder that a text names.
    folder_of : ndarray of int64, shape (n_files,)
        Number of the innermost such folder that a file lies in, -1 if in none.
    """

    file: dict[str, int]
    folder: dict[str, int]
    folder_of: Integers

    def knows(self, text: str) -> bool:
        """Whether the tracer saw what this text names."""
        return text in self.file or text in self.folder


def file_of(text: str) -> str:
    """Return what of a stage's text is the name of a file; ``""`` if it names none.

    ``x.nc:t2m`` is a variable of a file; a bare word (``t2m``, ``worker-0``) is none.
    """
    text = text.removeprefix("file://")
    head, _, tail = text.rpartition(":")
    if head and not tail.startswith("/"):
        text = head
    return text if "/" in text or PurePosixPath(text).suffix else ""


def match_names(texts: Iterable[str], files: Sequence[str]) -> FileNames:
    """Find the files of a tracer, absolute as they are, among the texts of stages."""
    number = {name: index for index, name in enumerate(files)}
    by_base: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(files):
        by_base[posixpath.basename(name)].append(index)
    found: dict[str, int] = {}
    folders: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        place = _find_file(text, files, number, by_base)
        if place >= 0:
            found[text] = place
        elif path := file_of(text):
            folders[_plain(path)].append(text)
    return FileNames(found, *_find_folders(folders, files))


def _find_file(
    text: str, files: Sequence[str], number: dict[str, int], by_base: dict[str, list[int]]
) -> int:
    for path in dict.fromkeys((_plain(text.removeprefix("file://")), _plain(file_of(text)))):
        if path in number:
            return number[path]
        if path and not path.startswith("/"):
            ends = [
                place
                for place in by_base.get(posixpath.basename(path), ())
                if files[place].endswith(f"/{path}")
            ]
            if len(ends) == 1:
                return ends[0]
    return -1


def _plain(path: str) -> str:
    """Return a path without dots; a relative one without what leads out of its folder."""
    if not path:
        return ""
    path = posixpath.normpath(path)
    while path.startswith("../"):
        path = path[3:]
    return path


def _find_folders(
    folders: dict[str, list[str]], files: Sequence[str]
) -> tuple[dict[str, int], Integers]:
    """Return numbers of the texts whose folders hold files, and for each file its folder's."""
    number: dict[str, int] = {}
    folder_of = np.full(len(files), -1, np.int64)
    depths = sorted({len(name.split("/")) for name in folders if not name.startswith("/")})
    for index, name in enumerate(files if folders else ()):
        parts = name.split("/")
        for length in range(len(parts) - 1, 1, -1):
            whole = "/".join(parts[:length])
            ends = ("/".join(parts[length - depth : length]) for depth in depths if depth < length)
            known = next((path for path in (whole, *ends) if path in folders), None)
            if known is not None:
                place = number.setdefault(folders[known][0], len(number))
                number.update(dict.fromkeys(folders[known], place))
                folder_of[index] = place
                break
    return number, folder_of


class NamedFiles:
    """Finds the name of a file: the tracer's path, or the folder of a store that spans name.

    Files of Python itself have none: a run whose spans name no others names none.
    """

    def __init__(self, profile: RunData, trace: StorageTrace | None) -> None:
        spans = profile.spans
        chosen = ((spans["flags"] & NOT_SUMMED) == 0) & is_one_of(spans["kind"], WORKER_KINDS)
        texts = [profile.strings[each] for each in np.unique(spans["detail"][chosen]).tolist()]
        texts = [text for text in texts if not is_of_interpreter(text)]
        traced = trace.processes if trace is not None else ()
        files = list(dict.fromkeys(name for each in traced for name in each.files))
        found = match_names(texts, files)
        paths = {number: file_of(text) for text, number in found.folder.items()}
        self._of_text = {text: file_of(text) for text in texts}
        self._of_text |= {text: paths[number] for text, number in found.folder.items()}
        self._of_text |= {text: files[number] for text, number in found.file.items()}
        self._of_file: dict[str, str] = {}
        for number in found.file.values():
            self._of_file[files[number]] = files[number]
        for name, folder in zip(files, found.folder_of.tolist(), strict=True):
            if folder >= 0:
                self._of_file.setdefault(name, paths[folder])
        self._any = any(self._of_text.values())

    def __bool__(self) -> bool:
        return self._any

    def of_text(self, text: str) -> str:
        """Return the name of the file that a span's text names; ``""`` if that is none."""
        return self._of_text.get(text, "")

    def of_file(self, path: str) -> str | None:
        """Return the name of a tracer's file; its path if spans name no files, None if not this."""
        return self._of_file.get(path) if self._any else path
