"""One part of the grid of every sample, for training processes that share a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, StoreError
from iobench.loaders.ring.contract import refuse_own_memory
from iobench.loaders.ring.scratch import ScratchRows
from iobench.loaders.ring.store_source import StoreSource
from iobench.recording import Kind
from iobench.samples import SampleSpec
from iobench.stores import ExtentStore, ExtentTable, FieldLayout, FieldPart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource, Filler, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import Variable
    from iobench.stores import Store

__all__ = ["GRID_DIMS", "GridPartSource", "part_of_grid"]

GRID_DIMS: Final = (
    "y", "lat", "latitude", "rlat", "cell", "cells", "ncells", "values", "grid", "x", "lon",
    "longitude", "rlon",
)  # fmt: skip
"""Dimensions that are cut, by the names that are usual; of several the first in this list."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Which stretch of one variable: along which axis, from where to where."""

    variable: Variable
    axis: int
    low: int
    high: int

    @property
    def part(self) -> Variable:
        shape = list(self.variable.shape)
        shape[self.axis] = self.high - self.low
        channels = self.variable.channels
        if channels and self.variable.dims[self.axis] == "channel":
            channels = channels[self.low : self.high]
        return replace(self.variable, shape=tuple(shape), channels=channels)

    @property
    def is_contiguous(self) -> bool:
        return math.prod(self.variable.shape[: self.axis]) == 1


def part_of_grid(
    source: BatchSource, part: tuple[int, int], *, dim: str | None = None
) -> BatchSource:
    """Return the samples of a source, cut to one of several parts of their grid.

    Variables without that dimension stay whole. Of a store that holds numbers as they are, and
    has the dimension first, no more than the part is read; of others whole samples are, and cut.

    Parameters
    ----------
    source : BatchSource
        Of whole samples.
    part : (int, int)
        Which part, from 0, of how many. Parts differ by one row at most.
    dim : str, optional
        The dimension; by default the first of `GRID_DIMS` that a variable has.

    Raises
    ------
    OptionError
        If no variable has such a dimension, or one is shorter than there are parts.
    """
    number, count = part
    if not 0 <= number < count:
        raise OptionError(f"grid_part={part}: expected (k, n) with 0 <= k < n")
    dims = {name for variable in source.spec for name in variable.dims}
    chosen = dim or next((name for name in GRID_DIMS if name in dims), None)
    if chosen not in dims:
        raise OptionError(
            f"grid_part={part}: no variable has "
            f"{'the dimension ' + dim if dim else 'a dimension of a known grid'}; grid_dim names "
            f"one of {', '.join(sorted(dims))}"
        )
    cuts = {}
    for variable in source.spec:
        if chosen in variable.dims:
            axis = variable.dims.index(chosen)
            length = variable.shape[axis]
            if length < count:
                raise OptionError(
                    f"grid_part={part}: {variable.name} has {length} along {chosen}, fewer than "
                    "parts"
                )
            low, high = number * length // count, (number + 1) * length // count
            cuts[variable.name] = _Cut(variable, axis, low, high)
    if isinstance(source, StoreSource) and not source.verify:
        smaller = _smaller_store(source, cuts)
        if smaller is not None:
            return StoreSource(smaller, direct=source.direct)
    return GridPartSource(source, cuts)


def _smaller_store(source: StoreSource, cuts: Mapping[str, _Cut]) -> Store | None:
    """Return a store whose extents are the parts; None where they are no stretches of bytes."""
    store, fields = source.store, source.fields
    if not isinstance(store, ExtentStore) or fields is None or any(fields.around or ()):
        return None
    if not all(cut.is_contiguous for cut in cuts.values()):
        return None
    stored = store.manifest.spec
    columns, offsets, lengths = [], [], []
    names = []
    for number, extent in enumerate(fields.extents):
        for one in extent:
            if not one.name:
                continue
            start, nbytes = one.start, one.nbytes
            if (cut := cuts.get(one.name)) is not None:
                row = nbytes // cut.variable.shape[cut.axis]
                start, nbytes = start + cut.low * row, (cut.high - cut.low) * row
            names.append(one.name)
            columns.append(store.table.file[:, number])
            offsets.append(store.table.offset[:, number] + start)
            lengths.append(np.full(len(store), nbytes, dtype=np.int64))
    if (store.table.length != np.array(fields.lengths)).any() or set(names) != set(stored.names):
        return None
    spec = SampleSpec(tuple(_part_of(variable, cuts) for variable in stored))
    table = ExtentTable(
        store.table.files,
        np.stack(columns, axis=1),
        np.stack(offsets, axis=1),
        np.stack(lengths, axis=1),
    )
    manifest = replace(store.manifest, spec=spec)
    return ExtentStore(store.path, manifest, table=table, decode=_PartDecoder(spec, tuple(names)))


def _part_of(variable: Variable, cuts: Mapping[str, _Cut]) -> Variable:
    """Return a variable as it is stored, cut."""
    cut = cuts.get(variable.name)
    return variable if cut is None else replace(cut, variable=variable).part


@dataclass(frozen=True, slots=True)
class _PartDecoder:
    """Extents that are one variable each."""

    spec: SampleSpec
    names: tuple[str, ...]

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        found = {}
        for name, data in zip(self.names, raw, strict=True):
            variable = self.spec[name]
            if len(data) != variable.nbytes:
                raise StoreError(f"{len(data)} bytes are not a part of {name}")
            found[name] = np.frombuffer(data, variable.dtype).reshape(variable.shape)
        return {name: found[name] for name in self.spec.names}

    def fields(self, raw: Sequence[memoryview]) -> FieldLayout:
        """Return each extent as its variable."""
        named = zip(self.names, raw, strict=True)
        return FieldLayout(tuple((FieldPart(name, 0, len(data)),) for name, data in named))


class GridPartSource:
    """Parts of samples that are filled whole and then cut; see `part_of_grid`.

    Parameters
    ----------
    source : BatchSource
        Of whole samples.
    cuts : mapping
        By variable, which stretch; the others stay whole.
    """

    def __init__(self, source: BatchSource, cuts: Mapping[str, _Cut]) -> None:
        refuse_own_memory(source, "parts of a grid")
        self._source = source
        self._cuts = dict(cuts)
        self.spec = SampleSpec(tuple(_part_of(variable, cuts) for variable in source.spec))

    def __len__(self) -> int:
        return len(self._source)

    def filler(self) -> Filler:
        """Return a filler with memory for whole samples."""
        return _CuttingFiller(self._source, self._cuts)


class _CuttingFiller:
    def __init__(self, source: BatchSource, cuts: Mapping[str, _Cut]) -> None:
        self._filler = source.filler()
        self._cuts = cuts
        self._scratch = ScratchRows(source.spec)

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill whole samples, then copy their parts."""
        whole = self._scratch.arrays(len(samples))
        self._filler.fill(samples, whole, log)
        start_ns = log.now_ns()
        nbytes = 0
        for name, row in rows.items():
            cut = self._cuts.get(name)
            wanted = whole[name]
            if cut is not None:
                wanted = wanted[(slice(None),) * (cut.axis + 1) + (slice(cut.low, cut.high),)]
            row[...] = wanted
            nbytes += row.nbytes
        log.add(Kind.TRANSFORM, start_ns, log.now_ns(), nbytes=nbytes, label="grid_part")

    def close(self) -> None:
        """Close the filler of whole samples."""
        self._filler.close()
