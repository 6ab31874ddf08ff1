"""Tiles of each sample as samples of their own: ``--patch y=256,x=256``."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.datasets.contract import GroupedDataset
from iobench.errors import OptionError
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.datasets.contract import (
        Arrays,
        Dataset,
        Locator,
        PublishedStep,
        Raw,
        RunJobs,
        SampleIndex,
        Where,
    )
    from iobench.samples import Sample, Variable

__all__ = ["TileWhere", "TiledSamples", "tile_starts", "tiled_samples"]


class TileWhere(NamedTuple):
    """Which tile of which sample of the dataset."""

    item: int
    where: Where
    tile: int


class _TileRaw(list[Any]):
    """What was read for tiles, with which tiles of which samples they are."""

    def __init__(self, content: Raw, tiles: Sequence[TileWhere]) -> None:
        super().__init__(content if isinstance(content, list | tuple) else [content])
        self.content = content
        self.tiles = tiles


def tile_starts(length: int, size: int) -> list[int]:
    """Return where tiles of ``size`` begin along a dimension.

    The last one is moved back to end where the dimension does: nothing is lost, and all tiles are
    of one size; it then overlaps the one before.

    Examples
    --------
    >>> tile_starts(512, 256), tile_starts(600, 256)
    ([0, 256], [0, 256, 344])
    """
    starts = list(range(0, length - size + 1, size))
    if starts[-1] + size < length:
        starts.append(length - size)
    return starts


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
            provenance={
                **items.provenance,
                "tiles": {"dims": list(self.patch), "starts": [list(tile) for tile in self.tiles]},
            },
        )

    def _spelled(self, tile: tuple[int, ...]) -> str:
        ends = zip(self.patch.items(), tile, strict=True)
        return " ".join(f"{dim}={start}:{start + size}" for (dim, size), start in ends)

    def read(self, where: TileWhere) -> Any:
        """Return what is read for the tile's sample; the tile itself where that is decoded."""
        raw = self.inner.read(where.where)
        if self._reads_arrays:
            return self._cut(raw, where.tile)  # type: ignore[arg-type]
        return _TileRaw(raw, [where])

    def decode(self, raw: Raw) -> Arrays:
        """Return the tile's arrays."""
        if not isinstance(raw, _TileRaw):
            raise TypeError("decode takes what read returned")
        return self._cut(self.inner.decode(raw.content), raw.tiles[0].tile)

    def preprocess(self, arrays: Arrays) -> Sample:
        """Return the tile as a sample, its arrays contiguous."""
        tile = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        return self.inner.preprocess(tile)

    def groups(self, where: Sequence[TileWhere], *, memory_nbytes: int) -> list[int]:
        """Return how many consecutive tiles to make together: those of whole samples."""
        runs = [list(run) for _, run in itertools.groupby(where, key=lambda one: one.item)]
        counts = [1] * len(runs)
        if isinstance(self.inner, GroupedDataset):
            items = [run[0].where for run in runs]
            counts = self.inner.groups(items, memory_nbytes=memory_nbytes)
        ends = itertools.accumulate(counts)
        return [
            sum(map(len, runs[end - count : end])) for end, count in zip(ends, counts, strict=True)
        ]

    def read_group(self, where: Sequence[TileWhere]) -> Raw:
        """Return what is stored of the samples of these tiles, each once."""
        items = _distinct(where)
        if isinstance(self.inner, GroupedDataset):
            return _TileRaw(self.inner.read_group(items), where)
        return _TileRaw([self.inner.read(item) for item in items], where)

    def decode_group(self, raw: Raw, run: RunJobs) -> list[Arrays]:
        """Return the arrays of each tile, in order."""
        if not isinstance(raw, _TileRaw):
            raise TypeError("decode_group takes what read_group returned")
        if isinstance(self.inner, GroupedDataset):
            items = self.inner.decode_group(raw.content, run)
        elif self._reads_arrays:
            items = list(raw)
        else:
            items = self._decoded(raw, run)
        number, arrays, last = -1, [], None
        for where in raw.tiles:
            number += where.item != last
            last = where.item
            arrays.append(self._cut(items[number], where.tile))
        return arrays

    def group_nbytes(self, where: Sequence[TileWhere]) -> tuple[int, int]:
        """Return the bytes read and decoded for a group."""
        items = _distinct(where)
        if isinstance(self.inner, GroupedDataset):
            return self.inner.group_nbytes(items)
        return len(items) * self._item_nbytes, len(items) * self._item_decoded_nbytes

    @property
    def _reads_arrays(self) -> bool:
        return "decode" in self.fused[1:]

    def _decoded(self, raws: Sequence[Raw], run: RunJobs) -> list[Arrays]:
        made: list[Arrays] = [{}] * len(raws)

        def job(number: int) -> None:
            made[number] = self.inner.decode(raws[number])

        run(functools.partial(job, number) for number in range(len(raws)))
        return made

    def _cut(self, arrays: Arrays, tile: int) -> Arrays:
        starts = dict(zip(self.patch, self.tiles[tile], strict=True))
        ends = {dim: slice(start, start + self.patch[dim]) for dim, start in starts.items()}
        return {
            name: array[tuple(ends.get(dim, slice(None)) for dim in self._dims[name])]
            for name, array in arrays.items()
        }


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
        raw: Any = dataset.read(index.where[0])
        item_nbytes = buffers_nbytes(raw)
    tiled = TiledSamples(dataset, index.spec, patch, item_nbytes=item_nbytes)
    return tiled, tiled.index(index)


def buffers_nbytes(raw: Any) -> int:
    """Return the bytes of what ``read`` returned: buffers, or arrays by name."""
    pieces = raw.values() if hasattr(raw, "values") else raw
    return sum(int(np.asarray(piece).nbytes) for piece in pieces)
