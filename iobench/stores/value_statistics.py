"""Means, deviations, lowest and highest values of what a store holds, by variable and by level.

They are summed in float64 stack by stack of samples, and merged in the order of the store: what
comes out does not depend on threads, memory or interruptions. Parts are merged by the update of
Chan, Golub and LeVeque (1983, The American Statistician 37, 242,
doi 10.1080/00031305.1983.10483115), which loses nothing where deviations are far below the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import SampleSpec, Variable

N, N_MISSING, MEAN, SQUARES, LOW, HIGH = range(6)
N_MOMENTS: Final = 6
EMPTY: Final = (0.0, 0.0, 0.0, 0.0, np.inf, -np.inf)
"""The moments of no value, in the order of the last axis of all arrays of moments here."""
N_ENCODED: Final = 3
"""Moments of an encoded variable: of its values, of what is stored less these, and the largest
relative error as the highest of no value."""

PIECE: Final = 1 << 18
"""Values summed at a time: in smaller pieces threads wait for each other (for the GIL) longer."""
LEAST_COLUMNS: Final = 256
STRIDE: Final = 16
"""One value in so many tells about where the mean of a piece is."""

ALL_SAMPLES: Final = "all"
"""The key of statistics over all samples of a store, beside those of its splits."""

ShardMoments = Mapping[str, "NDArray[np.float64]"]
"""Moments of some samples: of all, and by split; what `SampleMeasure.described` describes."""

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


def no_moments(n_groups: int) -> NDArray[np.float64]:
    """Return the moments of groups without values."""
    return np.tile(EMPTY, (n_groups, 1))


def merge_means(one: tuple[Any, Any, Any], two: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return count, mean and squared deviations of the values of two parts.

    Numbers or arrays. Source: Chan, Golub and LeVeque 1983, as above.
    """
    (count, mean, squares), (added, added_mean, added_squares) = one, two
    difference = added_mean - mean
    total = count + added
    some = total + (total == 0)  # nothing and nothing: no mean, and no division by 0
    return (
        total,
        mean + difference * (added / some),
        squares + added_squares + difference**2 * (count * added / some),
    )


def merge_moments(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the moments of the values of two parts; any shape, moments along the last axis."""
    merged = np.empty(np.broadcast_shapes(one.shape, two.shape))
    with np.errstate(over="ignore", invalid="ignore"):
        means = merge_means(
            (one[..., N], one[..., MEAN], one[..., SQUARES]),
            (two[..., N], two[..., MEAN], two[..., SQUARES]),
        )
    merged[..., N], merged[..., MEAN], merged[..., SQUARES] = means
    merged[..., N_MISSING] = one[..., N_MISSING] + two[..., N_MISSING]
    merged[..., LOW] = np.minimum(one[..., LOW], two[..., LOW])
    merged[..., HIGH] = np.maximum(one[..., HIGH], two[..., HIGH])
    return merged


def merge_shard_moments(shards: Iterable[ShardMoments]) -> dict[str, NDArray[np.float64]]:
    """Return the moments of some samples from those of parts of them, in order."""
    sums: dict[str, NDArray[np.float64]] = {}
    for shard in shards:
        for name, moments in shard.items():
            sums[name] = merge_moments(sums[name], moments) if name in sums else moments
    return sums


def group_moments(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the moments of each group of real numbers: (rows, groups, columns) to (groups, 6).

    NaN and infinity count as missing. Lowest and highest are exact.
    """
    n_rows, n_groups, n_columns = values.shape
    if not values.size:
        return no_moments(n_groups)
    columns = min(n_columns, max(LEAST_COLUMNS, PIECE // n_groups))
    rows = max(1, PIECE // (n_groups * columns))
    # A signalling NaN is quiet afterwards.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        parts = np.stack([
            _piece_moments(values[start : start + rows, :, first : first + columns])
            for start in range(0, n_rows, rows)
            for first in range(0, n_columns, columns)
        ])  # fmt: skip
    while len(parts) > 1:  # neighbours, all pairs at once
        merged = merge_moments(parts[: len(parts) // 2 * 2 : 2], parts[1::2])
        parts = np.concatenate([merged, parts[len(merged) * 2 :]])
    result: NDArray[np.float64] = parts[0]
    return result


def _piece_moments(piece: NDArray[Any]) -> NDArray[np.float64]:
    n_groups = piece.shape[1]
    values = np.ascontiguousarray(piece.swapaxes(0, 1)).reshape(n_groups, -1)
    low = np.minimum.reduce(values, axis=1).astype(np.float64)
    high = np.maximum.reduce(values, axis=1).astype(np.float64)
    exact = values.astype(np.float64)
    n: Any = values.shape[1]
    there: NDArray[np.bool_] | None = None
    if np.isfinite(low).all() and np.isfinite(high).all():  # a NaN is both
        # Around the mean of one value in 16 squares are at most 17 times those around the mean.
        some = exact[:, ::STRIDE]
        near = np.add.reduce(some, axis=1) / some.shape[1]
    else:
        there = np.isfinite(values)
        n = there.sum(axis=1)
        low = np.minimum.reduce(np.where(there, exact, np.inf), axis=1)
        high = np.maximum.reduce(np.where(there, exact, -np.inf), axis=1)
        near = np.add.reduce(np.where(there, exact, 0.0), axis=1) / np.maximum(n, 1)
    np.subtract(exact, near[:, None], out=exact)
    if there is not None:
        np.copyto(exact, 0.0, where=~there)
    off = np.add.reduce(exact, axis=1) / np.maximum(n, 1)
    # Not by BLAS or einsum: their order of sums depends on the processor.
    squares = np.add.reduce(np.square(exact, out=exact), axis=1) - off * off * n
    is_constant = (low == high) | (n == 0)
    moments = np.empty((n_groups, N_MOMENTS))
    moments[:, N], moments[:, N_MISSING] = n, values.shape[1] - n
    moments[:, MEAN] = np.where(is_constant, np.where(n == 0, 0.0, low), near + off)
    moments[:, SQUARES] = np.where(is_constant, 0.0, np.maximum(squares, 0.0))
    moments[:, LOW], moments[:, HIGH] = low, high
    return moments


class SampleMeasure:
    """Takes the moments of samples, variable by variable and group by group. Picklable.

    Behind those of the variables are those of each encoded one (`N_ENCODED`).
    """

    def __init__(self, spec: SampleSpec, encoded: Sequence[str] = ()) -> None:
        self._encoded = tuple(encoded)
        self._variables = [
            (variable, *_layout(variable))
            for variable in spec
            if np.dtype(variable.dtype).kind != "c"
        ]
        self.n_own = sum(shape[1] for _, _, shape in self._variables)

    def of(
        self, rows: Mapping[str, NDArray[Any]], encoded: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the moments of samples side by side, before those of encoded variables."""
        result = []
        for variable, _, (before, groups, after) in self._variables:
            values = rows[variable.name]
            values = values.reshape(len(values) * before, groups, after)
            if variable.packed is not None:
                values = unpack(values, variable.packed)
            result.append(group_moments(values))
        result += [] if encoded is None else [encoded]
        return np.concatenate(result) if result else np.empty((0, N_MOMENTS))

    def merged(self, shards: Iterable[ShardMoments]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the statistics of a store from those of its shards, in order; JSON-ready.

        For all samples (`ALL_SAMPLES`) and for each split, by variable: ``n`` values,
        ``n_missing`` (NaN or infinite), ``mean``, ``std`` (of these values: the population's,
        divided by ``n``), ``min``, ``max``; ``None`` where there is no value or float64 does not
        hold it; and ``by`` level or channel lists of the same.

        Behind them, by encoded variable, what became of its values: statistics ``before`` and
        ``after``, ``bias`` (the mean of what is stored less what came), ``rmse`` and the largest
        errors; relative ones are over the values that are not 0.
        """
        sums = merge_shard_moments(shards)
        statistics = {n: result for n, each in sums.items() if (result := self._described(each))}
        errors: dict[str, Any] = {}
        encoded = sums.get(ALL_SAMPLES, no_moments(self.n_own))[self.n_own :]
        rows = encoded.reshape(-1, N_ENCODED, N_MOMENTS)
        for name, (before, error_moments, relative) in zip(self._encoded, rows, strict=False):
            error, after = _figures(error_moments), statistics[ALL_SAMPLES][name]
            mean, std = error["mean"], error["std"]
            errors[name] = {
                "before": _figures(before),
                "after": {key: value for key, value in after.items() if key != "by"},
                "bias": mean,
                "rmse": None if mean is None or std is None else math.hypot(mean, std),
                "max_absolute_error": float(max(0.0, -error_moments[LOW], error_moments[HIGH])),
                "max_relative_error": float(max(0.0, relative[HIGH])),
            }
        return statistics, errors

    def _described(self, moments: NDArray[np.float64]) -> dict[str, Any]:
        """Return what moments of all groups say, by variable."""
        result, at = {}, 0
        for variable, dim, shape in self._variables:
            groups = moments[at : at + shape[1]]
            at += shape[1]
            whole = reduce(merge_moments, groups, no_moments(1)[0])
            values = _figures(whole)
            if dim is not None:
                each = list(map(_figures, groups))
                values["by"] = {dim: {key: [one[key] for one in each] for key in each[0]}}
            result[variable.name] = values
        return result


def _figures(moments: NDArray[np.float64]) -> dict[str, Any]:
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
