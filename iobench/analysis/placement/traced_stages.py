"""The stages of one process as places for what a tracer saw: when they were, of which files.

A stage that names a file holds calls on that file only; one that names none holds calls on any file
whose reading no stage names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.placement.file_names import file_of, match_names
from iobench.analysis.placement.stage_groups import Groups
from iobench.analysis.read_spans import NOT_SUMMED
from iobench.frozen import frozen
from iobench.recording.kinds import (
    MIXED_KINDS,
    READING_KINDS,
    WORKER_KINDS,
    Kind,
    Trait,
    is_one_of,
    kinds_that,
)
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import is_of_interpreter

if TYPE_CHECKING:
    from iobench.analysis.placement.file_names import FileNames
    from iobench.profiles.contents import Profile

Integers = NDArray[np.int64]

READING: Final = READING_KINDS | MIXED_KINDS
"""Kinds of stages that read as a rule; others read what was put off."""
_BY_PREFERENCE: Final = (Trait.TELLS_READ, Trait.MIXED, Trait.READS, Trait.READS_LATE)
_SYSTEM: Final = (
    "/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/proc/", "/sbin/", "/sys/", "/usr/",
)  # fmt: skip


@frozen
class TracedStages:
    """Stages of one process in which calls may lie.

    Parameters
    ----------
    row : ndarray of int64, shape (n_stages,)
        In ``Profile.spans``.
    start_ns, end_ns : ndarray of int64
        Of a stage that is a sum over a batch, of all sums of the batch: its own time is not known.
    reading : ndarray of bool
        Whether it reads as a rule.
    file, folder : ndarray of int64
        What it names, -1 if nothing that the tracer saw.
    unnamed : ndarray of bool
        Whether it names nothing at all.
    read_by_name : ndarray of bool, shape (n_files,)
        Whether some stage that reads names the file or its folder.
    texts, seen_texts : tuple of str
        What stages that read name (where none does, all stages), but for files of Python and of
        the system; and of that what the tracer saw.
    """

    row: Integers
    start_ns: Integers
    end_ns: Integers
    reading: NDArray[np.bool_]
    file: Integers
    folder: Integers
    unnamed: NDArray[np.bool_]
    read_by_name: NDArray[np.bool_]
    texts: tuple[str, ...]
    seen_texts: tuple[str, ...]
    names: FileNames

    def families(self, files: Integers, *, reading: bool) -> list[tuple[Integers, Groups]]:
        """Return the stages that may hold items, by what they name: file, folder, nothing.

        Parameters
        ----------
        files : ndarray of int64, shape (n_items,)
            The file of each item.
        reading : bool
            Only stages that read as a rule.

        Returns
        -------
        list of (ndarray of int64, Groups)
            Places of a family's stages here, and the family.
        """
        wanted = self.reading if reading else np.ones(len(self.row), bool)
        free = np.where(self.read_by_name[files], -1, 0) if len(files) else files
        return [
            (at, Groups(self.start_ns[at], self.end_ns[at], group[at], item_group))
            for mask, group, item_group in (
                (self.file >= 0, self.file, files),
                (self.folder >= 0, self.folder, self.names.folder_of[files]),
                (self.unnamed, np.zeros(len(self.row), np.int64), free),
            )
            for at in [np.flatnonzero(mask & wanted)]
        ]


def rows_by_process(profile: Profile) -> list[Integers]:
    """Return the rows of each process's spans."""
    process = profile.spans["process"]
    order = np.argsort(process, kind="stable")
    bounds = np.searchsorted(process[order], np.arange(1, len(profile.processes)))
    return np.split(order, bounds)


def traced_stages(profile: Profile, rows: Integers, files: Sequence[str]) -> TracedStages:
    """Return the stages among one process's spans in which calls on these files may lie."""
    spans = profile.spans[rows]
    wanted = is_one_of(spans["kind"], WORKER_KINDS) & ((spans["flags"] & NOT_SUMMED) == 0)
    place, start, end = _with_sums_joined(spans, np.flatnonzero(wanted))
    rows = rows[place]
    spans = profile.spans[rows]
    numbers, which = np.unique(spans["detail"], return_inverse=True)
    texts = [profile.strings[number] for number in numbers.tolist()]
    names = match_names(texts, files)
    which = which.reshape(-1)
    file = np.array([names.file.get(text, -1) for text in texts], np.int64)[which]
    folder = np.array([names.folder.get(text, -1) for text in texts], np.int64)[which]
    unknown = (file < 0) & (folder < 0)
    unnamed = unknown & np.array([not file_of(text) for text in texts], bool)[which]
    reading = is_one_of(spans["kind"], READING) & ~_around_reading(spans, start, end)
    telling = ~np.isin(spans["kind"], (Kind.OPEN, Kind.OPAQUE))
    by_reading = np.unique(which[telling]).tolist()
    told = _told_files(texts[number] for number in by_reading) or _told_files(texts)
    read_by_name = np.zeros(len(files), bool)
    read_by_name[file[telling & (file >= 0)]] = True
    by_folder = np.unique(folder[telling & (folder >= 0)])
    read_by_name |= np.isin(names.folder_of, by_folder)
    return TracedStages(
        row=rows,
        start_ns=start,
        end_ns=end,
        reading=reading | ~unknown,
        file=file,
        folder=folder,
        unnamed=unnamed,
        read_by_name=read_by_name,
        texts=told,
        seen_texts=tuple(filter(names.knows, told)),
        names=names,
    )


def _around_reading(spans: NDArray[Any], start: Integers, end: Integers) -> NDArray[np.bool_]:
    """Tell which fused stages have reading of their own inside: what is left of them is none."""
    around = np.zeros(len(spans), bool)
    fused, reads = spans["kind"] == Kind.FUSED, spans["kind"] == Kind.READ
    for thread in np.unique(spans["thread"][fused]).tolist():
        here = spans["thread"] == thread
        at = np.flatnonzero(fused & here)
        begins = np.sort(start[reads & here])
        around[at] = np.searchsorted(begins, start[at]) < np.searchsorted(begins, end[at])
    return around


def _told_files(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that name files a loader may read: no code of Python, no system's."""
    return tuple(
        text
        for text in texts
        for path in [file_of(text)]
        if path and not path.startswith(_SYSTEM) and not is_of_interpreter(path)
    )


def _with_sums_joined(spans: NDArray[Any], rows: Integers) -> tuple[Integers, Integers, Integers]:
    """Return rows and their times; of a batch's sums one row, that of reading, with the batch's.

    Sums are written one after the other, whenever the samples they are of were made.
    """
    summed = (spans["flags"][rows] & (Flag.SUMMED | Flag.ESTIMATED)) != 0
    sums, others = rows[summed], rows[~summed]
    start, end = spans["start_ns"].astype(np.int64), spans["end_ns"].astype(np.int64)
    if not len(sums):
        return others, start[others], end[others]
    rank = np.full(256, len(_BY_PREFERENCE))
    for place, trait in reversed([*enumerate(_BY_PREFERENCE)]):
        rank[[*kinds_that(trait)]] = place
    keys = [spans[name][sums] for name in ("batch", "epoch", "thread")]
    order = np.lexsort((spans["kind"][sums], rank[spans["kind"][sums]], *keys))
    sums = sums[order]
    new = np.ones(len(sums), bool)
    new[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    first = np.flatnonzero(new)
    return (
        np.concatenate((others, sums[first])),
        np.concatenate((start[others], np.minimum.reduceat(start[sums], first))),
        np.concatenate((end[others], np.maximum.reduceat(end[sums], first))),
    )
