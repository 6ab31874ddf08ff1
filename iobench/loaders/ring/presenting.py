"""What reader threads make of filled rows: normalised values, and of a batch what is yielded.

That is the user's transform, another dtype, channels side by side, tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

    from iobench.loaders.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import Variable
    from iobench.stores.manifest import Manifest

Transform = Callable[[dict[str, Any]], Any]
"""Takes the arrays of a batch, returns what is yielded."""
ROLES: Final = ("inputs", "targets")
"""What can be stacked."""
Normalise = bool | Sequence[str] | Mapping[str, tuple[Any, Any]]
"""What ``normalise=`` takes."""
TRAIN: Final = "train"
PIECE: Final = 1 << 15
"""Numbers done at once: they stay in the cache."""
LONG: Final = 1 << 12
"""Numbers with one mean, one after another, that need no copy of it for each."""


def float_cast(dtype: Any) -> ArrayCast:
    """Return the cast to what ``dtype=`` names."""
    try:
        narrow: np.dtype[Any] | None = np.dtype(dtype)
    except TypeError:
        narrow = None
    if narrow is None or narrow.kind != "f":
        raise OptionError(
            f"dtype={dtype!r}: expected a floating-point dtype such as 'float32' or 'float16'; "
            "framework='torch' knows 'bfloat16' as well"
        )
    return ArrayCast(narrow)


class ArrayCast:
    """Makes floating-point numbers those of another dtype; leaves everything else alone."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def __call__(self, leaf: Any) -> Any:
        """Return floating-point arrays in that dtype."""
        is_float = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"
        return leaf.astype(self.dtype, copy=False) if is_float else leaf

    def in_place(self, array: NDArray[Any]) -> Any:
        """Return the array in that dtype, over the same memory where it fits."""
        if array.dtype.kind != "f" or 2 * self.dtype.itemsize > array.dtype.itemsize:
            return self(array)
        values = array.reshape(-1)
        narrow = values.view(np.uint8)[: values.size * self.dtype.itemsize].view(self.dtype)
        for start in range(0, values.size, PIECE):
            narrow[start : start + PIECE] = values[start : start + PIECE]
        return narrow.reshape(array.shape)


class ChannelStack:
    """Puts the variables of a role side by side as channels, in front of the grid they share.

    A variable's channels are what its dimensions before that grid make up; ``channel`` is one of
    these wherever it lies. The steps of a window stay the first axis of a sample.
    """

    def __init__(self, spec: SampleSpec, roles: Sequence[str]) -> None:
        self._groups = [_Group(spec, role) for role in roles]

    def __call__(self, batch: Any) -> tuple[NDArray[Any], ...]:
        """Return the array of each role."""
        return tuple(group.stacked(batch) for group in self._groups)

    def __str__(self) -> str:
        return ", ".join(map(str, self._groups))


class _Group:
    """The variables of one role, and how they are stacked."""

    def __init__(self, spec: SampleSpec, role: str) -> None:
        self._role = role
        variables = [variable for variable in spec if f"{variable.role}s" == role]
        if not variables:
            raise OptionError(f"stack={role!r}: no variable is one of the {role}")
        if len({variable.dtype for variable in variables}) > 1:
            kinds = ", ".join(f"{v.name} {v.dtype}" for v in variables)
            raise OptionError(f"stack={role!r}: expected one dtype, got {kinds}")
        self._has_steps = variables[0].dims[:1] in (("step_in",), ("step_out",))
        inner = []
        for variable in variables:
            lengths = list(zip(variable.dims, variable.shape, strict=True))
            inner.append([one for one in lengths[self._has_steps :] if one[0] != "channel"])
        shared = 0
        while all(len(one) > shared and one[-1 - shared] == inner[0][-1 - shared] for one in inner):
            shared += 1
        if not shared and any(inner):
            shapes = ", ".join(
                f"{v.name} {dict(zip(v.dims, v.shape, strict=True))}" for v in variables
            )
            raise OptionError(
                f"stack={role!r}: expected one grid behind the channels, got {shapes}"
            )
        self._grid = tuple(length for _, length in inner[0][len(inner[0]) - shared :])
        axes = [v.dims.index("channel") + 1 if "channel" in v.dims else -1 for v in variables]
        self._parts = list(zip((v.name for v in variables), axes, strict=True))
        steps = variables[0].shape[: self._has_steps]
        n_numbers = sum(math.prod(v.shape) for v in variables)
        n_channels = n_numbers // max(1, math.prod((*steps, *self._grid)))
        self._shape = (*steps, n_channels, *self._grid)  # of a sample

    def stacked(self, batch: Any) -> NDArray[Any]:
        """Return the variables of a batch as one array; a single one shares its memory."""
        parts = []
        for name, axis in self._parts:
            if not isinstance(batch, Mapping) or name not in batch:
                raise OptionError(
                    f"stack={self._role!r}: the transform returned no {name!r}; expected a dict "
                    "with the variables of the batch"
                )
            array = batch[name]
            if axis >= 0:
                array = np.moveaxis(array, axis, 1 + self._has_steps)
            lead = array.shape[: 1 + self._has_steps]
            parts.append(array.reshape(*lead, -1, *self._grid))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1 + self._has_steps)

    def __str__(self) -> str:
        names = ", ".join(name for name, _ in self._parts)
        return f"{self._role} {self._shape} of {names}"


class Presenter:
    """Makes what a loader yields of the arrays of a batch, in its reader threads."""

    def __init__(
        self,
        transform: Transform | None = None,
        cast: Any = None,
        convert: Callable[[Any], Any] | None = None,
        stack: ChannelStack | None = None,
    ) -> None:
        self.transform, self.cast, self.stack, self._convert = transform, cast, stack, convert

    def __call__(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """Return the batch as it is yielded."""
        value: Any = arrays
        cast: Any = self.cast
        if self.transform is not None:
            value = self.transform(arrays)
            if not isinstance(value, (Mapping, tuple, list)):
                what = "None (return the arrays)" if value is None else f"a {type(value).__name__}"
                raise OptionError(
                    f"the transform returned {what}, expected a dict (or tuple) of arrays"
                )
        elif self.cast is not None:
            cast = self.cast.in_place  # nobody else has these arrays
        if self.stack is not None:
            value = self.stack(value)
        if cast is not None:
            value = map_leaves(value, cast)
        return value if self._convert is None else map_leaves(value, self._convert)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same dicts, tuples and lists, with all that is in them changed."""
    if isinstance(value, Mapping):
        return {name: map_leaves(part, change) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(part, change) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(part, change) for part in value)
    return change(value)


# -- mean 0 and deviation 1 ---


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
        np.broadcast_to(sum(pair), variable.shape)
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
    mean, std, low, high = (  # None becomes NaN
        np.array(np.atleast_1d(np.asarray(values.get(name), dtype=object)), dtype=np.float64)
        for name in ("mean", "std", "min", "max")
    )
    shape = [] if dim is None else [mean.size if each == dim else 1 for each in variable.dims]
    if (
        dim is not None
        and dict(zip(variable.dims, variable.shape, strict=True)).get(dim) != mean.size
    ):
        raise OptionError(
            f"normalise: {variable.name} has statistics for each of {mean.size} along {dim}, and "
            "not all of these; give (mean, std) by name, or cut along other dimensions"
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
        log.add(Kind.PREPROCESS, start_ns, nbytes=nbytes, label="normalise")


def _tiled(means: MeanStd, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Return mean and std for as many samples as are done at once, and how many these are."""
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
