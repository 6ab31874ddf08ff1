"""What a conversion may hold of the data at once: as asked for, or as the samples need it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from iobench.chunks.file_indexes import chosen, joined
from iobench.chunks.group_plan import mebibytes
from iobench.datasets.contract import BandedDataset, GroupedDataset
from iobench.datasets.sample_groups import group_counts, sample_groups
from iobench.errors import OptionError
from iobench.files.memory import pages_used_again, shared_memory_nbytes
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import Dataset, SampleIndex, Where

LEAST_NBYTES: Final = 256 << 20
"""Taken without being asked for, whatever is free: more where samples need it."""
KIB: Final = 1 << 10
UNBOUNDED: Final = 1 << 62
LEAST_TIMES: Final = 1.05
"""What is decoded less often than that is not worth a change."""


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """How much of the data may be in memory at once."""

    nbytes: int  # bytes that samples may take which are being made
    # with how much every chunk that samples share is decoded once; ``nbytes`` where that is enough,
    # None where no memory is
    once_nbytes: int | None
    # how often such chunks are decoded in the mean, by the samples that share most
    times: float = 1.0
    # with how much more room beside the store they would be decoded once; 0 where more room does
    # not help
    lacking_nbytes: int = 0

    @property
    def warning(self) -> str:
        """What is decoded more than once, and what ends that; ``""`` where it is next to none."""
        if self.times < LEAST_TIMES:
            return ""
        times = f"{self.times:.1f} times on average"
        if self.lacking_nbytes:
            return (
                f"chunks that samples share are decoded {times}; with "
                f"{mebibytes(self.lacking_nbytes)} more room where the store is, each once"
            )
        if self.once_nbytes is None:
            return (
                f"shards are made one by one, and chunks that they share are decoded {times}; "
                "larger shards (--shard-size) share fewer"
            )
        return (
            f"with --memory {mebibytes(self.nbytes)} chunks that samples share are decoded "
            f"{times}; --memory {mebibytes(self.once_nbytes)} decodes each once"
        )


@dataclass(frozen=True, slots=True)
class Making:
    """How a conversion makes samples in groups."""

    dataset: GroupedDataset  # where they come from
    shard_n_samples: int  # samples to a shard
    # room for samples that are put aside; below 0 where there is less than none
    spill_nbytes: int = 0
    is_apart: bool = False  # whether each shard is made by itself, as by the workers of a cluster
    by_variable: bool = False  # whether the variables of a group are made one by one

    def groups(
        self, where: Sequence[Where], memory_nbytes: int, *, start: int = 0
    ) -> list[tuple[Sequence[Where], bool]]:
        """Return samples that are made together, and whether they are put aside.

        ``start`` is where the first of them is in the order of the store.
        """
        step = self.shard_n_samples
        bounds = range(-(start % step), len(where), step)
        parts = [where[max(0, at) : at + step] for at in bounds]
        found: list[tuple[Sequence[Where], bool]] = []
        for some in [[part] for part in parts] if self.is_apart else [parts]:
            together = joined(some)
            found += [
                (together[group.start : group.stop], group.is_spilled)
                for group in sample_groups(
                    self.dataset,
                    some,
                    memory_nbytes=memory_nbytes,
                    spill_nbytes=self.spill_nbytes,
                    apart=self.by_variable,
                )
            ]
        return found

    def times(self, where: Sequence[Where], memory_nbytes: int, *, start: int = 0) -> float:
        """Return how often what is stored of these samples is read, with so much memory."""
        groups = self.groups(where, memory_nbytes, start=start)
        if len(groups) <= 1:
            return 1.0
        once, _ = self.dataset.group_nbytes(where)
        read = sum(self.dataset.group_nbytes(group)[0] for group, _ in groups)
        return read / once if once else 1.0

    def once_nbytes(self, where: Sequence[Where], *, start: int) -> int | None:
        """Return the least memory with which nothing of these samples is read twice."""
        if isinstance(self.dataset, BandedDataset):
            least = self.dataset.band_nbytes()
            if least is not None and self._are_enough(where, least, start=start):
                return least
        held = self.least_for_once(where)
        return held if self._are_enough(where, held, start=start) else None

    def counts(self, where: Sequence[Where], memory_nbytes: int) -> list[int]:
        """Return how many samples to make together where nothing is put aside."""
        return group_counts(
            self.dataset, where, memory_nbytes=memory_nbytes, apart=self.by_variable
        )

    def least_for_once(self, where: Sequence[Where]) -> int:
        """Return memory that holds all of a group: the least, and a sixteenth."""
        enough = KIB

        def is_enough(nbytes: int) -> bool:
            try:
                return len(self.counts(where, nbytes)) <= 1
            except OptionError:
                return False

        while enough < UNBOUNDED and not is_enough(enough):
            enough *= 2
        least = enough // 2
        while enough - least > enough // 16:  # each look goes over all samples
            middle = (least + enough) // 2
            least, enough = (least, middle) if is_enough(middle) else (middle, enough)
        return enough

    def largest_group(self, where: Sequence[Where]) -> Sequence[Where]:
        """Return most samples of one shard that are best made together."""
        alone = replace(self, spill_nbytes=0, is_apart=False)
        return max(
            (group for group, _ in alone.groups(where, UNBOUNDED)), key=len, default=where[:1]
        )

    def _are_enough(self, where: Sequence[Where], memory_nbytes: int, *, start: int) -> bool:
        return self.times(where, memory_nbytes, start=start) < LEAST_TIMES


def memory_bound(
    dataset: Dataset,
    index: SampleIndex,
    samples: Sequence[int],
    *,
    asked: int | None,
    shard_n_samples: int,
    spill_nbytes: int = 0,
    is_apart: bool = False,
    by_variable: bool = False,
    looks_at_one: bool = True,
) -> MemoryBound:
    """Return what a conversion may hold: as asked for, else what holds all that shares a chunk.

    Without being asked for it is no more than a share of what the machine and the cgroup have
    free, and no less than `LEAST_NBYTES`. What it does not hold is put aside.
    """
    most = max(LEAST_NBYTES, shared_memory_nbytes()) if asked is None else asked
    if isinstance(dataset, GroupedDataset) and samples:
        where = chosen(index.where, samples)
        making = Making(dataset, shard_n_samples, spill_nbytes, is_apart, by_variable)
        making.counts(where, most)  # refuses what does not fit
        nbytes = asked
        if nbytes is None:
            in_a_shard = making.largest_group(where)
            nbytes = min(most, max(LEAST_NBYTES, making.least_for_once(in_a_shard)))
        shared = replace(making, shard_n_samples=len(where)).largest_group(where)
        start = where.index(shared[0]) if shared else 0
        times = making.times(shared, nbytes, start=start)
        if times < LEAST_TIMES:
            return MemoryBound(nbytes, nbytes, times)
        once_nbytes = making.once_nbytes(shared, start=start)
        lacking = 0
        if once_nbytes is None and spill_nbytes and not is_apart:
            lacking = 2 * max(nbytes, dataset.group_nbytes(shared)[1]) - spill_nbytes
        return MemoryBound(nbytes, once_nbytes, times, max(0, lacking))
    one = 0
    # Arrays as somebody hands them out: what they were made of is not to be seen.
    if looks_at_one and samples and "decode" not in dataset.fused:
        with pages_used_again(most):
            read, decoded = nbytes_of_one(dataset, index, index.where[samples[0]])
        one = read + decoded
        if one > most:
            raise OptionError(
                f"--memory {mebibytes(most)} is too little: of {dataset.name} a sample takes "
                f"{read} bytes as read and {decoded} as decoded; the smallest that works is "
                f"--memory {mebibytes(one)}"
            )
    nbytes = min(most, max(LEAST_NBYTES, 2 * one)) if asked is None else asked
    return MemoryBound(nbytes, nbytes)


def nbytes_of_one(dataset: Dataset, index: SampleIndex, where: Where) -> tuple[int, int]:
    """Return the bytes read, and those of the decoded arrays, of one sample."""
    nbytes = index.spec.nbytes
    raw = dataset.read(where)
    read = handed_on_nbytes(raw)
    if read < 0:
        return nbytes, nbytes  # an object of Python's own: what it read is not to be seen
    if "decode" in dataset.fused[1:]:
        return read, read
    decoded = handed_on_nbytes(dataset.decode(raw, where))
    return read, nbytes if decoded < 0 else decoded
