"""Means, deviations, lowest and highest values of what a store holds, by variable and by level.

They are summed stack by stack of samples, and merged in the order of the store: what comes out does
not depend on threads, memory or interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.stores.moments import N_MOMENTS, group_moments, merge_moments, no_moments
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import SampleSpec, Variable

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


class SampleMeasure:
    """Takes the moments of samples, variable by variable and group by group. Picklable.

    Behind those of the variables are those of each encoded one: of its values before, and of what
    is stored less these.
    """

    def __init__(self, spec: SampleSpec, encoded: Sequence[str] = ()) -> None:
        self._encoded = tuple(encoded)
        self._variables = [
            (variable, *_layout(variable))
            for variable in spec
            if np.dtype(variable.dtype).kind != "c"
        ]
        self.n_own = sum(shape[1] for _, _, shape in self._variables)
        self.n_groups = self.n_own + 2 * len(self._encoded)

    def of(
        self, rows: Mapping[str, NDArray[Any]], errors: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the moments of samples side by side; ``errors`` are those of encoded variables."""
        found = []
        for variable, _, (before, groups, after) in self._variables:
            values = rows[variable.name]
            values = values.reshape(len(values) * before, groups, after)
            if variable.packed is not None:
                values = unpack(values, variable.packed)
            found.append(group_moments(values))
        found += [] if errors is None else [errors]
        return np.concatenate(found) if found else np.empty((0, N_MOMENTS))

    def described(self, moments: NDArray[np.float64]) -> dict[str, Any]:
        """Return what moments of all groups say, by variable, as JSON-ready values."""
        found = {}
        at = 0
        for variable, dim, shape in self._variables:
            groups = moments[at : at + shape[1]]
            at += shape[1]
            whole = no_moments(1)[0]
            for group in groups:
                whole = merge_moments(whole, group)
            values = _figures(whole)
            if dim is not None:
                each = list(map(_figures, groups))
                values["by"] = {dim: {key: [one[key] for one in each] for key in each[0]}}
            found[variable.name] = values
        return found

    def errors_described(self, moments: NDArray[np.float64]) -> dict[str, Any]:
        """Return what moments say of each encoded variable: values before, after, and the error."""
        after = self.described(moments)
        pairs = moments[self.n_own :].reshape(-1, 2, N_MOMENTS)
        return {
            name: {
                "before": _figures(before),
                "after": {key: value for key, value in after[name].items() if key != "by"},
                "bias": (error := _figures(error_moments))["mean"],
                "rmse": _root(error["mean"], error["std"]),
            }
            for name, (before, error_moments) in zip(self._encoded, pairs, strict=True)
        }


def split_members(
    splits: Mapping[str, Sequence[int]], n_samples: int
) -> dict[str, NDArray[np.bool_]]:
    """Return of each split which of the samples of a dataset are in it.

    One that is called as all samples are (`ALL_SAMPLES`) has no statistics of its own.
    """
    found = {}
    for name, numbers in splits.items():
        if name != ALL_SAMPLES:
            found[name] = np.zeros(n_samples, dtype=bool)
            found[name][np.asarray(numbers, dtype=np.int64)] = True
    return found


def merge_shard_moments(shards: Iterable[ShardMoments]) -> dict[str, NDArray[np.float64]]:
    """Return the moments of some samples from those of parts of them, in order."""
    sums: dict[str, NDArray[np.float64]] = {}
    for shard in shards:
        for name, moments in shard.items():
            sums[name] = merge_moments(sums[name], moments) if name in sums else moments
    return sums


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
    sums = merge_shard_moments(shards)
    statistics = {n: found for n, each in sums.items() if (found := measure.described(each))}
    errors = measure.errors_described(sums[ALL_SAMPLES]) if ALL_SAMPLES in sums else {}
    return statistics, errors


def _root(mean: float | None, deviation: float | None) -> float | None:
    return None if mean is None or deviation is None else math.hypot(mean, deviation)


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
