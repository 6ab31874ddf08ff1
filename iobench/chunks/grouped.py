"""Samples of files whose variables come in pieces, made in groups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from iobench.chunks.bands import banded_nbytes, spill_group
from iobench.chunks.file_indexes import FileIndexes, index_rows
from iobench.chunks.group_plan import band_memory, plan_groups
from iobench.chunks.pieces import PiecedGroup, runs_of_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.bands import SpilledGroup
    from iobench.chunks.group_plan import GroupPlan
    from iobench.chunks.pieces import PiecedVariable
    from iobench.datasets.contract import Arrays, Raw, RunJobs, Where
    from iobench.files.spill import SpillFile

IN_FLIGHT_NBYTES = 64 << 20
"""Decoded at once where nobody asked for groups first, and so named no memory."""


class SampleGroups:
    """The face `iobench.datasets.BandedDataset` of samples that are (file, index)."""

    def __init__(
        self,
        variables: Callable[[int], Sequence[PiecedVariable]],
        n_files: int,
        lengths: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self._files = [tuple(variables(number)) for number in range(n_files)]
        self._lengths = None if lengths is None else [tuple(lengths(n)) for n in range(n_files)]
        self._last: GroupPlan | None = None

    @property
    def on_the_way_nbytes(self) -> int:
        """Bytes that decoding takes beside the arrays, as the last `groups` left room for it."""
        return IN_FLIGHT_NBYTES if self._last is None else self._last.in_flight_nbytes

    def groups(
        self, where: Sequence[tuple[int, ...]], *, memory_nbytes: int, apart: bool = False
    ) -> list[int]:
        """Return how many samples to make together; see `plan_groups`."""
        return self._plan(where, memory_nbytes, apart=apart).lengths

    def variables_apart(self) -> list[str]:
        """Return the variables, where samples are rows of each; none where they share one."""
        if any(variable.axis < 0 for file in self._files for variable in file):
            return []
        return [variable.name for variable in self._files[0]] if self._files else []

    def read_group(self, where: Sequence[tuple[int, ...]], only: str | None = None) -> Raw:
        """Return the stored bytes of these samples of one file; raise ValueError for several."""
        most = None if self._last is None else self._last.left_beside(len(where))
        return self._group(where, only).read(most)

    def decode_group(
        self, raw: Raw, where: Sequence[tuple[int, ...]], run: RunJobs, only: str | None = None
    ) -> Sequence[Arrays]:
        """Return the arrays of each sample."""
        return self._group(where, only).decode(raw, run, self.on_the_way_nbytes)

    def _group(self, where: Sequence[tuple[int, ...]], only: str | None) -> PiecedGroup:
        variables, indexes = self._of_one_file(where)
        return PiecedGroup(_chosen(variables, only), indexes, may_lie_apart=only is not None)

    def _of_one_file(
        self, where: Sequence[tuple[int, ...]]
    ) -> tuple[tuple[PiecedVariable, ...], NDArray[np.int64]]:
        numbers, indexes = self._numbered(where).T
        if not len(numbers) or (numbers != numbers[0]).any():
            n_files = len(np.unique(numbers))
            raise ValueError(f"a group is of one file, asked for samples of {n_files}")
        return self._files[numbers[0]], indexes

    def band_nbytes(self) -> int:
        """Return the least memory that any group can be made with, put aside band by band."""
        return band_memory(self._files, 0).least_nbytes

    def banded_groups(
        self,
        where: Sequence[tuple[int, ...]],
        *,
        memory_nbytes: int,
        spill_nbytes: int,
        ends: Collection[int] = (),
        apart: bool = False,
    ) -> list[tuple[int, bool]]:
        """Return how many samples to make together; see `plan_groups`."""
        plan = self._plan(where, memory_nbytes, spill_nbytes=spill_nbytes, ends=ends, apart=apart)
        return [(length, length <= max(1, plan.n_held)) for length in plan.lengths]

    def _plan(
        self,
        where: Sequence[tuple[int, ...]],
        memory_nbytes: int,
        *,
        spill_nbytes: int = 0,
        ends: Collection[int] = (),
        apart: bool = False,
    ) -> GroupPlan:
        numbered = self._numbered(where)
        places = None if self._lengths is None else self._places(numbered)
        self._last = plan_groups(
            FileIndexes(numbered), self._files, memory_nbytes, spill_nbytes=spill_nbytes,
            ends=ends, places=places, apart=apart,
        )  # fmt: skip
        return self._last

    def _numbered(self, where: Sequence[tuple[int, ...]]) -> NDArray[np.int64]:
        """Return files and indexes; along several dimensions samples are numbered in C order."""
        every = index_rows(where)
        if self._lengths is None or not len(where):
            return every[:, :2]
        found = np.empty((len(where), 2), dtype=np.int64)
        found[:, 0] = every[:, 0]
        for number in np.unique(every[:, 0]).tolist():
            own = every[:, 0] == number
            found[own, 1] = np.ravel_multi_index(tuple(every[own, 1:].T), self._lengths[number])
        return found

    def _places(self, numbered: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the indexes of samples as each variable counts them."""
        numbers, indexes = numbered.T
        found = [indexes.copy() for _ in self._files[0]]
        for number in np.unique(numbers).tolist():
            own = numbers == number
            for each, variable in zip(found, self._files[number], strict=True):
                each[own] = variable.places(indexes[own])
        return found

    def spill_group(
        self,
        where: Sequence[tuple[int, ...]],
        spill: SpillFile,
        run: RunJobs,
        *,
        memory_nbytes: int,
    ) -> SpilledGroup:
        """Return samples of one file that are put aside, decoded within the memory."""
        memory = band_memory(self._files, memory_nbytes)
        variables, indexes = self._of_one_file(where)
        return spill_group(
            variables,
            runs_of_each(variables, indexes),
            spill,
            run,
            in_flight_nbytes=memory.in_flight_nbytes,
            bands_nbytes=memory.bands_nbytes,
        )

    def banded_nbytes(self, where: Sequence[tuple[int, ...]], *, memory_nbytes: int) -> int:
        """Return what decoding a group takes that is put aside."""
        memory = band_memory(self._files, memory_nbytes)
        variables, indexes = self._of_one_file(where)
        runs = runs_of_each(variables, indexes)
        return memory.in_flight_nbytes + banded_nbytes(variables, runs, memory.bands_nbytes)

    def group_nbytes(
        self, where: Sequence[tuple[int, ...]], only: str | None = None
    ) -> tuple[int, int]:
        """Return the bytes read and decoded to make these samples, each file's as one group."""
        read = decoded = 0
        numbers, indexes = self._numbered(where).T
        for part in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers)) + 1):
            if not len(part):
                continue
            variables = _chosen(self._files[numbers[part[0]]], only)
            every = runs_of_each(variables, indexes[part])
            for variable, runs in zip(variables, every, strict=True):
                stored, nbytes = variable.group_nbytes(runs)
                read, decoded = read + stored, decoded + nbytes
        return read, decoded


def _chosen(variables: Sequence[PiecedVariable], only: str | None) -> Sequence[PiecedVariable]:
    return variables if only is None else [each for each in variables if each.name == only]


def decode_apart(
    raw: Raw,
    where: Sequence[Where],
    run: RunJobs,
    decode: Callable[[Raw, Where], Arrays] | None,
) -> list[Arrays]:
    """Return the arrays of samples that share nothing, one job each."""
    if decode is None:
        return list(raw)
    arrays: list[Arrays] = [{}] * len(raw)

    def job(number: int) -> None:
        arrays[number] = decode(raw[number], where[number])

    run(partial(job, number) for number in range(len(raw)))
    return arrays
