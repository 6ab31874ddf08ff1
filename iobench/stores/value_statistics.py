"""Means, deviations, lowest and highest values of what a store holds, by variable and by level.

A `SampleMeasure` measures samples as they are made, in any thread; a `ShardStatistics`
adds them up in the order of the store, for all samples and for those of each split. What comes out
is the same to the bit however samples were batched, threaded, or interrupted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.samples import StackedSamples
from iobench.stores.encoding import EncodedSample
from iobench.stores.moments import (
    EMPTY,
    N_MOMENTS,
    fold_moments,
    merge_moments,
    row_moments,
)
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec, Variable

ALL_SAMPLES: Final = "all"
"""The key of statistics over all samples of a store, beside those of its splits."""

ShardMoments = Mapping[str, "NDArray[np.float64]"]
"""Moments of the samples of a shard: of all, and by split; what `SampleMeasure.told` says of."""

GROUP_DIMS: Final = frozenset({
    "channel", "variable",
    "level", "lev", "levelist", "plev", "pressure", "pressure_level", "air_pressure",
    "isobaricinhpa", "isobaricinpa", "isobariclayer", "model_level", "model_level_number", "hybrid",
    "half_level", "level_interface", "height", "z", "sigma", "bottom_top",
    "heightaboveground", "altitude", "depth", "depthbelowland", "depthbelowlandlayer",
    "potential_vorticity", "theta",
})  # fmt: skip
"""Dimensions along which quantities differ so much that each place has statistics of its own."""
MAX_GROUPS: Final = 1024
FOLDED_NBYTES: Final = 4 << 20


class Measured(msgspec.Struct, frozen=True, eq=False):
    """What was measured of some samples, each as if it were alone."""

    moments: NDArray[np.float64]  # (samples, groups, moments): Of the groups of many values
    # (samples, groups, values): Of variables with few values to a group and sample: moments would
    # be longer than these
    values: list[NDArray[Any]]

    def __len__(self) -> int:
        return len(self.moments)

    def of(self, samples: slice | NDArray[np.bool_]) -> Measured:
        """Return it of some of the samples."""
        return Measured(self.moments[samples], [each[samples] for each in self.values])

    @classmethod
    def joined(cls, parts: Sequence[Measured]) -> Measured:
        """Return that of samples after samples."""
        if len(parts) == 1:
            return parts[0]
        values = zip(*(part.values for part in parts), strict=True)
        moments = np.concatenate([part.moments for part in parts])
        return cls(moments, [np.concatenate(each) for each in values])


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSamples(Sequence["Sample"]):
    """Samples as they are stored, and what was measured of them."""

    samples: Sequence[Sample]
    measured: Measured
    # the arrays of all samples side by side, where they lie so or are short
    rows: Mapping[str, NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)


class VariableRows(msgspec.Struct, frozen=True, eq=False):
    """One variable of some samples, as it is stored; the others come before and behind it."""

    name: str  # of the variable
    rows: NDArray[Any]  # A sample each
    # what will be measured of the first samples, the next ones, and so on
    measures: Sequence[Future[NDArray[Any] | None]]
    is_last: bool  # whether all other variables of the samples have come

    def __len__(self) -> int:
        return len(self.rows)

    def measured(self) -> NDArray[Any] | None:
        """Return what `SampleMeasure.of_variable` says of it, when that is known."""
        parts = [each.result() for each in self.measures]
        found = [part for part in parts if part is not None]
        return (np.concatenate(found) if len(found) > 1 else found[0]) if found else None


class SampleMeasure:
    """Takes the moments of samples, variable by variable and group by group. Picklable."""

    def __init__(self, spec: SampleSpec, encoded: Sequence[str] = ()) -> None:
        self._encoded = tuple(encoded)
        self._variables = [
            (variable, *_layout(variable))
            for variable in spec
            if np.dtype(variable.dtype).kind != "c"
        ]
        self._by_name = {each[0].name: each for each in self._variables}
        lengths = [shape[1] for _, _, shape in self._variables]
        self._n_own = sum(lengths)
        self.n_groups = self._n_own + 2 * len(self._encoded)
        few = np.array([shape[0] * shape[2] < FEW for _, _, shape in self._variables], dtype=bool)
        more = np.zeros(2 * len(self._encoded), dtype=bool)
        self._has_few = np.concatenate((np.repeat(few, lengths), more))
        n_values = np.array([math.prod(shape) for _, _, shape in self._variables])[few].sum()
        self.nbytes = 8 * int(N_MOMENTS * (~self._has_few).sum() + n_values)

    def measured(self, samples: Sequence[Sample]) -> MeasuredSamples:
        """Return samples, whose arrays are as they should be, with what is measured of them."""
        rows: Mapping[str, NDArray[Any]] | None = None
        if isinstance(samples, StackedSamples):
            rows = samples.arrays
        elif samples and all(values.nbytes < SHORT_NBYTES for values in samples[0].values()):
            rows = {name: np.stack([each[name] for each in samples]) for name in samples[0]}
        return MeasuredSamples(samples, self.take(samples, rows), rows)

    def take(
        self, samples: Sequence[Sample], stacked: Mapping[str, NDArray[Any]] | None = None
    ) -> Measured:
        """Return what is measured of some samples, each as if it were alone.

        ``stacked`` are their arrays side by side, where somebody has them so.
        """
        parts = {
            name: self.of_variable(
                name, [each[name] for each in samples] if stacked is None else stacked[name]
            )
            for name in self._by_name
        }
        measured = self.joined(parts, len(samples))
        if self._encoded:
            for place, sample in enumerate(samples):
                assert isinstance(sample, EncodedSample)
                measured.moments[place, -2 * len(self._encoded) :] = sample.moments
        return measured

    def keeps_values(self, name: str) -> bool:
        """Whether what is measured of a variable is its values, as they are few."""
        shape = self._by_name[name][2] if name in self._by_name else (0, 0, 0)
        return shape[0] * shape[2] < FEW

    def of_variable(
        self, name: str, arrays: Sequence[NDArray[Any]] | NDArray[Any]
    ) -> NDArray[Any] | None:
        """Return what is measured of one variable of some samples; None of one left out.

        Its part of `Measured`: moments, or the values where they are few.
        """
        if name not in self._by_name:
            return None
        variable, _, shape = self._by_name[name]
        size = shape[0] * shape[2]
        if size < FEW or shape[1] * size < SMALL:
            every = arrays if isinstance(arrays, np.ndarray) else np.stack(arrays)
            groups = _groups(variable, every.reshape(len(arrays), *shape))
            if size < FEW:
                return groups
            return row_moments(groups.reshape(-1, size)).reshape(len(arrays), shape[1], N_MOMENTS)
        each_of = (_groups(variable, each.reshape(1, *shape)) for each in arrays)
        return np.stack([row_moments(groups.reshape(-1, size)) for groups in each_of])

    def joined(self, parts: Mapping[str, NDArray[Any] | None], n_samples: int) -> Measured:
        """Return what was measured of samples from that of each variable."""
        moments = np.empty((n_samples, int((~self._has_few).sum()), N_MOMENTS))
        values, at = [], 0
        for variable, _, shape in self._variables:
            found = parts[variable.name]
            assert found is not None
            if shape[0] * shape[2] < FEW:
                values.append(found)
                continue
            moments[:, at : at + shape[1]] = found
            at += shape[1]
        return Measured(moments, values)

    def fold(self, measured: Measured) -> NDArray[np.float64]:
        """Return the moments of all groups over all of some samples."""
        folded = np.empty((self.n_groups, N_MOMENTS))
        folded[~self._has_few] = fold_moments(measured.moments)
        if measured.values:
            folded[self._has_few] = np.concatenate(
                [
                    row_moments(values.swapaxes(0, 1).reshape(values.shape[1], -1))
                    for values in measured.values
                ]
            )
        return folded

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

    def errors_told(self, moments: NDArray[np.float64]) -> dict[str, Any]:
        """Return what moments say of each encoded variable: values before, after, and the error."""
        after = self.told(moments)
        pairs = moments[self._n_own :].reshape(-1, 2, N_MOMENTS)
        return {
            name: {
                "before": _told(before),
                "after": {key: value for key, value in after[name].items() if key != "by"},
                "bias": (error := _told(error_moments))["mean"],
                "rmse": _root(error["mean"], error["std"]),
            }
            for name, (before, error_moments) in zip(self._encoded, pairs, strict=True)
        }


FEW: Final = 16
"""Moments take as much as so many values at least; of fewer the values are kept for a while."""
SHORT_NBYTES: Final = 1 << 14
"""Arrays of fewer bytes are written faster side by side."""
SMALL: Final = 1 << 14
"""Arrays of fewer values cost more to handle than to copy side by side."""


class ShardStatistics:
    """The moments of the samples of one shard, which are given in their order."""

    def __init__(
        self,
        measure: SampleMeasure,
        members: Mapping[str, NDArray[np.bool_]],
        start: Callable[[Callable[[], NDArray[np.float64]]], Future[NDArray[np.float64]]],
    ) -> None:
        self._measure = measure
        self._members = members
        self._start = start
        self._folding: deque[tuple[str, Future[NDArray[np.float64]]]] = deque()
        self._n_folded = max(1, min(1 << 10, FOLDED_NBYTES // max(1, measure.nbytes)))
        self._apart: dict[str, NDArray[Any] | None] = {}
        self._pending: list[Measured] = []
        self._n_pending = self._n_done = 0
        none = np.tile(EMPTY, (measure.n_groups, 1))
        self._sums = dict.fromkeys((ALL_SAMPLES, *members), none)

    def add(self, samples: Sequence[Sample]) -> None:
        """Take the next samples, which may have been measured before (`MeasuredSamples`)."""
        if isinstance(samples, MeasuredSamples):
            self._add(samples.measured)
        else:
            self._add(self._measure.take(samples))

    def add_variable(self, rows: VariableRows) -> None:
        """Take one variable of the next samples; they count when the last one is there."""
        self._apart[rows.name] = rows.measured()
        if rows.is_last:
            parts, self._apart = self._apart, {}
            self._add(self._measure.joined(parts, len(rows)))

    def _add(self, measured: Measured) -> None:
        self._merge()  # what holds the samples before
        self._pending.append(measured)
        self._n_pending += len(measured)
        while self._n_pending >= self._n_folded:
            self._fold(self._n_folded)

    def finish(self) -> ShardMoments:
        """Return the moments of all samples that were given, and of each split."""
        self._fold(self._n_pending)
        self._merge()
        return self._sums

    def _fold(self, count: int) -> None:
        """Add up so many samples: always the same ones together, wherever they came in batches."""
        if not count:
            return
        every = Measured.joined(self._pending)
        first, left = every.of(slice(count)), every.of(slice(count, None))
        self._pending, self._n_pending = [left] if len(left) else [], len(left)
        for name in self._sums:
            some = first
            if name in self._members:
                some = first.of(self._members[name][self._n_done : self._n_done + count])
            if len(some):
                self._folding.append((name, self._start(partial(self._measure.fold, some))))
        self._n_done += count

    def _merge(self) -> None:
        """Add what was folded, in order."""
        while self._folding:
            name, folded = self._folding.popleft()
            self._sums[name] = merge_moments(self._sums[name], folded.result())


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


def merge_shards(
    measure: SampleMeasure, shards: Iterable[ShardMoments]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the statistics of a store from those of its shards, in order; JSON-ready.

    Behind them, by encoded variable, what became of its values: statistics ``before`` and
    ``after``, ``bias`` (the mean of what is stored less what came) and ``rmse``.

    For all samples (`ALL_SAMPLES`) and for each split, by variable: ``n`` values, ``n_missing``
    (NaN or infinite), ``mean``, ``std`` (of these values: the population's, divided by ``n``),
    ``min``, ``max``; ``None`` where there is no value or float64 does not hold it; and ``by`` level
    or channel lists of the same.
    """
    if not measure.n_groups:
        return {}, {}
    sums: dict[str, NDArray[np.float64]] = {}
    for shard in shards:
        for name, moments in shard.items():
            sums[name] = merge_moments(sums[name], moments) if name in sums else moments
    statistics = {name: told for name, each in sums.items() if (told := measure.told(each))}
    errors = measure.errors_told(sums[ALL_SAMPLES]) if ALL_SAMPLES in sums else {}
    return statistics, errors


def _root(mean: float | None, deviation: float | None) -> float | None:
    return None if mean is None or deviation is None else math.hypot(mean, deviation)


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


def _groups(variable: Variable, arrays: NDArray[Any]) -> NDArray[Any]:
    """Return the values of arrays by group: of (arrays, before, group, after)."""
    n, before, groups, after = arrays.shape
    found = np.moveaxis(arrays, 2, 1).reshape(n, groups, before * after)
    return found if variable.packed is None else unpack(found, variable.packed)
