"""Which spans read, of which file, what they handed on, and what the system counted meanwhile.

A name of a stage may be a path, a path and a variable (``x.nc:t2m``), relative, or that of a folder
(a Zarr store) that holds the file; Darshan's are absolute.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.time_intervals import nesting
from iobench.recording.kinds import (
    WORKER_KINDS,
    Trait,
    decodes_too,
    is_one_of,
    lane_keys,
    reads_storage,
    stages_of,
)
from iobench.recording.span_file import Flag, io_looks
from iobench.storage.storage_trace import is_of_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from iobench.runs.contents import RunData
    from iobench.storage.storage_trace import StorageTrace

HARDLY_ANY: Final = 0.05
"""Calls that returned less than this share of what was handed on did not read it."""
OWN_READ_LIMIT: Final = 1024
"""Bytes of one look at ``/proc`` (110 to 150) and of the messages between processes meanwhile."""
NOT_SUMMED: Final = Flag.DETAIL | Flag.IO | Flag.DEVICE
"""Flags of spans whose time and bytes another one counts, or no thread spent."""


class ReadSpans(msgspec.Struct, frozen=True):
    """The spans that read, those of one run that count in its sums."""

    rows: NDArray[np.int64]  # in ``RunData.spans``
    nbytes: NDArray[np.int64]  # handed on, -1 unknown; 0 where spans inside hand on the same bytes
    decoding: NDArray[np.bool_]  # whether it decodes as well


class CountedBytes(msgspec.Struct, frozen=True):
    """What the kernel counted in one process, as ``/proc`` has it; None where it is unknown."""

    rchar: int | None  # bytes of every read call
    device: int | None  # bytes from the device
    n_looks: int  # how often iobench looked, which reads as well
    mapped: int  # handed on by stages where hardly any read call returned bytes: by mappings


def find_read_spans(profile: RunData) -> ReadSpans:
    """Return the spans that read, but for counters, parts of sums and Python's own files."""
    spans = profile.spans
    stages, number = stages_of(spans, profile.strings)
    reading = np.array(
        [Trait.TELLS_READ in kind.traits and reads_storage(kind, label) for kind, label in stages],
        bool,
    )
    decoding = np.array([decodes_too(*stage) for stage in stages], bool)
    chosen = ((spans["flags"] & NOT_SUMMED) == 0) & ~names_interpreter(profile)
    if len(stages):
        chosen &= reading[number]
    rows = np.flatnonzero(chosen)
    nbytes = spans["nbytes"][rows].astype(np.int64)
    nbytes[_counted_inside(spans[rows])] = 0
    return ReadSpans(rows, nbytes, decoding[number[rows]] if len(stages) else chosen[rows])


def names_interpreter(profile: RunData) -> NDArray[np.bool_]:
    """Tell which spans name a file of Python itself or of its packages."""
    numbers, of_span = np.unique(profile.spans["detail"], return_inverse=True)
    own = [is_of_interpreter(profile.strings[number]) for number in numbers.tolist()]
    return np.array(own, dtype=bool)[of_span.reshape(-1)] if own else of_span.astype(bool)


def _counted_inside(spans: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark spans with others inside them, on their thread, that tell their bytes."""
    lane = lane_keys(spans)
    # An inner span is written before the one around it.
    order = np.lexsort(
        (-spans["sequence"].astype(np.int64), -spans["end_ns"], spans["start_ns"], lane)
    )
    nested = nesting(spans["start_ns"][order], spans["end_ns"][order], lane[order])
    tells, inside = spans["nbytes"][order] >= 0, np.zeros(len(order), bool)
    for level in range(int(nested.level.max(initial=0)), 0, -1):
        inner = (nested.level == level) & (tells | inside)
        inside[nested.parent[inner]] = True
    marks = np.zeros(len(order), bool)
    marks[order] = inside
    return marks


def counted_bytes(profile: RunData, reads: ReadSpans) -> tuple[CountedBytes, ...]:
    """Return what ``/proc`` counted in each process of a profile.

    Counts of the device that are all 0 mean nothing unless the run's configuration says that the
    file system of its files keeps them.
    """
    spans = profile.spans
    looks = spans[io_looks(spans)]
    n_processes = len(profile.processes)
    process = looks["process"].astype(np.int64)
    n_looks = np.bincount(process, minlength=n_processes)
    unknown = np.zeros((2, n_processes), bool)
    total = np.zeros((2, n_processes), np.int64)
    for column, name in enumerate(("nbytes", "cpu_ns")):
        np.add.at(total[column], process, np.maximum(looks[name], 0))
        unknown[column][process[looks[name] < 0]] = True
    known = profile.run_facts.cold_known
    tells = bool(total[1].any()) if known is None else known
    result = []
    for index, owner in enumerate(profile.processes):
        whole = bool(n_looks[index]) and not owner.lost and not owner.damaged
        result.append(
            CountedBytes(
                rchar=int(total[0][index]) if whole and not unknown[0][index] else None,
                device=int(total[1][index]) if whole and tells and not unknown[1][index] else None,
                n_looks=int(n_looks[index]),
                mapped=_mapped_nbytes(profile, reads, looks[process == index]) if whole else 0,
            )
        )
    return tuple(result)


def _mapped_nbytes(profile: RunData, reads: ReadSpans, looks: NDArray[Any]) -> int:
    """Return the mapped bytes of one process, as `CountedBytes` has them."""
    mine = profile.spans["process"][reads.rows] == looks["process"][0]
    batch, nbytes = profile.spans["batch"][reads.rows[mine]], reads.nbytes[mine]
    numbers, place = np.unique(looks["batch"], return_inverse=True)
    is_known = not ((looks["batch"] < 0).any() or (nbytes < 0).any())
    if not is_known or reads.decoding[mine].any() or not np.isin(batch, numbers).all():
        return 0
    called, handed_on = np.zeros((2, len(numbers)), np.int64)
    np.add.at(called, place.reshape(-1), looks["nbytes"])
    np.add.at(handed_on, np.searchsorted(numbers, batch), nbytes)
    n_looks = np.bincount(place.reshape(-1), minlength=len(numbers))
    mapped = called - n_looks * OWN_READ_LIMIT < HARDLY_ANY * handed_on
    return int(np.maximum(handed_on - called, 0)[mapped].sum())


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
