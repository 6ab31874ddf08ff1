"""One part of the grid of every sample, for training processes that share a sample."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import OptionError
from iobench.files.atomic import is_local
from iobench.loaders.ring.buffers import ScratchRows
from iobench.loaders.ring.range_plan import (
    CALL_NBYTES,
    REQUEST_NBYTES,
    GridCut,
    plan_of,
    wanted_of,
)
from iobench.loaders.ring.store_source import StoreSource
from iobench.loaders.ring.wrapped_source import WrappedSource
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec
from iobench.stores.extents import ExtentStore, ExtentTable
from iobench.stores.fields import PlainDecoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource, Filler, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.range_plan import RangePlan
    from iobench.stores.contract import Store
    from iobench.stores.fields import FieldLayout

GRID_DIMS: Final = (
    "y", "lat", "latitude", "rlat", "cell", "cells", "ncells", "values", "grid", "x", "lon",
    "longitude", "rlon",
)  # fmt: skip
"""Dimensions that are cut, by the names that are usual; of several the first in this list."""


def part_of_grid(
    source: BatchSource, part: tuple[int, int], *, dim: str | None = None
) -> BatchSource:
    """Return the samples of a source, cut to one of several parts of their grid.

    Variables without that dimension stay whole. Of a store that holds numbers as they are no more
    than the part is read, which may be several ranges of a sample, unless these are so short
    that reading all is cheaper. Whole samples are read, and cut, where they have to be decoded, and
    where they are verified: a checksum is of a whole extent. ``choice`` of the source says which.

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
            cuts[variable.name] = GridCut(variable, axis, low, high)
    if isinstance(source, StoreSource):
        return _part_of_store(source, cuts)
    return GridPartSource(source, cuts, f"{source.spec.nbytes} bytes of samples are made, and cut")


def _part_of_store(source: StoreSource, cuts: Mapping[str, GridCut]) -> BatchSource:
    """Return what reads no more of a store than is wanted, where that is possible and cheaper."""
    store, fields = source.store, source.fields
    whole_nbytes = sum(extent.nbytes for extent in store.extents(0)) if len(store) else 0
    if not isinstance(store, ExtentStore) or fields is None:
        return GridPartSource(source, cuts, _whole(whole_nbytes, cuts, store, "they are encoded"))
    if source.verify:
        why = "with verify=True, since a checksum is of a whole extent"
        return GridPartSource(source, cuts, _whole(whole_nbytes, cuts, store, why))
    if is_local(store.path) and (smaller := _smaller_store(store, fields, cuts)) is not None:
        part_nbytes = smaller.spec.nbytes
        note = f"{part_nbytes} of the {whole_nbytes} bytes of a sample are read (1.00 times)"
        return StoreSource(smaller, direct=source.direct, note=note)
    stored = {name: replace(cut, variable=store.manifest.spec[name]) for name, cut in cuts.items()}
    call_nbytes = CALL_NBYTES if is_local(store.path) else REQUEST_NBYTES
    plan = plan_of(fields, store.manifest.spec, stored, call_nbytes)
    if plan is None or plan.cost >= plan.whole_cost:
        count = sum(cut.n_ranges for cut in cuts.values())
        why = f"the part is {count} ranges, and reading all is cheaper"
        return GridPartSource(source, cuts, _whole(whole_nbytes, cuts, store, why))
    return PartRangesSource(source, store, fields, plan, cuts)


def _whole(nbytes: int, cuts: Mapping[str, GridCut], store: Store, why: str) -> str:
    wanted = _parts_of(store.manifest.spec, cuts).nbytes
    return (
        f"samples are read whole, {nbytes} bytes for {wanted} that are wanted "
        f"({nbytes / max(1, wanted):.2f} times): {why}"
    )


def _smaller_store(
    store: ExtentStore, fields: FieldLayout, cuts: Mapping[str, GridCut]
) -> ExtentStore | None:
    """Return a store whose extents are the parts; None where they are no ranges of bytes."""
    if any(fields.around or ()) or any(cut.n_ranges > 1 for cut in cuts.values()):
        return None
    stored = store.manifest.spec
    parts = {}
    for number, extent in enumerate(fields.extents):
        for one in extent:
            start, nbytes = one.start, one.nbytes
            if (cut := cuts.get(one.name)) is not None:
                row = nbytes // cut.variable.shape[cut.axis]
                start, nbytes = start + cut.low * row, (cut.high - cut.low) * row
            file, offset = store.table.file[:, number], store.table.offset[:, number] + start
            parts[one.name] = file, offset, nbytes
    if (store.table.length != np.array(fields.lengths)).any():
        return None
    if not all(name in parts for name in stored.names):
        return None
    spec = _parts_of(stored, cuts)
    files, offsets, lengths = zip(*(parts[name] for name in spec.names), strict=True)
    shape = len(store), len(lengths)
    table = ExtentTable(
        store.table.files,
        np.stack(files, axis=1),
        np.stack(offsets, axis=1),
        np.broadcast_to(np.array(lengths, dtype=np.int64), shape),
    )
    manifest = replace(store.manifest, spec=spec)
    return ExtentStore(store.path, manifest, table=table, decode=PlainDecoder(spec))


def _parts_of(spec: SampleSpec, cuts: Mapping[str, GridCut]) -> SampleSpec:
    """Return variables, as samples or the store have them, cut."""
    return SampleSpec(
        tuple(
            replace(cuts[each.name], variable=each).part if each.name in cuts else each
            for each in spec
        )
    )


class PartRangesSource(WrappedSource):
    """Parts of samples of a store, of which no more is read; see `part_of_grid`.

    Parameters
    ----------
    source : StoreSource
        Of whole samples.
    store : ExtentStore
        Its store.
    fields : FieldLayout
        Where variables lie in the extents.
    plan : RangePlan
        What is read of a sample.
    cuts : mapping of str to GridCut
        What of some variables is wanted.

    Attributes
    ----------
    choice : str
        What is read of a sample, and how much of that is wanted.
    """

    def __init__(
        self,
        source: StoreSource,
        store: ExtentStore,
        fields: FieldLayout,
        plan: RangePlan,
        cuts: Mapping[str, GridCut],
    ) -> None:
        choice = (
            f"{plan.nbytes} of the {plan.whole_nbytes} bytes of a sample are read, in "
            f"{len(plan.ranges)} ranges, for {plan.wanted_nbytes} that are wanted "
            f"({plan.nbytes / max(1, plan.wanted_nbytes):.2f} times)"
        )
        super().__init__(source, _parts_of(source.spec, cuts), "parts of a grid", choice)
        self.plan = plan
        self._store_source = source
        self._store = store
        self._fields = fields
        self._cuts = dict(cuts)

    def filler(self) -> Filler:
        """Return a filler for one more thread."""
        return self._store_source.in_place(self._store, self._fields, self.plan, self._cuts)


class GridPartSource(WrappedSource):
    """Parts of samples that are filled whole and then cut; see `part_of_grid`.

    Parameters
    ----------
    source : BatchSource
        Of whole samples.
    cuts : mapping of str to GridCut
        Of some variables, which part; the others stay whole.
    choice : str
        Why.
    """

    def __init__(self, source: BatchSource, cuts: Mapping[str, GridCut], choice: str = "") -> None:
        super().__init__(source, _parts_of(source.spec, cuts), "parts of a grid", choice)
        self._cuts = dict(cuts)

    def filler(self) -> Filler:
        """Return a filler with memory for whole samples."""
        return _CuttingFiller(self.source, self._cuts)


class _CuttingFiller:
    def __init__(self, source: BatchSource, cuts: Mapping[str, GridCut]) -> None:
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
            row[...] = wanted_of(whole[name], self._cuts.get(name))
            nbytes += row.nbytes
        log.add(Kind.TRANSFORM, start_ns, log.now_ns(), nbytes=nbytes, label="grid_part")

    def close(self) -> None:
        """Close the filler of whole samples."""
        self._filler.close()
