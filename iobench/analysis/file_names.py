"""One name for each file, however spans and Darshan spell it.

A name of a stage may be a path, a path and a variable (``x.nc:t2m``), relative, or that of a folder
(a Zarr store) that holds the file; Darshan's are absolute.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.read_spans import NOT_SUMMED
from iobench.recording.kinds import WORKER_KINDS, is_one_of
from iobench.storage.storage_trace import is_of_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.runs.contents import RunData
    from iobench.storage.storage_trace import StorageTrace


def file_of(text: str) -> str:
    """Return what of a stage's text is the name of a file; ``""`` if it names none."""
    text = text.removeprefix("file://")
    head, _, tail = text.rpartition(":")
    if head and not tail.startswith("/"):
        text = head
    return text if "/" in text or PurePosixPath(text).suffix else ""


class FileNames:
    """Names of files: Darshan's path, or the folder of a store that spans name."""

    def __init__(self, texts: Iterable[str], files: Iterable[str]) -> None:
        self._of_text: dict[str, str] = {}
        self._of_file: dict[str, str] = {}
        whole = set(files)
        by_base: defaultdict[str, list[str]] = defaultdict(list)
        for path in whole:
            by_base[posixpath.basename(path)].append(path)
        folders: dict[str, str] = {}
        for text in texts:
            if is_of_interpreter(text):
                continue
            plain = [_plain(text.removeprefix("file://")), _plain(file_of(text))]
            matches = [path for each in plain for path in _matches(each, whole, by_base)]
            if matches:
                self._of_text[text] = self._of_file[matches[0]] = matches[0]
            elif plain[1]:
                self._of_text[text] = folders.setdefault(plain[1], file_of(text))
        for path in whole - self._of_file.keys():
            ends = ((_end_of(each, path), folders[each]) for each in folders)
            end, name = max(ends, default=(-1, ""))
            if end >= 0:
                self._of_file[path] = name

    def __bool__(self) -> bool:
        return bool(self._of_text)

    def of_text(self, text: str) -> str:
        """Return the name of the file that a span's text names; ``""`` if that is none."""
        return self._of_text.get(text, "")

    def of_file(self, path: str) -> str | None:
        """Return the name of Darshan's file; its path if spans name no files, None if not this."""
        return self._of_file.get(path) if self else path


def names_of(profile: RunData, trace: StorageTrace | None) -> FileNames:
    """Return the names of the files of a run, by its working spans and its logs."""
    spans = profile.spans
    chosen = ((spans["flags"] & NOT_SUMMED) == 0) & is_one_of(spans["kind"], WORKER_KINDS)
    texts = [profile.strings[each] for each in np.unique(spans["detail"][chosen]).tolist()]
    logs = () if trace is None else trace.processes
    return FileNames(texts, [name for log in logs for name in log.files])


def _plain(path: str) -> str:
    """Return a path without dots; a relative one without what leads out of its folder."""
    path = posixpath.normpath(path) if path else ""
    while path.startswith("../"):
        path = path[3:]
    return path


def _matches(path: str, whole: set[str], by_base: dict[str, list[str]]) -> list[str]:
    """Return the one file of this path, or with this end; nothing where several could be meant."""
    if path in whole:
        return [path]
    if not path or path.startswith("/"):
        return []
    ends = [each for each in by_base.get(posixpath.basename(path), ()) if each.endswith(f"/{path}")]
    return ends if len(ends) == 1 else []


def _end_of(folder: str, path: str) -> int:
    """Return where a folder, absolute or the end of one, ends in a path inside it; else -1."""
    name = folder.lstrip("/")
    place = path.rfind(f"/{name}/")
    return -1 if place < 0 or (place > 0 and folder != name) else place + len(name)
