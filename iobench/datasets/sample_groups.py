"""Which samples a conversion makes together, and which of those groups it puts aside meanwhile."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from iobench.datasets.contract import BandedDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import GroupedDataset, Where

__all__ = ["SampleGroup", "sample_groups"]


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples that are made together.

    Parameters
    ----------
    start, stop : int
        Where they are in the order in which all are made.
    is_spilled : bool
        Whether they are put aside: memory does not hold them, or several shards need them.
    """

    start: int
    stop: int
    is_spilled: bool = False

    def __len__(self) -> int:
        return self.stop - self.start


def sample_groups(
    dataset: GroupedDataset,
    parts: Sequence[Sequence[Where]],
    *,
    memory_nbytes: int,
    spill_nbytes: int = 0,
) -> list[SampleGroup]:
    """Return the groups that samples are made in.

    Parameters
    ----------
    dataset : GroupedDataset
        Where they come from.
    parts : sequence of sequences of Where
        The samples of each shard, in order. Where nothing is put aside, or it cannot be, each is
        made by itself.
    memory_nbytes, spill_nbytes : int
        For groups in memory, and for those in files: of no less than twice as much.

    Raises
    ------
    OptionError
        If not even one sample can be made within the memory.
    """
    ends = list(accumulate(map(len, parts)))
    # Less room than that: what memory holds, and shards share, might not find it.
    if isinstance(dataset, BandedDataset) and spill_nbytes >= 2 * memory_nbytes:
        least = dataset.band_nbytes()
        if least is not None and least <= memory_nbytes:
            where = [each for part in parts for each in part]
            inner = ends[:-1]
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
        counts = dataset.groups(part, memory_nbytes=memory_nbytes)
        before = end - len(part)
        found += [SampleGroup(before + start, before + stop) for start, stop in _ranges(counts)]
    return found


def _ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    ends = list(accumulate(counts))
    return list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []
