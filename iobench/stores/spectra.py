"""Power spectra of fields before and after they are stored with fewer bits, by scale.

Rows that go around the globe are taken apart by Fourier transforms (zonal spectra). Fields of a
limited area, and those that may be, by the discrete cosine transform in two dimensions, whose
variances are gathered by wavelength: Denis, Cote and Laprise (2002), Monthly Weather Review 130,
1812 (doi 10.1175/1520-0493(2002)130<1812:SDOTDA>2.0.CO;2). It needs neither periodic fields nor
trends removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.frozen import frozen
from iobench.stores.plan import probe_samples
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.coordinates import Meteorology
    from iobench.samples import Sample, SampleSpec, Variable

N_SAMPLES: Final = 8
"""Samples whose fields are compared, spread evenly; of each variable one field of each."""
N_ROWS: Final = 256
LONGEST: Final = 256
"""Rows of a field, and points along either side in the middle of one, that are taken apart."""
SHORTEST: Final = 16
"""Points along a side: fewer make no spectrum."""
FEW_VALUES: Final = 16
N_LOOKED_AT: Final = 4096
SHARE_KEPT: Final = 0.05
"""How far the power of a scale may be off, and how large its error, for the scale to be kept."""
PRECISION: Final = 16 * float(np.finfo(np.float64).eps)
"""What transforms in float64 tell apart."""
NOISE_FACTOR: Final = 100.0
"""Power is only what is so many times that of the rounding of the numbers as they came."""

NO_GRID: Final = "no two of its dimensions are known to make a grid"
ROWS: Final = frozenset({
    "latitude", "lat", "rlat", "grid_latitude", "y", "yc", "south_north", "projection_y_coordinate",
    "northing", "nlat",
})  # fmt: skip
COLUMNS: Final = frozenset({
    "longitude", "lon", "rlon", "grid_longitude", "x", "xc", "west_east", "projection_x_coordinate",
    "easting", "nlon",
})  # fmt: skip


@frozen
class Grid:
    """Where in an array its fields are.

    Parameters
    ----------
    rows, columns : int
        Its axes across and along which a row goes.
    is_periodic : bool
        Whether rows are known to go around the globe.
    """

    rows: int
    columns: int
    is_periodic: bool


class SpectraOfSamples:
    """Compares a field of each of a few samples with what is stored of it. Picklable.

    Parameters
    ----------
    spec, stored : SampleSpec
        Samples as the dataset makes them, and as they are stored.
    names : sequence of str
        The variables that are stored with fewer bits.
    samples : sequence of int
        The numbers of all samples of the store, in order.
    meteorology : Meteorology
        What is known of their coordinates.
    """

    def __init__(
        self,
        spec: SampleSpec,
        stored: SampleSpec,
        names: Sequence[str],
        samples: Sequence[int],
        meteorology: Meteorology,
    ) -> None:
        self._variables = [(spec[name], stored[name]) for name in names]
        self._grids = {name: grid_of(spec[name], meteorology) for name in names}
        places = sorted(probe_samples(len(samples), N_SAMPLES))
        self._turns = {samples[place]: turn for turn, place in enumerate(places)}
        self.n_samples = len(self._turns)

    def __contains__(self, number: int) -> bool:
        return number in self._turns

    def compare(self, number: int, sample: Sample, kept: Sample) -> dict[str, Any]:
        """Return the spectra of one of the chosen samples by variable; JSON-ready."""
        return {
            variable.name: self._compare(
                variable, stored, sample[variable.name], kept[variable.name], self._turns[number]
            )
            for variable, stored in self._variables
        }

    def _compare(
        self,
        variable: Variable,
        stored: Variable,
        values: NDArray[Any],
        numbers: NDArray[Any],
        turn: int,
    ) -> dict[str, Any]:
        grid = self._grids[variable.name]
        if isinstance(grid, str):
            return {"unknown": grid}
        if not values.size:
            return {"unknown": "it has no values"}
        field, back = (one_field(each, grid, turn, self.n_samples) for each in (values, numbers))
        if stored.packed is not None:
            back = unpack(np.ascontiguousarray(back), stored.packed)
        return compare_fields(field, back, is_periodic=grid.is_periodic)


def one_field(values: NDArray[Any], grid: Grid, turn: int, n_turns: int) -> NDArray[Any]:
    """Return one of the fields of an array, another one at each turn: (rows, columns)."""
    fields = np.moveaxis(values, (grid.rows, grid.columns), (-2, -1))
    others = fields.shape[:-2]
    place = np.unravel_index(turn * math.prod(others) // n_turns, others) if others else ()
    field: NDArray[Any] = fields[place]
    return field


def grid_of(variable: Variable, meteorology: Meteorology) -> Grid | str:
    """Return where a variable's fields are, or why it has none, in words."""
    roles = [_role(dim, meteorology) for dim in variable.dims]
    if roles.count("rows") != 1 or roles.count("columns") != 1:
        return NO_GRID
    rows, columns = roles.index("rows"), roles.index("columns")
    shape = variable.shape
    if min(shape[rows], shape[columns]) < SHORTEST:
        return f"its fields have fewer than {SHORTEST} points along a side"
    longitude = _coordinate(variable.dims[columns], meteorology)
    return Grid(rows, columns, _goes_around(longitude, shape[columns]))


def _coordinate(dim: str, meteorology: Meteorology) -> Any:
    return next((one for one in meteorology.coordinates if one.dims == (dim,) == (one.name,)), None)


def _role(dim: str, meteorology: Meteorology) -> str:
    """Return whether a dimension is ``rows``, ``columns`` or neither: by CF, else by its name."""
    name = dim.casefold()
    coordinate = _coordinate(dim, meteorology)
    told = {} if coordinate is None else coordinate.attributes
    axis, standard = told.get("axis"), told.get("standard_name")
    for role, letter, names in (("rows", "Y", ROWS), ("columns", "X", COLUMNS)):
        if axis == letter or standard in names or (not axis and not standard and name in names):
            return role
    return ""


def _goes_around(longitude: Any, length: int) -> bool:
    """Whether these are evenly spaced degrees of longitude once around the globe."""
    if longitude is None or longitude.values.shape != (length,) or length < 2:
        return False
    if not str(longitude.attributes.get("units", "")).casefold().startswith("degree"):
        return False
    steps = np.diff(longitude.values.astype(np.float64))
    step = steps.mean()
    is_even = bool(np.abs(steps - step).max() <= 0.01 * abs(step))
    return is_even and abs(abs(step) * length - 360) <= 0.01 * abs(step)


def compare_fields(field: NDArray[Any], back: NDArray[Any], *, is_periodic: bool) -> dict[str, Any]:
    """Return the power of a field, of what is stored of it and of their difference, by band.

    As shares of the field's variance about its mean, of the rows or the part that is taken. Bands
    are half octaves of wavelength from two grid points up (`band_edges`). ``noise`` is the power
    that rounding to the field's own precision has. Where it makes no sense ``unknown`` says why.
    """
    if is_periodic:
        step = -(-field.shape[0] // N_ROWS)
        taken: tuple[slice, ...] = (slice(None, None, step),)
    else:
        starts = [max(0, (length - LONGEST) // 2) for length in field.shape]
        taken = tuple(slice(start, start + LONGEST) for start in starts)
    precision = max(float(np.finfo(field.dtype).eps), PRECISION)
    exact, kept = (part[taken].astype(np.float64) for part in (field, back))
    if not (np.isfinite(exact).all() and np.isfinite(kept).all()):
        return {"unknown": "its fields have missing values"}
    if exact.min() == exact.max():
        return {"unknown": "its fields are constant"}
    off = kept - exact
    if off.any() and (n := _n_distinct(exact)) <= FEW_VALUES:
        return {"unknown": f"its fields have {n} different values, as classes do"}
    waves = _zonal(exact.shape) if is_periodic else _cosine(exact.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        powers = waves.powers(exact, kept)
    total, modes = float(powers[0].sum()), waves.modes
    if not all(np.isfinite(power).all() for power in powers):
        return {"unknown": "its powers overflow"}
    rounding = precision**2 * float(np.square(exact).mean()) / 12
    if total <= NOISE_FACTOR * rounding:
        return {"unknown": "its rows are constant to the precision of its numbers"}
    noise = rounding * modes / modes.sum()
    told = dict(zip(("power", "stored", "error"), powers, strict=True))
    shares = {name: (power / total).tolist() for name, power in {**told, "noise": noise}.items()}
    return {"kind": "zonal" if is_periodic else "cosine", **shares}


def _n_distinct(values: NDArray[Any]) -> int:
    flat = values.reshape(-1)
    some = np.unique(flat[:: max(1, flat.size // N_LOOKED_AT)]).size
    return some if some > FEW_VALUES else int(np.unique(flat).size)


@frozen(eq=False)
class _Waves:
    """What fields of one shape are taken apart into.

    Parameters
    ----------
    transform : callable
        Returns the coefficients of a field; linear.
    weights : ndarray
        The variance that the square of a coefficient stands for; 0 of the mean.
    bands : ndarray of int
        The band of each.
    modes : ndarray
        Degrees of freedom of each band.
    """

    transform: Callable[[NDArray[np.float64]], NDArray[Any]]
    weights: NDArray[np.float64]
    bands: NDArray[np.int64]
    modes: NDArray[np.float64]

    def powers(
        self, exact: NDArray[np.float64], kept: NDArray[np.float64]
    ) -> list[NDArray[np.float64]]:
        """Return variances by band: of a field, of what is kept of it, of the difference."""
        before, after = self.transform(exact), self.transform(kept)
        return [self._gathered(waves) for waves in (before, after, after - before)]

    def _gathered(self, waves: NDArray[Any]) -> NDArray[np.float64]:
        squares = np.square(waves.real)
        if np.iscomplexobj(waves):
            squares += np.square(waves.imag)
        if squares.ndim > self.weights.ndim:
            squares = squares.mean(axis=0)
        return _sums(self.bands, squares * self.weights, len(self.modes))


def _sums(
    bands: NDArray[np.int64], values: NDArray[np.float64], n_bands: int = 0
) -> NDArray[np.float64]:
    """Return the sum of the values of each band."""
    summed = np.bincount(bands.reshape(-1), weights=values.reshape(-1), minlength=n_bands)
    return np.asarray(summed, dtype=np.float64)


def _zonal(shape: tuple[int, ...]) -> _Waves:
    """Return the waves along rows; their variances are means over these."""
    n = shape[-1]
    weights = np.full(n // 2 + 1, 2.0)
    weights[0] = 0.0
    if n % 2 == 0:
        weights[-1] = 1.0  # the wave of two points is its own mirror image
    wavelength = n / np.maximum(np.arange(len(weights)), 1)
    bands = _bands(wavelength)
    return _Waves(np.fft.rfft, weights / n**2, bands, _sums(bands, weights))


def _cosine(shape: tuple[int, ...]) -> _Waves:
    """Return the cosines in both directions of a field.

    Source: Denis et al. 2002, equations 8 to 14: variances are squares of coefficients over the
    number of points; the wavelength is two grid points over the normalised wavenumber, the root
    of (m / rows)**2 + (n / columns)**2.
    """
    rows, columns = shape
    m, n = np.arange(rows)[:, None] / rows, np.arange(columns) / columns
    wavenumber = np.sqrt(m**2 + n**2)
    weights = np.ones(shape)
    weights[0, 0] = 0.0
    wavenumber[0, 0] = wavenumber[-1, -1]
    bands = _bands(2 / wavenumber)
    modes = _sums(bands, weights)
    return _Waves(_both_ways, weights / (rows * columns), bands, modes)


def _both_ways(field: NDArray[np.float64]) -> NDArray[np.float64]:
    return _dct(_dct(field - field.mean()).T).T


def _dct(field: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orthonormal cosine transform (DCT-II) of each row, through one of Fourier's.

    Source: Makhoul (1980), IEEE Transactions on Acoustics, Speech, and Signal Processing 28, 27
    (doi 10.1109/TASSP.1980.1163351).
    """
    n = field.shape[1]
    folded = np.concatenate((field[:, ::2], field[:, 1::2][:, ::-1]), axis=1)
    half = n // 2 + 1
    turned = np.fft.rfft(folded, axis=1) * np.exp(-0.5j * np.pi / n * np.arange(half))
    transformed = np.empty(field.shape)
    transformed[:, :half] = turned.real
    transformed[:, half:] = -turned.imag[:, n - half : 0 : -1]  # of the other half, mirrored
    transformed *= math.sqrt(2 / n)
    transformed[:, 0] /= math.sqrt(2)
    return transformed


def _bands(wavelength: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the band of each wavelength; diagonal waves below two points are of the first."""
    bands: NDArray[np.float64] = np.floor(2 * np.log2(wavelength / 2) + 1e-9)
    return bands.astype(np.int64).clip(0)


def band_edges(n_bands: int) -> list[float]:
    """Return where bands of wavelength begin and end, in grid points: 2, 2.83, 4, 5.66, ..."""
    return [2.0 * 2 ** (band / 2) for band in range(n_bands + 1)]


def merge_spectra(compared: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the fields of one variable say together, in their order; JSON-ready.

    Returns
    -------
    dict
        ``kind``; ``n_fields``; ``edges`` of the bands of wavelength in grid points; in each band
        the ``power`` of the fields as a share of their variance, the ``ratio`` of the stored power
        to it and the share of it that the ``error`` has (None where there is no power beyond the
        rounding of the numbers as they came); ``largest_deviation`` of a ratio from 1, and the
        band it is in; ``kept_above``: all scales from so many grid points up are kept, their
        power and their error within 5 %; 0 where all are, None where not even the largest is.
        Or ``unknown``: why there is none.
    """
    found = list(compared)
    known = [each for each in found if "unknown" not in each]
    if not known:
        reasons = dict.fromkeys(each["unknown"] for each in found)
        return {"unknown": "; ".join(reasons) or "no sample was compared"}
    length = max(len(each["power"]) for each in known)

    def mean(key: str) -> NDArray[np.float64]:
        total = np.zeros(length)
        for each in known:
            total[: len(each[key])] += each[key]
        return total / len(known)

    power = mean("power")
    has_power = power > NOISE_FACTOR * mean("noise")
    ratios = _shares(mean("stored"), power, has_power)
    errors = _shares(mean("error"), power, has_power)
    edges = band_edges(length)
    lost = [
        band
        for band, (ratio, error) in enumerate(zip(ratios, errors, strict=True))
        if ratio is not None
        and error is not None
        and (abs(ratio - 1) > SHARE_KEPT or error > SHARE_KEPT)
    ]
    largest = int(np.flatnonzero(has_power)[-1]) if has_power.any() else -1
    kept: float | None = 0.0
    if lost:
        kept = None if max(lost) >= largest else edges[max(lost) + 1]
    off = [(abs(ratio - 1), band) for band, ratio in enumerate(ratios) if ratio is not None]
    deviation, worst = max(off, default=(0.0, 0))
    return {
        "kind": known[0]["kind"],
        "n_fields": len(known),
        "n_left_out": len(found) - len(known),
        "edges": edges,
        "power": power.tolist(),
        "ratio": ratios,
        "error": errors,
        "largest_deviation": deviation,
        "deviates_at": [edges[worst], edges[worst + 1]],
        "kept_above": kept,
    }


def _shares(
    part: NDArray[np.float64], power: NDArray[np.float64], has_power: NDArray[np.bool_]
) -> list[float | None]:
    return [
        float(one / whole) if there else None
        for one, whole, there in zip(part, power, has_power, strict=True)
    ]
