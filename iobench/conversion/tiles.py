"""Tiles of each sample as samples of their own: ``--patch y=256,x=256``."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.chunks.boxes import tile_starts
from iobench.chunks.grouped import decode_apart
from iobench.chunks.netcdf.file import inspect_netcdf
from iobench.chunks.zarr_arrays.store import inspect_zarr
from iobench.datasets.chunked_samples import coordinate_values
from iobench.datasets.contract import BandedDataset, GroupedDataset
from iobench.errors import FileFormatError, OptionError, SampleError
from iobench.samples import SampleSpec, handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.coordinates import Meteorology
    from iobench.datasets.contract import (
        Arrays,
        Dataset,
        Locator,
        PublishedStep,
        Raw,
        RunJobs,
        SampleIndex,
        SpilledSamples,
        Where,
    )
    from iobench.files.spill import SpillFile
    from iobench.samples import Sample, Variable


class TileWhere(NamedTuple):
    """Which tile of which sample of the dataset."""

    item: int
    where: Where
    tile: int


class TiledSamples:
    """A dataset whose samples are the tiles of another one's.

    The tiles of a sample are made together, so that it is read and decoded once.

    Parameters
    ----------
    inner : Dataset
        Already indexed.
    spec : SampleSpec
        Of its samples.
    patch : mapping of str to int
        Size of a tile by dimension.
    item_nbytes : int
        Bytes read for one of its samples, where it does not make them in groups.
    """

    def __init__(
        self, inner: Dataset, spec: SampleSpec, patch: Mapping[str, int], *, item_nbytes: int
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self.title = inner.title
        self.fused = tuple(inner.fused)
        self.published: PublishedStep | None = inner.published
        self.thread_safe = bool(getattr(inner, "thread_safe", False))
        self.patch = dict(patch)
        lengths = {dim: n for v in spec for dim, n in zip(v.dims, v.shape, strict=True)}
        starts = [tile_starts(lengths[dim], size) for dim, size in patch.items()]
        self.tiles = tuple(itertools.product(*starts))
        self.spec = SampleSpec(tuple(self._cut_variable(variable) for variable in spec))
        self._dims = {variable.name: variable.dims for variable in spec}
        self._item_nbytes = item_nbytes
        self._item_decoded_nbytes = spec.nbytes

    def _cut_variable(self, variable: Variable) -> Variable:
        lengths = zip(variable.dims, variable.shape, strict=True)
        shape = tuple(self.patch.get(dim, length) for dim, length in lengths)
        return replace(variable, shape=shape)

    @property
    def overlaps(self) -> list[str]:
        """What tiles overlap, a line for each dimension that they do not divide."""
        lines = []
        for axis, (dim, size) in enumerate(self.patch.items()):
            starts = sorted({tile[axis] for tile in self.tiles})
            over = starts[-2] + size - starts[-1] if len(starts) > 1 else 0
            if over:
                lines.append(
                    f"--patch {dim}={size} does not divide {dim} ({starts[-1] + size}): the last "
                    f"tile overlaps the one before by {over}"
                )
        return lines

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of the dataset."""
        return self.inner.files(locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the tiles of all samples, sample after sample."""
        return self.index(self.inner.samples(files, locator))

    def index(self, items: SampleIndex) -> SampleIndex:
        """Return the tiles of these samples, sample after sample."""
        n_tiles = len(self.tiles)
        return replace(
            items,
            spec=self.spec,
            where=[
                TileWhere(number, where, tile)
                for number, where in enumerate(items.where)
                for tile in range(n_tiles)
            ],
            splits={
                name: [number * n_tiles + tile for number in numbers for tile in range(n_tiles)]
                for name, numbers in items.splits.items()
            },
            coordinate=[
                f"{name} {spelled}"
                for name in items.coordinate
                for spelled in map(self._spelled, self.tiles)
            ],
            positions=(),
            rows=(),
            position_units="",
            axes=(),
            provenance={
                **items.provenance,
                "tiles": {"dims": list(self.patch), "starts": [list(tile) for tile in self.tiles]},
            },
            meteorology=self._meteorology(items.meteorology, len(items)),
        )

    def _meteorology(self, whole: Meteorology, n_items: int) -> Meteorology:
        """Return what is known of tiles: along a dimension that is cut each has its own part."""
        tiles = [tile for _ in range(n_items) for tile in self.tiles]
        parts = {
            dim: [slice(tile[axis], tile[axis] + size) for tile in tiles]
            for axis, (dim, size) in enumerate(self.patch.items())
        }
        numbers = np.repeat(np.arange(n_items), len(self.tiles))
        found, left_out = [], dict(whole.left_out)
        for each in whole.take(numbers).coordinates:
            try:
                found.append(each if parts.keys().isdisjoint(each.dims) else each.cut(parts))
            except SampleError as error:
                left_out[each.name] = str(error)
        return replace(whole, coordinates=tuple(found), left_out=left_out)

    def _spelled(self, tile: tuple[int, ...]) -> str:
        ends = zip(self.patch.items(), tile, strict=True)
        return " ".join(f"{dim}={start}:{start + size}" for (dim, size), start in ends)

    def read(self, where: TileWhere) -> Any:
        """Return what is read for the tile's sample; the tile itself where that is decoded."""
        raw = self.inner.read(where.where)
        return self._cut(raw, where.tile) if self._reads_arrays else raw

    def decode(self, raw: Raw, where: TileWhere) -> Arrays:
        """Return the tile's arrays."""
        return self._cut(self.inner.decode(raw, where.where), where.tile)

    def preprocess(self, arrays: Arrays, where: TileWhere) -> Sample:
        """Return the tile as a sample, its arrays contiguous."""
        tile = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        return self.inner.preprocess(tile, where.where)

    def groups(self, where: Sequence[TileWhere], *, memory_nbytes: int) -> list[int]:
        """Return how many consecutive tiles to make together: those of whole samples."""
        runs = [list(run) for _, run in itertools.groupby(where, key=lambda one: one.item)]
        counts = [1] * len(runs)
        if isinstance(self.inner, GroupedDataset):
            items = [run[0].where for run in runs]
            counts = self.inner.groups(items, memory_nbytes=memory_nbytes)
        return _summed(runs, counts)

    def read_group(self, where: Sequence[TileWhere]) -> Raw:
        """Return what is stored of the samples of these tiles, each once."""
        items = _distinct(where)
        if isinstance(self.inner, GroupedDataset):
            return self.inner.read_group(items)
        return [self.inner.read(item) for item in items]

    def decode_group(self, raw: Raw, where: Sequence[TileWhere], run: RunJobs) -> Sequence[Arrays]:
        """Return the arrays of each tile, in order."""
        if isinstance(self.inner, GroupedDataset):
            items = self.inner.decode_group(raw, _distinct(where), run)
        else:
            decode = None if self._reads_arrays else self.inner.decode
            items = decode_apart(raw, _distinct(where), run, decode)
        number, arrays, last = -1, [], None
        for each in where:
            number += each.item != last
            last = each.item
            arrays.append(self._cut(items[number], each.tile))
        return arrays

    def group_nbytes(self, where: Sequence[TileWhere]) -> tuple[int, int]:
        """Return the bytes read and decoded for a group."""
        items = _distinct(where)
        if isinstance(self.inner, GroupedDataset):
            return self.inner.group_nbytes(items)
        return len(items) * self._item_nbytes, len(items) * self._item_decoded_nbytes

    def band_nbytes(self) -> int | None:
        """Return the least memory for groups that are put aside; None where none can be."""
        return self.inner.band_nbytes() if isinstance(self.inner, BandedDataset) else None

    def banded_groups(
        self,
        where: Sequence[TileWhere],
        *,
        memory_nbytes: int,
        spill_nbytes: int,
        ends: Collection[int] = (),
    ) -> list[tuple[int, bool]]:
        """Return how many consecutive tiles to make together, where some may be put aside."""
        assert isinstance(self.inner, BandedDataset)
        runs = [list(run) for _, run in itertools.groupby(where, key=lambda one: one.item)]
        bounds = {0: 0}
        for number, run in enumerate(runs):
            bounds[max(bounds) + len(run)] = number + 1
        planned = self.inner.banded_groups(
            [run[0].where for run in runs],
            memory_nbytes=memory_nbytes,
            spill_nbytes=spill_nbytes,
            ends={bounds[end] for end in ends if end in bounds},
        )
        counts = _summed(runs, [count for count, _ in planned])
        return [(count, is_held) for count, (_, is_held) in zip(counts, planned, strict=True)]

    def spill_group(
        self, where: Sequence[TileWhere], spill: SpillFile, run: RunJobs, *, memory_nbytes: int
    ) -> SpilledTiles:
        """Return tiles of samples that are put aside."""
        assert isinstance(self.inner, BandedDataset)
        items = self.inner.spill_group(_distinct(where), spill, run, memory_nbytes=memory_nbytes)
        return SpilledTiles(items, where, self._cut)

    @property
    def _reads_arrays(self) -> bool:
        return "decode" in self.fused[1:]

    def _cut(self, arrays: Arrays, tile: int) -> Arrays:
        return {name: self._part(array, self._dims[name], tile) for name, array in arrays.items()}

    def _part(self, array: NDArray[Any], dims: Sequence[str], tile: int) -> NDArray[Any]:
        """Return what a tile has of an array along these dimensions."""
        starts = dict(zip(self.patch, self.tiles[tile], strict=True))
        ends = {dim: slice(start, start + self.patch[dim]) for dim, start in starts.items()}
        return array[tuple(ends.get(dim, slice(None)) for dim in dims)]


class SpilledTiles:
    """Tiles of samples that are put aside; the face `iobench.datasets.SpilledSamples`.

    Parameters
    ----------
    items : SpilledSamples
        The samples.
    where : sequence of TileWhere
        The tiles.
    cut : callable
        Cuts a tile out of a sample's arrays.
    """

    def __init__(
        self,
        items: SpilledSamples,
        where: Sequence[TileWhere],
        cut: Callable[[Arrays, int], Arrays],
    ) -> None:
        self.read_nbytes, self.spilled_nbytes = items.read_nbytes, items.spilled_nbytes
        self._items, self._cut = items, cut
        counted = itertools.groupby(where, key=lambda one: one.item)
        self._places = [
            (number, each.tile) for number, (_, run) in enumerate(counted) for each in run
        ]
        self._lock = threading.Lock()
        self._last: tuple[int, Arrays] = -1, {}

    def take(self, start: int, stop: int) -> Sequence[Arrays]:
        """Return the arrays of tiles, by their positions in the group."""
        return [self._cut(self._item(item), tile) for item, tile in self._places[start:stop]]

    def _item(self, number: int) -> Arrays:
        """Return a sample; the last one is kept, as its other tiles come next."""
        with self._lock:
            if self._last[0] != number:
                self._last = -1, {}
                (arrays,) = self._items.take(number, number + 1)
                self._last = number, arrays
            return self._last[1]


def _summed(runs: Sequence[Sequence[TileWhere]], counts: Sequence[int]) -> list[int]:
    """Return the tiles of so many samples each time."""
    ends = itertools.accumulate(counts)
    return [sum(map(len, runs[end - count : end])) for end, count in zip(ends, counts, strict=True)]


def _distinct(where: Sequence[TileWhere]) -> list[Where]:
    """Return the samples of tiles, each once where its tiles follow each other."""
    return [next(run).where for _, run in itertools.groupby(where, key=lambda one: one.item)]


def tiled_samples(
    dataset: Dataset, index: SampleIndex, patch: Mapping[str, int]
) -> tuple[TiledSamples, SampleIndex]:
    """Return the dataset of the tiles of a dataset's samples, and its index.

    Raises
    ------
    OptionError
        If no variable has one of the dimensions, or is shorter along it than a tile.
    """
    lengths = {dim: n for v in index.spec for dim, n in zip(v.dims, v.shape, strict=True)}
    listed = ", ".join(f"{dim} ({length})" for dim, length in lengths.items())
    for dim, size in patch.items():
        if dim not in lengths:
            raise OptionError(
                f"--patch {dim}={size}: samples have no such dimension; dimensions (lengths): "
                f"{listed}"
            )
        if size > lengths[dim]:
            raise OptionError(
                f"--patch {dim}={size}: longer than the dimension; dimensions (lengths): {listed}"
            )
    item_nbytes = 0
    if not isinstance(dataset, GroupedDataset):
        item_nbytes = max(0, handed_on_nbytes(dataset.read(index.where[0])))
    tiled = TiledSamples(dataset, index.spec, patch, item_nbytes=item_nbytes)
    return tiled, tiled.index(index)


def check_monotonic(files: Sequence[Path], dims: Sequence[str], kind: str) -> None:
    """Check that along each dimension the coordinate rises, or falls, throughout.

    A dimension without a coordinate is counted, and a GRIB grid is regular by its definition.

    Parameters
    ----------
    files : sequence of Path
        All of one kind.
    dims : sequence of str
        Dimensions that tiles are cut along.
    kind : str
        ``"GRIB"``, ``"NetCDF"`` or ``"Zarr"``.

    Raises
    ------
    FileFormatError
        Naming file, dimension and the first place where the coordinate turns or stands still.
    """
    if kind == "GRIB":
        return
    for file in files:
        inspected = inspect_zarr(file) if kind == "Zarr" else inspect_netcdf(file)
        for dim in dims:
            _check(coordinate_values(inspected, dim), file, dim)


def _check(values: NDArray[Any], file: Path, dim: str) -> None:
    if values.dtype.kind not in "iuf" or len(values) < 2:
        return
    steps = np.diff(values.astype(np.float64))
    right = steps > 0 if steps[0] > 0 else steps < 0
    if not right.all():
        place = int(np.argmin(right))
        raise FileFormatError(
            f"{file}: the coordinate {dim!r} is not monotonic: {values[place]:g} at {place}, then "
            f"{values[place + 1]:g}; a patch there would join what does not lie side by side, so "
            "sort the file along it first, or leave it out of --patch"
        )
