"""Means, deviations, lowest and highest values of what a store holds, by variable and by level.

A `SampleMeasure` takes the moments of samples as they are made, in any thread; a `ShardStatistics`
adds them up in the order of the store, for all samples and for those of each split. What comes out
is the same to the bit however samples were batched, threaded, or interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.stores.moments import (
    EMPTY,
    N_MOMENTS,
    fold_moments,
    merge_moments,
    row_moments,
)
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec, Variable

__all__ = [
    "ALL_SAMPLES",
    "MeasuredSamples",
    "SampleMeasure",
    "ShardMoments",
    "ShardStatistics",
    "merge_shards",
    "split_members",
]

ALL_SAMPLES: Final = "all"
"""The key of statistics over all samples of a store, beside those of its splits."""

ShardMoments = Mapping[str, "NDArray[np.float64]"]
"""Moments of the samples of a shard: of all, and by split; what `SampleMeasure.told` says of."""

GROUP_DIMS: Final = frozenset({
    "channel", "variable",
    "level", "lev", "levelist", "plev", "pressure", "pressure_level", "air_pressure",
    "isobaricinhpa", "isobaricinpa", "isobariclayer", "model_level", "model_level_number", "hybrid",
    "half_level", "height", "heightaboveground", "altitude", "depth", "depthbelowland",
    "depthbelowlandlayer", "potential_vorticity", "theta",
})  # fmt: skip
"""Dimensions along which quantities differ so much that each place has statistics of its own."""
MAX_GROUPS: Final = 1024
BYTES_DIMS: Final = ("byte",)
"""Of stored bytes, which are no values."""
FOLDED_NBYTES: Final = 4 << 20


class MeasuredSamples(list["Sample"]):
    """Samples as they are stored, and their moments: (samples, groups, moments)."""

    moments: NDArray[np.float64]


class SampleMeasure:
    """Takes the moments of samples, variable by variable and group by group. Picklable.

    Parameters
    ----------
    spec : SampleSpec
        What is stored. Complex numbers have no order, and stored bytes no meaning: they are left
        out.
    """

    def __init__(self, spec: SampleSpec) -> None:
        self._variables = [
            (variable, *_layout(variable))
            for variable in spec
            if np.dtype(variable.dtype).kind != "c" and variable.dims != BYTES_DIMS
        ]
        self.n_groups = sum(shape[1] for _, _, shape in self._variables)

    def take(self, samples: Sequence[Sample]) -> NDArray[np.float64]:
        """Return the moments of the values of some samples, each as if it were alone."""
        moments = np.empty((len(samples), self.n_groups, N_MOMENTS))
        at = 0
        for variable, _, shape in self._variables:
            found = moments[:, at : at + shape[1]]
            at += shape[1]
            size = shape[0] * shape[2]
            if shape[1] * size < SMALL:
                many = np.stack([sample[variable.name] for sample in samples])
                rows = _rows(variable, many.reshape(len(samples), *shape))
                found[:] = row_moments(rows).reshape(found.shape)
                continue
            for place, sample in enumerate(samples):
                found[place] = row_moments(
                    _rows(variable, sample[variable.name].reshape(1, *shape))
                )
        return moments

    def told(self, moments: NDArray[np.float64]) -> dict[str, Any]:
        """Return what moments of all groups say, by variable, as JSON-ready values."""
        told = {}
        at = 0
        for variable, dim, shape in self._variables:
            groups = moments[at : at + shape[1]]
            at += shape[1]
            whole = _told(fold_moments(groups))
            if dim is not None:
                each = list(map(_told, groups))
                whole["by"] = {dim: {key: [one[key] for one in each] for key in each[0]}}
            told[variable.name] = whole
        return told


SMALL: Final = 1 << 14
"""Arrays of fewer values cost more to handle than to copy side by side."""


class ShardStatistics:
    """The moments of the samples of one shard, which are given in their order.

    Parameters
    ----------
    measure : SampleMeasure
        What takes those of samples.
    members : mapping of str to array of bool
        For each split with samples in the shard, which of its samples are.
    """

    def __init__(self, measure: SampleMeasure, members: Mapping[str, NDArray[np.bool_]]) -> None:
        self._measure = measure
        self._members = members
        self._n_folded = max(1, min(1 << 10, FOLDED_NBYTES // max(1, measure.n_groups * 48)))
        self._pending: list[NDArray[np.float64]] = []
        self._n_pending = self._n_done = 0
        none = np.tile(EMPTY, (measure.n_groups, 1))
        self._sums = dict.fromkeys((ALL_SAMPLES, *members), none)

    def add(self, samples: Sequence[Sample]) -> None:
        """Take the next samples, whose moments may have been taken before (`MeasuredSamples`)."""
        if isinstance(samples, MeasuredSamples):
            moments = samples.moments
        else:
            moments = self._measure.take(samples)
        self._pending.append(moments)
        self._n_pending += len(moments)
        while self._n_pending >= self._n_folded:
            self._fold(self._n_folded)

    def finish(self) -> ShardMoments:
        """Return the moments of all samples that were given, and of each split."""
        self._fold(self._n_pending)
        return self._sums

    def _fold(self, count: int) -> None:
        """Add up so many samples: always the same ones together, wherever they came in batches."""
        if not count:
            return
        pending = self._pending
        every = pending[0] if len(pending) == 1 else np.concatenate(pending)
        first, left = every[:count], every[count:]
        self._pending, self._n_pending = [left], len(left)
        for name, sums in self._sums.items():
            rows = first
            if name in self._members:
                rows = first[self._members[name][self._n_done : self._n_done + count]]
            if len(rows):
                self._sums[name] = merge_moments(sums, fold_moments(rows))
        self._n_done += count


def split_members(
    splits: Mapping[str, Sequence[int]], numbers: Sequence[int]
) -> dict[str, NDArray[np.bool_]]:
    """Return which of these samples are in each split, of the splits that have any of them.

    One that is called as all samples are (`ALL_SAMPLES`) has no statistics of its own.
    """
    asked = np.asarray(numbers, dtype=np.int64)
    found = {}
    for name, chosen in splits.items():
        members = np.isin(asked, np.asarray(chosen, dtype=np.int64))
        if name != ALL_SAMPLES and members.any():
            found[name] = members
    return found


def merge_shards(measure: SampleMeasure, shards: Iterable[ShardMoments]) -> dict[str, Any]:
    """Return the statistics of a store from those of its shards, in order; JSON-ready.

    For all samples (`ALL_SAMPLES`) and for each split, by variable: ``n`` values, ``n_missing``
    (NaN or infinite), ``mean``, ``std`` (of these values: the population's, divided by ``n``),
    ``min``, ``max``; ``None`` where there is no value or float64 does not hold it; and ``by`` level
    or channel lists of the same.
    """
    if not measure.n_groups:
        return {}
    sums: dict[str, NDArray[np.float64]] = {}
    for shard in shards:
        for name, moments in shard.items():
            sums[name] = merge_moments(sums[name], moments) if name in sums else moments
    return {name: measure.told(moments) for name, moments in sums.items()}


def _told(moments: NDArray[np.float64]) -> dict[str, Any]:
    n, n_missing, mean, squares, low, high = moments.tolist()
    deviation = math.sqrt(squares / n) if n and math.isfinite(squares) else math.inf
    values = {"mean": mean if n else math.inf, "std": deviation, "min": low, "max": high}
    known = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return {"n": int(n), "n_missing": int(n_missing), **known}


def _layout(variable: Variable) -> tuple[str | None, tuple[int, int, int]]:
    """Return the dimension with statistics of its own, and the shape around and along it."""
    names = [dim.casefold() for dim in variable.dims]
    axis = next((names.index(name) for name in names if name in GROUP_DIMS), None)
    if variable.channels:
        axis = variable.dims.index("channel") if "channel" in variable.dims else 0
    shape = variable.shape
    if axis is None or not 0 < shape[axis] <= MAX_GROUPS:
        return None, (1, 1, math.prod(shape))
    return variable.dims[axis], (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _rows(variable: Variable, arrays: NDArray[Any]) -> NDArray[Any]:
    """Return the values of each group of each array as a row: of (arrays, before, group, after)."""
    n, before, groups, after = arrays.shape
    rows = np.moveaxis(arrays, 2, 1).reshape(n * groups, before * after)
    return rows if variable.packed is None else unpack(rows, variable.packed)
