"""What datasets have in common whose samples share chunks: they are made in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.chunks.grouped import SampleGroups, decode_apart

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from iobench.datasets.contract import Arrays, Raw, RunJobs, SpilledSamples
    from iobench.files.spill import SpillFile


class GroupedSamples:
    """The faces `BandedDataset` and `VariablesApart`, of a dataset that may have groups.

    A subclass says how its `_groups` are made, and what is read for a sample without them.
    """

    fused: tuple[str, ...]

    @property
    def _groups(self) -> SampleGroups | None:
        """Who makes groups; None where each sample is made by itself."""
        raise NotImplementedError

    def _in_groups(self, where: Sequence[Any]) -> Sequence[tuple[int, ...]]:
        """Return file and indexes of each sample."""
        return where

    def _alone_nbytes(self, where: Sequence[Any]) -> int:
        """Return the bytes read for samples that are made one by one."""
        raise NotImplementedError

    def read(self, where: Any) -> Any:
        """Return what is stored of one sample."""
        raise NotImplementedError

    def decode(self, raw: Raw, where: Any) -> Arrays:
        """Return the arrays of one sample."""
        raise NotImplementedError

    @property
    def on_the_way_nbytes(self) -> int:
        """Bytes that decoding takes beside the arrays; 0 where nobody tells."""
        groups = self._groups
        return groups.on_the_way_nbytes if isinstance(groups, SampleGroups) else 0

    def groups(self, where: Sequence[Any], *, memory_nbytes: int, apart: bool = False) -> list[int]:
        """Return how many samples to make together: those whose chunks hold several."""
        if self._groups is None:
            return [1] * len(where)
        places, told = self._in_groups(where), _apart(apart)
        return self._groups.groups(places, memory_nbytes=memory_nbytes, **told)

    def variables_apart(self) -> Sequence[str]:
        """Return the variables, where a group can be made of each; none where it cannot."""
        groups = self._groups
        return groups.variables_apart() if isinstance(groups, SampleGroups) else ()

    def read_group(self, where: Sequence[Any], only: str | None = None) -> Raw:
        """Return what is stored of these samples, each chunk once."""
        if self._groups is None:
            return [self.read(each) for each in where]
        return self._groups.read_group(self._in_groups(where), *_given(only))

    def decode_group(
        self, raw: Raw, where: Sequence[Any], run: RunJobs, only: str | None = None
    ) -> Sequence[Arrays]:
        """Return the arrays of each sample of a group."""
        if self._groups is None:
            return decode_apart(raw, where, run, None if self.fused else self.decode)
        return self._groups.decode_group(raw, self._in_groups(where), run, *_given(only))

    def group_nbytes(self, where: Sequence[Any], only: str | None = None) -> tuple[int, int]:
        """Return the bytes read and decoded to make these samples together."""
        if self._groups is None:
            nbytes = self._alone_nbytes(where)
            return nbytes, nbytes
        return self._groups.group_nbytes(self._in_groups(where), *_given(only))

    def band_nbytes(self) -> int | None:
        """Return the least memory that any group can be made with, put aside band by band."""
        return None if self._groups is None else self._groups.band_nbytes()

    def banded_groups(
        self,
        where: Sequence[Any],
        *,
        memory_nbytes: int,
        spill_nbytes: int,
        ends: Collection[int] = (),
        apart: bool = False,
    ) -> list[tuple[int, bool]]:
        """Return how many samples to make together, where some may be put aside."""
        assert self._groups is not None
        places, told = self._in_groups(where), _apart(apart)
        return self._groups.banded_groups(
            places, memory_nbytes=memory_nbytes, spill_nbytes=spill_nbytes, ends=ends, **told
        )

    def banded_nbytes(self, where: Sequence[Any], *, memory_nbytes: int) -> int:
        """Return what decoding a group takes that is put aside; the memory where nobody tells."""
        groups = self._groups
        if not isinstance(groups, SampleGroups):
            return memory_nbytes
        return groups.banded_nbytes(self._in_groups(where), memory_nbytes=memory_nbytes)

    def spill_group(
        self, where: Sequence[Any], spill: SpillFile, run: RunJobs, *, memory_nbytes: int
    ) -> SpilledSamples:
        """Return samples that are put aside, each chunk decoded once."""
        assert self._groups is not None
        places = self._in_groups(where)
        return self._groups.spill_group(places, spill, run, memory_nbytes=memory_nbytes)


def _apart(apart: bool) -> dict[str, Any]:
    return {"apart": True} if apart else {}


def _given(only: str | None) -> tuple[str, ...]:
    """Return what is handed on: who makes groups for another may not know of variables."""
    return () if only is None else (only,)
