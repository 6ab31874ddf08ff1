"""Which samples to make together, so that few chunks are decoded twice and the memory is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from iobench.chunks.file_indexes import index_rows
from iobench.cpus import available_cpus
from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

JOINED_NBYTES = 8 << 20
"""Neighbours that share nothing are made together up to this: work for several threads at once."""

SMALL = 16
"""What all samples share binds them together where it is no less than this part of a sample."""

KIB = 1 << 10
MIB = 1 << 20


class SharedDecoding(Protocol):
    """How the samples of a file share the decoding of one variable."""

    @property
    def name(self) -> str:
        """Of the variable."""
        ...

    @property
    def axis(self) -> int:
        """Of the sample dimension; -1: every sample has all of the variable."""
        ...

    @property
    def sample_nbytes(self) -> int:
        """Bytes of the variable in one sample."""
        ...

    @property
    def sharing(self) -> int:
        """Indexes of the sample dimension that are decoded together, counted from 0."""
        ...

    @property
    def row_nbytes(self) -> int:
        """Bytes to decode for the samples that share."""
        ...

    @property
    def on_the_way_nbytes(self) -> int:
        """Memory that decoding one piece takes, beside the arrays."""
        ...

    @property
    def unit_nbytes(self) -> int:
        """Bytes of the smallest band: one piece of the variable for all samples that share it."""
        ...


class GroupPlan(msgspec.Struct, frozen=True):
    """Groups, the memory for what is decoded on the way to their arrays, and what it holds.

    ``left_nbytes`` is what the arrays of no samples leave, ``each_nbytes`` what those of one more
    take: of two groups, or of two variables, of which one is written while the next one is made.
    """

    lengths: list[int]
    in_flight_nbytes: int
    n_held: int = 1
    left_nbytes: int = 0
    each_nbytes: int = 0

    def left_beside(self, n_samples: int) -> int:
        """Return the memory that so many samples leave for what is read ahead."""
        return max(0, self.left_nbytes - n_samples * self.each_nbytes)


def plan_groups(
    where: Sequence[tuple[int, ...]],
    files: Sequence[Sequence[SharedDecoding]],
    memory_nbytes: int,
    *,
    spill_nbytes: int = 0,
    ends: Collection[int] = (),
    places: Sequence[NDArray[np.int64]] | None = None,
    apart: bool = False,
) -> GroupPlan:
    """Return how many samples to make together, one number per group.

    Notes
    -----
    Neighbours that share the decoding of anything form a chain; along several dimensions also what
    lies between two that do. A chain that is too long is cut where, for the samples gained, the
    fewest bytes are decoded twice. What is short then is joined with its neighbours in the file.
    """
    if not len(where):
        return GroupPlan([], memory_nbytes)
    first = files[where[0][0]]
    each = sum(variable.sample_nbytes for variable in first if variable.axis >= 0)
    common = sum(variable.sample_nbytes for variable in first if variable.axis < 0)
    two = _neighbours_nbytes(first) if apart else 2 * each
    in_flight = _in_flight(files, two + 2 * common, memory_nbytes, apart=apart)
    room = memory_nbytes - in_flight - 2 * common
    held = room // two if each else len(where)
    aside = (spill_nbytes // 2 - common) // each if each else len(where)
    cost, bound, follows = _boundaries(index_rows(where), files, places)
    lengths = _cut_chains(cost if spill_nbytes else cost + bound, max(held, aside))
    last = [end - 1 for end in ends]
    follows[last], bound[last] = False, 0
    if spill_nbytes:  # what all samples share is no reason to put all of them aside
        lengths = _join(lengths, bound > 0, held)
    at_once = max(variable.sample_nbytes for variable in first) if apart else each
    joined = min(held, JOINED_NBYTES // at_once) if each else len(where)
    return GroupPlan(_join(lengths, follows, joined), in_flight, held, room, two)


def _neighbours_nbytes(variables: Sequence[SharedDecoding]) -> int:
    """Return the most that one variable and the next one have in a sample; the first is next."""
    sizes = [variable.sample_nbytes for variable in variables]
    return max(a + b for a, b in zip(sizes, [*sizes[1:], sizes[0]], strict=True))


class BandMemory(msgspec.Struct, frozen=True):
    """What a group takes that is decoded in bands, while the one before is written."""

    least_nbytes: int  # less is too little
    # for pieces on the way, and for bands; the rest is for samples that are taken back
    in_flight_nbytes: int
    bands_nbytes: int


SAMPLES_SHARE = 3
"""This part of the memory is for samples that are taken back, unless two of them are more."""


def band_memory(files: Sequence[Sequence[SharedDecoding]], memory_nbytes: int) -> BandMemory:
    """Return how a memory is shared out; with too little of it only the least is true."""
    variables = [variable for file in files for variable in file]
    sample = max((sum(variable.sample_nbytes for variable in file) for file in files), default=0)
    one = max((variable.on_the_way_nbytes for variable in variables), default=0)
    unit = max((variable.unit_nbytes for variable in variables), default=0)
    least = 2 * sample + one + unit
    if memory_nbytes < least:
        return BandMemory(least, one, unit)
    in_flight = _in_flight(files, 2 * sample, memory_nbytes - unit)
    left = memory_nbytes - in_flight - max(2 * sample, memory_nbytes // SAMPLES_SHARE)
    return BandMemory(least, in_flight, max(unit, left))


def _in_flight(
    files: Sequence[Sequence[SharedDecoding]],
    two_nbytes: int,
    memory_nbytes: int,
    *,
    apart: bool = False,
) -> int:
    """Return the memory for pieces on the way: one for each CPU, or as an eighth holds, or one."""
    variables = [variable for file in files for variable in file]
    largest = max(variables, key=lambda variable: variable.on_the_way_nbytes)
    one = largest.on_the_way_nbytes
    needed = two_nbytes + one
    if needed > memory_nbytes:
        raise OptionError(
            f"--memory {mebibytes(memory_nbytes)} is too little: a chunk of variable "
            f"{largest.name!r} takes {one} bytes to decode, "
            f"{'two variables of a sample' if apart else 'two samples'} {two_nbytes}; the smallest "
            f"that works is --memory {mebibytes(needed)}"
        )
    wanted = min(available_cpus() * one, memory_nbytes // 8)
    return max(1, min(wanted, memory_nbytes - two_nbytes) // max(1, one)) * one


def mebibytes(nbytes: int) -> str:
    """Return no fewer bytes, as an option takes them."""
    return f"{-(-nbytes // MIB)}MiB" if nbytes >= MIB else f"{-(-nbytes // KIB)}KiB"


def _boundaries(
    where: NDArray[np.int64],
    files: Sequence[Sequence[SharedDecoding]],
    places: Sequence[NDArray[np.int64]] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return what it costs to cut behind each sample but the last, and whether the next follows.

    The cost is the bytes that are then decoded once more: of what neighbours share, and of what
    all samples do.
    """
    number, index = where.T
    same = number[1:] == number[:-1]
    cost, bound = np.zeros(len(where) - 1), np.zeros(len(where) - 1)
    each = sum(variable.sample_nbytes for variable in files[0])
    for position, variable in enumerate(files[0]):
        if variable.axis < 0 and variable.sample_nbytes * SMALL < each:
            continue
        sharing = np.array([max(1, file[position].sharing) for file in files])
        row_nbytes = np.array([file[position].row_nbytes for file in files])
        if places is not None:
            opened = _open_rows(number, places[position] // sharing[number], row_nbytes[number])
            (cost if variable.axis >= 0 else bound)[:] += opened
            continue
        row = index // sharing[number]
        shared = (same & (row[1:] == row[:-1])) & (sharing[number[1:]] > 1)
        (cost if variable.axis >= 0 else bound)[:] += np.where(shared, row_nbytes[number[1:]], 0)
    return cost, bound, same & (index[1:] == index[:-1] + 1)


def _open_rows(
    number: NDArray[np.int64], row: NDArray[np.int64], row_nbytes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the bytes of rows that have samples on both sides of each boundary.

    Samples that follow each other in a file are taken by themselves.
    """
    stretch = np.concatenate([[0], np.cumsum(np.diff(number) != 0)])
    key = stretch * (int(row.max(initial=0)) + 1) + row
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    last = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(last, which, np.arange(len(key)))
    change = np.zeros(len(key))
    np.add.at(change, first, row_nbytes[first])
    np.add.at(change, last, -row_nbytes[first])
    opened: NDArray[np.float64] = np.cumsum(change)[:-1]
    return opened


def _cut_chains(cost: NDArray[np.float64], most: int) -> list[int]:
    """Return lengths of groups of at most ``most``: chains of samples that share, cut if need be.

    ``cost`` has an entry for each neighbourhood, 0 where a chain ends.
    """
    ends = np.append(np.flatnonzero(cost == 0) + 1, len(cost) + 1)
    lengths, start = [], 0
    for end in ends.tolist():
        while end - start > most:
            per_sample = cost[start : start + most] / np.arange(1, most + 1)
            cheapest = most - 1 - int(np.argmin(per_sample[::-1]))
            lengths.append(cheapest + 1)
            start += cheapest + 1
        lengths.append(end - start)
        start = end
    return lengths


def _join(lengths: list[int], follows: NDArray[np.bool_], most: int) -> list[int]:
    """Join neighbouring groups that follow each other in a file, up to ``most`` samples."""
    joined: list[int] = []
    start = 0
    for length in lengths:
        if joined and follows[start - 1] and joined[-1] + length <= most:
            joined[-1] += length
        else:
            joined.append(length)
        start += length
    return joined
