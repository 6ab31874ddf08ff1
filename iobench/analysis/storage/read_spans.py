"""Which spans read, what they handed on, and what the system counted meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.recording import Flag, Kind
from iobench.storage.traces.interpreter_files import is_of_interpreter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles import Profile

__all__ = [
    "NOT_SUMMED",
    "OWN_READ_LIMIT",
    "CountedBytes",
    "ReadSpans",
    "counted_bytes",
    "find_read_spans",
    "is_decoding",
    "names_interpreter",
]

OWN_READ_LIMIT: Final = 1024
"""Bytes of one look at ``/proc`` (110 to 150) and of the messages between processes meanwhile."""
NOT_SUMMED: Final = Flag.DETAIL | Flag.IO | Flag.DEVICE
"""Flags of spans whose time and bytes another one counts, or no thread spent."""


@dataclass(frozen=True, slots=True)
class ReadSpans:
    """The spans that read, those of one run that count in its sums.

    Parameters
    ----------
    rows : ndarray of int64
        In ``Profile.spans``.
    nbytes : ndarray of int64
        What each handed on, -1 where unknown; 0 where spans inside it hand on the same bytes.
    decoding : ndarray of bool
        Whether it decodes as well.
    """

    rows: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    decoding: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CountedBytes:
    """What the kernel counted in one process, as ``/proc`` tells.

    Parameters
    ----------
    rchar : int or None
        Bytes of every read call; None where nobody counted, or counters were lost.
    device : int or None
        Bytes from the device; None also where the file system does not tell.
    n_looks : int
        How often iobench looked, which reads as well.
    start_up : int
        What was read in the process's first batch, all others having read what their stages
        handed on and little more: modules are imported and tables are loaded there.
    """

    rchar: int | None
    device: int | None
    n_looks: int
    start_up: int


def is_decoding(kind: int, label: str) -> bool:
    """Tell whether a stage of this kind decodes as well, so that its time is not all reading."""
    return kind == Kind.OPAQUE or (kind == Kind.FUSED and "decode" in label)


def _is_reading(kind: int, label: str) -> bool:
    return kind == Kind.READ or (kind == Kind.FUSED and label.startswith("read"))


def find_read_spans(profile: Profile) -> ReadSpans:
    """Return the spans of a profile that read, but for counters, parts of sums, Python's own files.

    Tracers leave those files out as well: imports read them, no loader.
    """
    spans = profile.spans
    pair = spans["kind"].astype(np.int64) << 32 | spans["label"].astype(np.int64)
    pairs, number = np.unique(pair, return_inverse=True)
    stages = [(int(value) >> 32, profile.strings[int(value) & 0xFFFFFFFF]) for value in pairs]
    reading = np.array([_is_reading(*stage) for stage in stages], bool)
    decoding = np.array([is_decoding(*stage) for stage in stages], bool)
    number = number.reshape(-1)
    chosen = ((spans["flags"] & NOT_SUMMED) == 0) & ~names_interpreter(profile)
    if len(stages):
        chosen &= reading[number]
    rows = np.flatnonzero(chosen)
    nbytes = spans["nbytes"][rows].astype(np.int64)
    nbytes[_told_inside(spans[rows])] = 0
    return ReadSpans(rows, nbytes, decoding[number[rows]] if len(stages) else chosen[rows])


def names_interpreter(profile: Profile) -> NDArray[np.bool_]:
    """Tell which spans name a file of Python itself or of its packages."""
    numbers, of_span = np.unique(profile.spans["detail"], return_inverse=True)
    own = [is_of_interpreter(profile.strings[number]) for number in numbers.tolist()]
    return np.array(own, dtype=bool)[of_span.reshape(-1)] if own else of_span.astype(bool)


def _told_inside(spans: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark spans with others inside them, on their thread, that tell their bytes."""
    lane = spans["process"].astype(np.int64) << 32 | spans["thread"].astype(np.int64)
    # An inner span is written before the one around it.
    order = np.lexsort(
        (-spans["sequence"].astype(np.int64), -spans["end_ns"], spans["start_ns"], lane)
    )
    lane, end, told = lane[order], spans["end_ns"][order], spans["nbytes"][order] >= 0
    start = spans["start_ns"][order]
    # The next one told on the lane that begins before this one ends lies inside it.
    following = np.append(np.flatnonzero(told), len(order))
    place = (
        following[np.searchsorted(following, np.arange(len(order)) + 1)] if len(order) else order
    )
    there = place < len(order)
    inside = np.zeros(len(order), bool)
    at, of = np.flatnonzero(there), place[there]
    inside[at] = (lane[of] == lane[at]) & (start[of] < end[at]) & (end[of] <= end[at])
    marks = np.zeros(len(order), bool)
    marks[order] = inside
    return marks


def counted_bytes(profile: Profile, reads: ReadSpans) -> tuple[CountedBytes, ...]:
    """Return what ``/proc`` counted in each process of a profile.

    Counts of the device that are all 0 mean nothing unless the run's configuration says that the
    file system of its files keeps them.
    """
    spans = profile.spans
    looks = spans[(spans["flags"] & Flag.IO) != 0]
    n_processes = len(profile.processes)
    process = looks["process"].astype(np.int64)
    n_looks = np.bincount(process, minlength=n_processes)
    unknown = np.zeros((2, n_processes), bool)
    total = np.zeros((2, n_processes), np.int64)
    for column, name in enumerate(("nbytes", "cpu_ns")):
        np.add.at(total[column], process, np.maximum(looks[name], 0))
        unknown[column][process[looks[name] < 0]] = True
    tells = bool(profile.config.get("cold_known", bool(total[1].any())))
    found = []
    for index, who in enumerate(profile.processes):
        whole = bool(n_looks[index]) and not who.lost and not who.damaged
        found.append(
            CountedBytes(
                rchar=int(total[0][index]) if whole and not unknown[0][index] else None,
                device=int(total[1][index]) if whole and tells and not unknown[1][index] else None,
                n_looks=int(n_looks[index]),
                start_up=_start_up(profile, reads, looks[process == index]) if whole else 0,
            )
        )
    return tuple(found)


def _start_up(profile: Profile, reads: ReadSpans, looks: NDArray[Any]) -> int:
    """Return what the first look of a process has beyond what was handed on, and others have."""
    if len(looks) < 2 or (looks["batch"] < 0).any():
        return 0
    mine = profile.spans["process"][reads.rows] == looks["process"][0]
    batch, nbytes = profile.spans["batch"][reads.rows[mine]], reads.nbytes[mine]
    looks = looks[np.argsort(looks["start_ns"], kind="stable")]
    first = looks["batch"] == looks["batch"][0]
    number = {value: place for place, value in enumerate(np.unique(looks["batch"]).tolist())}
    if (nbytes < 0).any() or not set(batch.tolist()) <= number.keys() or first.all():
        return 0
    rest = np.zeros(len(number), np.int64)
    np.add.at(rest, [number[each] for each in looks["batch"].tolist()], looks["nbytes"])
    np.subtract.at(rest, [number[each] for each in batch.tolist()], nbytes)
    others = np.delete(rest, number[int(looks["batch"][0])])
    if (others < 0).any() or (others > OWN_READ_LIMIT * len(looks) / len(number)).any():
        return 0
    return max(int(rest[number[int(looks["batch"][0])]] - others.max()), 0)
