"""Samples of several files, counted over all of them: where each file's start."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

__all__ = ["Starts", "samples_named"]


class Starts:
    """Where the samples of each file start."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.starts = [0, *itertools.accumulate(lengths)]

    def __len__(self) -> int:
        return self.starts[-1]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the file of a sample and its number in it."""
        file = bisect.bisect_right(self.starts, number) - 1
        return file, number - self.starts[file]


def samples_named(names: Sequence[str], name: str, lengths: Sequence[int]) -> Sequence[int]:
    """Return the samples of the files that have ``name`` (one name per file)."""
    starts = Starts(lengths).starts
    runs = [
        range(starts[number], starts[number + 1])
        for number, each in enumerate(names)
        if each == name
    ]
    if all(before.stop == after.start for before, after in itertools.pairwise(runs)):
        return range(runs[0].start, runs[-1].stop)
    return [sample for run in runs for sample in run]
