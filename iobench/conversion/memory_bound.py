"""What a conversion may hold of the data at once: as asked for, or as the samples need it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from iobench.datasets.contract import GroupedDataset
from iobench.errors import OptionError
from iobench.files.memory import pages_used_again, shared_memory_nbytes
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import Dataset, SampleIndex, Where

__all__ = ["MemoryBound", "memory_bound", "nbytes_of_one", "parts_of"]

LEAST_NBYTES: Final = 256 << 20
"""Taken without being asked for, whatever is free: more where samples need it."""
KIB: Final = 1 << 10
MIB: Final = 1 << 20
UNBOUNDED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """How much of the data may be in memory at once.

    Parameters
    ----------
    nbytes : int
        Bytes that samples may take which are being made.
    once_nbytes : int
        With how much every chunk that samples of a shard share is decoded once; ``nbytes`` where
        that is enough.
    times : float
        How often such chunks are decoded in the mean, in the shard where most samples share them.
    """

    nbytes: int
    once_nbytes: int
    times: float = 1.0

    @property
    def warning(self) -> str:
        """What is decoded more than once, and what ends that; ``""`` where nothing is."""
        if self.times <= 1:
            return ""
        return (
            f"with --memory {_mebibytes(self.nbytes)} chunks that samples share are decoded "
            f"{self.times:.1f} times; --memory {_mebibytes(self.once_nbytes)} decodes each once"
        )


def memory_bound(
    dataset: Dataset,
    index: SampleIndex,
    samples: Sequence[int],
    *,
    asked: int | None,
    shard_n_samples: int,
    looks_at_one: bool = True,
) -> MemoryBound:
    """Return what a conversion may hold: as asked for, else what decodes each chunk once.

    Without being asked for it is no more than a share of what the machine and the cgroup have
    free, and no less than `LEAST_NBYTES`.

    Parameters
    ----------
    dataset, index, samples
        What is made, and which of it.
    asked : int or None
        Bytes; None for what is needed.
    shard_n_samples : int
        Samples to a shard: what two shards share is decoded for each.
    looks_at_one : bool
        Whether a sample may be made to see what it takes, where the dataset does not tell.

    Raises
    ------
    OptionError
        If not even one sample can be made with it: names the smallest ``--memory`` that works.
    """
    most = max(LEAST_NBYTES, shared_memory_nbytes()) if asked is None else asked
    if isinstance(dataset, GroupedDataset) and samples:
        where = [index.where[number] for number in samples]
        dataset.groups(where, memory_nbytes=most)  # refuses what does not fit
        shared = _largest_group(dataset, where, shard_n_samples)
        once_nbytes = _least_for_once(dataset, shared)
        nbytes = min(most, max(LEAST_NBYTES, once_nbytes)) if asked is None else asked
        times = 1.0 if once_nbytes <= nbytes else _times(dataset, shared, nbytes)
        return MemoryBound(nbytes, once_nbytes if times > 1 else nbytes, times)
    one = 0
    # Arrays as somebody hands them out: what they were made of is not to be seen.
    if looks_at_one and samples and "decode" not in dataset.fused:
        with pages_used_again(most):
            read, decoded = nbytes_of_one(dataset, index, index.where[samples[0]])
        one = read + decoded
        if one > most:
            raise OptionError(
                f"--memory {_mebibytes(most)} is too little: of {dataset.name} a sample takes "
                f"{read} bytes as read and {decoded} as decoded; the smallest that works is "
                f"--memory {_mebibytes(one)}"
            )
    nbytes = min(most, max(LEAST_NBYTES, 2 * one)) if asked is None else asked
    return MemoryBound(nbytes, nbytes)


def parts_of(
    dataset: GroupedDataset, where: Sequence[Where], memory_nbytes: int
) -> list[Sequence[Where]]:
    """Return the samples that are made together, group by group."""
    counts = dataset.groups(where, memory_nbytes=memory_nbytes)
    return [where[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def _largest_group(
    dataset: GroupedDataset, where: Sequence[Where], shard_n_samples: int
) -> Sequence[Where]:
    """Return most samples of one shard that are best made together."""
    largest: Sequence[Where] = where[:1]
    for start in range(0, len(where), shard_n_samples):
        parts = parts_of(dataset, where[start : start + shard_n_samples], UNBOUNDED)
        largest = max(largest, *parts, key=len)
    return largest


def _times(dataset: GroupedDataset, where: Sequence[Where], memory_nbytes: int) -> float:
    """Return how often what is read for these samples is read, with so much memory."""
    parts = parts_of(dataset, where, memory_nbytes)
    if len(parts) <= 1:
        return 1.0
    once, _ = dataset.group_nbytes(where)
    return sum(dataset.group_nbytes(part)[0] for part in parts) / once if once else 1.0


def _least_for_once(dataset: GroupedDataset, where: Sequence[Where]) -> int:
    """Return memory with which nothing is read twice for a group: the least, and a sixteenth."""
    enough = KIB

    def is_enough(nbytes: int) -> bool:
        try:
            return _times(dataset, where, nbytes) <= 1
        except OptionError:
            return False

    while enough < UNBOUNDED and not is_enough(enough):
        enough *= 2
    least = enough // 2
    while enough - least > enough // 16:  # each look goes over all chunks
        middle = (least + enough) // 2
        least, enough = (least, middle) if is_enough(middle) else (middle, enough)
    return enough


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


def _mebibytes(nbytes: int) -> str:
    return f"{-(-nbytes // MIB)}MiB"
