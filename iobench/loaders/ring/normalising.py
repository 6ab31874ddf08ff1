"""Variables with mean 0 and deviation 1: done to a batch in place, by the threads that fill it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError
from iobench.loaders.ring.buffers import ScratchRows
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec
from iobench.stores.value_statistics import ALL_SAMPLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import Variable
    from iobench.stores.manifest import Manifest

Normalise = bool | Sequence[str] | Mapping[str, tuple[Any, Any]]
"""What ``normalise=`` takes."""
TRAIN: Final = "train"
PIECE: Final = 1 << 15
"""Numbers of as many samples are done at once, at least: they stay in the cache."""
LONG: Final = 1 << 12
"""Numbers with one mean, one after another, that need no copy of it for each."""


@dataclass(frozen=True, slots=True, eq=False)
class MeanStd:
    """What one variable is normalised by: ``values * std + mean`` are its values again."""

    # of shapes that fit the variable, in a batch and in a window too. ``std`` is 1 where all values
    # are equal
    mean: NDArray[Any]
    std: NDArray[Any]
    of: str = ""  # the split whose statistics these are, ``"all"`` of all samples; else empty


def means_of(
    normalise: Normalise,
    spec: SampleSpec,
    manifest: Manifest | None,
) -> dict[str, MeanStd]:
    """Return what variables are normalised by; a store's manifest has its statistics."""
    if isinstance(normalise, str) or not (
        normalise is True or isinstance(normalise, (Mapping, Sequence))
    ):
        raise OptionError(
            f"normalise={normalise!r}: expected True, names of variables, or (mean, std) by name"
        )
    floats = [v.name for v in spec if np.dtype(v.dtype).kind == "f"]
    names = floats if isinstance(normalise, bool) else list(normalise)
    for name in names:
        if name not in spec.names:
            known = ", ".join(spec.names)
            raise OptionError(f"normalise: there is no variable {name!r}, only {known}")
        if np.dtype(spec[name].dtype).kind not in "iuf":
            raise OptionError(f"normalise: {name} is {spec[name].dtype}, which has no mean")
    if isinstance(normalise, Mapping):
        return {name: _given(spec[name], normalise[name]) for name in names}
    if not names and normalise is True:
        raise OptionError("normalise=True: no variable has floating-point numbers; name some")
    if names and manifest is None:
        raise OptionError("normalise: only a store keeps statistics; give (mean, std) by name")
    if manifest is None:
        return {}
    if manifest.normalisation and normalise is True:
        raise OptionError(
            "normalise=True: the store's samples were normalised when they were made, as its "
            "manifest says; leave it out, or name the variables that were not"
        )
    of = TRAIN if TRAIN in manifest.statistics else ALL_SAMPLES
    statistics = manifest.statistics.get(of, {})
    return {name: _of_store(spec[name], statistics.get(name), of) for name in names}


def _given(variable: Variable, values: Any) -> MeanStd:
    """Return what the user gave for a variable, in its shape."""
    try:
        pair = [np.asarray(each, dtype=np.float64) for each in values]
        by_channel = [-1 if dim == "channel" else 1 for dim in variable.dims]
        if "channel" in variable.dims:
            pair = [each.reshape(by_channel) if each.ndim == 1 else each for each in pair]
        for each in pair:
            np.broadcast_to(each, variable.shape)
        mean, std = pair
    except (TypeError, ValueError):
        raise OptionError(
            f"normalise: {variable.name}: expected a pair of mean and std, numbers or arrays that "
            f"fit {variable.dims} of {variable.shape}, got {' '.join(repr(values).split())[:200]}"
        ) from None
    if not (np.isfinite(mean).all() and np.isfinite(std).all()) or (std < 0).any():
        raise OptionError(
            f"normalise: {variable.name}: expected finite numbers, and no std below 0"
        )
    return _mean_std(variable, mean, std)


def _of_store(variable: Variable, figures: Mapping[str, Any] | None, of: str) -> MeanStd:
    """Return what the store keeps of a variable: by channel or level where it has these."""
    if figures is None:
        raise OptionError(
            f"normalise: the store's manifest has no statistics of {variable.name}; name others, "
            "or give (mean, std) by name"
        )
    by = figures.get("by") or {}
    dim = "channel" if "channel" in by else next(iter(by), None)
    values: Mapping[str, Any] = figures if dim is None else by[dim]
    shape = [1] * len(variable.shape) if by else []
    if dim is not None:
        axis = variable.dims.index(dim) if dim in variable.dims else -1
        length = len(values["mean"])
        if axis < 0 or variable.shape[axis] != length:
            raise OptionError(
                f"normalise: {variable.name} has statistics for each of {length} along {dim}, "
                f"and not all of these; give (mean, std) by name, or cut along other dimensions"
            )
        shape[axis] = length
    mean, std, low, high = (  # None becomes NaN
        np.array(np.atleast_1d(np.asarray(values[name], dtype=object)), dtype=np.float64)
        for name in ("mean", "std", "min", "max")
    )
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        where = "" if dim is None else f" at {int(np.argmin(np.isfinite(mean + std)))} along {dim}"
        raise OptionError(
            f"normalise: {variable.name} has no finite mean and std of {of}{where}; name other "
            "variables, or give (mean, std) by name"
        )
    std = np.where(low == high, 0.0, std)
    return _mean_std(variable, mean.reshape(shape), std.reshape(shape), of)


def _mean_std(variable: Variable, mean: NDArray[Any], std: NDArray[Any], of: str = "") -> MeanStd:
    """Return both in what the difference and quotient are taken in."""
    stored = np.dtype(variable.dtype)
    dtype = np.dtype("<f4" if stored.kind == "f" and stored.itemsize <= 4 else "<f8")
    divisor = std.astype(dtype)
    return MeanStd(mean.astype(dtype), np.where(divisor == 0, 1, divisor).astype(dtype), of)


class Normaliser:
    """Some variables as ``(values - mean) / std`` in float32, for one thread.

    Taken in float32 of float32 and float16 numbers, as tensors of these would be, else in float64
    and rounded once. Missing values (NaN) stay missing.
    """

    def __init__(self, means: Mapping[str, MeanStd], spec: SampleSpec) -> None:
        self._scales = {name: _tiled(each, spec[name].shape) for name, each in means.items()}
        others = tuple(v for v in spec if v.name in means and v.dtype != "<f4")
        self._scratch = ScratchRows(SampleSpec(others)) if others else None

    def stored(self, rows: Rows, n_samples: int) -> Rows:
        """Return rows for the numbers as they are stored: the same ones where these are float32."""
        if self._scratch is None:
            return rows
        return {**rows, **self._scratch.arrays(n_samples)}

    def apply(self, stored: Rows, rows: Rows, log: BatchLog) -> None:
        """Normalise what `stored` returned to ``rows``."""
        start_ns = log.now_ns()
        nbytes = 0
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values stay what they are
            for name, (mean, std, step) in self._scales.items():
                for start in range(0, len(rows[name]), step):
                    values = stored[name][start : start + step]
                    out = rows[name][start : start + step]
                    less, by = mean[: len(out)], std[: len(out)]
                    off = out if mean.dtype == out.dtype else None
                    off = np.subtract(values, less, out=off, dtype=mean.dtype, casting="same_kind")
                    np.divide(off, by, out=out, dtype=mean.dtype, casting="same_kind")
                nbytes += rows[name].nbytes
        log.add(Kind.PREPROCESS, start_ns, log.now_ns(), nbytes=nbytes, label="normalise")


def _tiled(means: MeanStd, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Return mean and std for as many samples as are done at once, and how many these are.

    They are laid out whole where only few numbers, one after another, have the same ones.
    """
    step = max(1, PIECE // max(1, math.prod(shape)))
    one = tuple(np.broadcast_shapes(means.mean.shape, means.std.shape, (1,) * len(shape)))
    differs = [axis for axis, length in enumerate(one) if length > 1]
    is_whole = bool(differs) and math.prod(shape[differs[-1] + 1 :]) < LONG
    tile = (step, *shape) if is_whole else (1, *one)
    mean, std = (np.ascontiguousarray(np.broadcast_to(e, tile)) for e in (means.mean, means.std))
    return mean, std, step


def normalised_spec(spec: SampleSpec, means: Mapping[str, MeanStd]) -> SampleSpec:
    """Return what samples are once they are normalised."""
    return SampleSpec(
        tuple(
            replace(variable, dtype="<f4", units="1") if variable.name in means else variable
            for variable in spec
        )
    )
