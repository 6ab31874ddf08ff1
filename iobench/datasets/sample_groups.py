"""Which samples a conversion makes together, and which of those groups it puts aside meanwhile.

And what it holds of them: of two units, of which one is written while the next one is made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from iobench.chunks.file_indexes import joined
from iobench.datasets.contract import BandedDataset, VariablesApart, as_decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import Dataset, GroupedDataset, Where
    from iobench.samples import SampleSpec

APART_NBYTES: Final = 1 << 20
"""Variables of this much of a group are made one by one; of less a hand-over costs too much."""


class SampleGroup(msgspec.Struct, frozen=True):
    """Samples that are made together."""

    start: int
    stop: int  # where they are in the order in which all are made
    # whether they are put aside: memory does not hold them, or several shards need them
    is_spilled: bool = False

    def __len__(self) -> int:
        return self.stop - self.start


def sample_groups(
    dataset: GroupedDataset,
    parts: Sequence[Sequence[Where]],
    *,
    memory_nbytes: int,
    spill_nbytes: int = 0,
    apart: bool = False,
) -> list[SampleGroup]:
    """Return the groups that samples are made in."""
    ends = list(accumulate(map(len, parts)))
    # Less room than that: what memory holds, and shards share, might not find it.
    if isinstance(dataset, BandedDataset) and spill_nbytes >= 2 * memory_nbytes:
        least = dataset.band_nbytes()
        if least is not None and least <= memory_nbytes:
            where = joined(parts)
            inner = ends[:-1]
            if apart:
                assert isinstance(dataset, VariablesApart)
                planned = dataset.banded_groups(
                    where, memory_nbytes=memory_nbytes, spill_nbytes=spill_nbytes, ends=set(inner),
                    apart=True,
                )  # fmt: skip
            else:
                planned = dataset.banded_groups(
                    where, memory_nbytes=memory_nbytes, spill_nbytes=spill_nbytes, ends=set(inner)
                )
            ranges = _ranges([count for count, _ in planned])
            return [
                SampleGroup(
                    start,
                    stop,
                    not is_held or bisect_right(inner, start) < bisect_left(inner, stop),
                )
                for (start, stop), (_, is_held) in zip(ranges, planned, strict=True)
            ]
    found = []
    for part, end in zip(parts, ends, strict=True):
        counts = group_counts(dataset, part, memory_nbytes=memory_nbytes, apart=apart)
        before = end - len(part)
        found += [SampleGroup(before + start, before + stop) for start, stop in _ranges(counts)]
    return found


def group_counts(
    dataset: GroupedDataset, where: Sequence[Where], *, memory_nbytes: int, apart: bool
) -> list[int]:
    """Return how many consecutive samples to make together, in memory."""
    if apart:
        assert isinstance(dataset, VariablesApart)
        return dataset.groups(where, memory_nbytes=memory_nbytes, apart=True)
    return dataset.groups(where, memory_nbytes=memory_nbytes)


def are_as_decoded(dataset: Dataset) -> bool:
    """Tell whether samples are what is decoded."""
    return getattr(dataset.preprocess, "__func__", None) is as_decoded


def names_apart(dataset: Dataset, spec: SampleSpec) -> Sequence[str]:
    """Return the variables that can be made one by one, in their order; none where they cannot."""
    if not isinstance(dataset, VariablesApart) or not are_as_decoded(dataset):
        return ()
    names = dataset.variables_apart()
    # What samples should be is said of each of them.
    return names if sorted(names) == sorted(spec.names) else ()


def is_made_apart(group_nbytes: int, n_variables: int, memory_nbytes: int) -> bool:
    """Tell whether variables of a group of so many bytes are made one by one, where they can be.

    Small ones are not, unless two such groups are much of the memory.
    """
    return group_nbytes >= APART_NBYTES * n_variables or 4 * group_nbytes > memory_nbytes


class UnitSizes(NamedTuple):
    """Bytes of what is made at once, a group or a variable of it.

    As stored; in memory while it is written; of one that is put aside, also while it is made.
    """

    read_nbytes: int
    held_nbytes: int
    is_spilled: bool = False
    aside_nbytes: int = 0


def may_be_read(units: Sequence[UnitSizes], n_read: int, memory_nbytes: int) -> bool:
    """Tell whether the last of these units may be read already, while others are in memory."""
    if any(unit.is_spilled for unit in units):
        return False
    two = sum(unit.held_nbytes for unit in units[:-1])
    return two + sum(unit.read_nbytes for unit in units[-n_read:]) <= memory_nbytes


def _ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    ends = list(accumulate(counts))
    return list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []
