"""A dataset of files that are published one by one: which there are, at hand or as a stand-in.

What is in them is `iobench.datasets.recipes` to say where they are NetCDF, a subclass's own where
they are GRIB or TFRecord.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from iobench.datasets.locate import in_mirror
from iobench.errors import IobenchError, MissingFileError, OptionError, import_extra

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from iobench.datasets.contract import PublishedStep
    from iobench.datasets.locate import Locator
    from iobench.samples import Role

MOST_LISTED = 5
DATE = re.compile(r"\d{4}(-\d\d){0,2}")
PERIODS = (np.timedelta64(1, "Y"), np.timedelta64(1, "M"), np.timedelta64(1, "D"))
"""What a date stands for that has a year, a month, a day."""
SINCE = np.datetime64("1990-01-01", "h")


FileKey = Mapping[str, str]  # what tells a file from the others: the value of each `Key`
ZScore = Literal["", "all", "point"]
LISTED = 12  # of more values the first and the last are named


class Key(msgspec.Struct, frozen=True):
    """A part of the files' URL, in braces there: its name and the values it has, in order."""

    name: str
    values: Sequence[str]
    text: str = ""
    """What it is, for ``iobench info``: users choose by ``--option NAME=VALUE,VALUE``."""
    parse: Callable[[str], str] | None = None
    """Returns the value that a user's text means."""
    default: tuple[str, ...] = ()
    """Values that are taken where none is chosen; by default all that are found."""


class Axis(msgspec.Struct, frozen=True):
    """A dimension of the files."""

    name: str
    length: int = 0  # that every file must have; 0 for any
    first: float = 0.0  # of the coordinate that a stand-in has
    step: float = 1.0
    units: str = ""  # of that coordinate


class RecipeVariable(msgspec.Struct, frozen=True):
    """A variable of the files, which may hold it packed or in another floating-point dtype."""

    name: str
    units: str = ""
    low: float = 0.0  # between which a stand-in's values lie
    high: float = 1.0
    dims: tuple[str, ...] = ()  # all axes by default
    dtype: str = "f4"  # of a stand-in's numbers
    is_static: bool = False  # whether files may hold it once, without the sample dimension
    # whether samples hold it less its mean and divided by its deviation over the files of the
    # split ``train``: of ``all`` values, or at each ``point``
    zscore: ZScore = ""
    role: Role = "input"  # where each variable is an array of the sample: what it is to the model
    noise: float = 0.7  # the share of the bits of a stand-in's numbers that are noise


def recipe_variables(
    *rows: tuple[str, str, float, float, float], **of_all: Any
) -> tuple[RecipeVariable, ...]:
    """Return variables of rows: name, units, two bounds, and the noise of a stand-in's values."""
    return tuple(RecipeVariable(*row[:4], noise=row[4], **of_all) for row in rows)


class Option(msgspec.Struct, frozen=True):
    """An option of a dataset, given as ``--option NAME=VALUE``."""

    name: str
    text: str = ""  # what it does, a sentence; ``iobench info`` shows it
    default: Any = ""  # where it is not given; of True and False it is a flag: true or false
    values: Sequence[str] = ()  # those it may have; empty for any
    # whether it takes several, separated by commas: its value is a tuple, in the order of `values`
    many: bool = False
    # returns the value of a text, and raises OptionError for one it cannot use; where it takes
    # several, returns what each is among `values`
    parse: Callable[[str], Any] | None = None

    def value(self, text: str) -> Any:
        """Return the value of a text; OptionError lists those allowed."""
        if self.parse is not None and not self.many:
            return self.parse(text)
        if isinstance(self.default, bool):
            if text.lower() not in ("true", "false"):
                raise OptionError(f"{self.name} {text!r}: expected true or false")
            return text.lower() == "true"
        if not self.many:
            return self._known(text)
        entries = (each.strip() for each in text.split(","))
        chosen = {self._known(self.parse(each) if self.parse else each) for each in entries}
        return tuple(each for each in self.values if each in chosen) or tuple(sorted(chosen))

    def described(self) -> dict[str, str]:
        """Return name, values and text, for people."""
        flag = isinstance(self.default, bool)
        values = "true or false" if flag else _summary(self.values) or "text"
        default = ",".join(self.default) if isinstance(self.default, tuple) else self.default
        given = str(default).lower() if flag else str(default or "")
        text = f"{self.text} By default {given}." if given else self.text
        return {"name": self.name, "values": values, "text": text.strip()}

    def _known(self, text: str) -> str:
        if self.values and text not in self.values:
            several = ", several separated by commas" if self.many else ""
            raise OptionError(
                f"{self.name} {text!r}: expected one of {_summary(self.values)}{several}"
            )
        return text


def _summary(values: Sequence[str]) -> str:
    if len(values) > LISTED:
        return f"{values[0]}, {values[1]} to {values[-1]} ({len(values)})"
    return ", ".join(values)


class StandIn(msgspec.Struct, frozen=True):
    """What a stand-in holds."""

    seed: int  # of its random numbers
    keys: tuple[Mapping[str, str], ...]  # its files
    n_steps: int = 0  # indexes along the sample dimension in each, at most; 0 for all of a real one
    tiny: bool = False  # whether it is the one of tests
    lengths: Mapping[str, int] = {}  # of axes that differ from real files' or have none


class PublishedFiles:
    """The half of a `Dataset` that finds files, and a `Synthesizer`.

    A subclass is what the entry point names: it is called with the user's options.
    """

    name: str
    title: str
    url: str = ""
    keys: tuple[Key, ...] = ()
    options: tuple[Option, ...] = ()
    terms_of_use: str = ""
    citation: str = ""
    published: PublishedStep | None = None
    fused: tuple[str, ...] = ()
    thread_safe = True
    tiny: tuple[str, ...] = ()
    ordinary: tuple[str, ...] = ()
    tiny_steps: int = 8
    ordinary_steps: int = 0
    synthesis_version: int = 3
    axes: tuple[Axis, ...]  # all dimensions; by default the first is the samples'
    fields: tuple[RecipeVariable, ...]
    step_hours: int = 1  # between the times of a stand-in
    n_steps: int = 0  # of a real file; 0: as many as fit into its month, day or year
    attributes: tuple[tuple[str, str], ...] = (
        ("Conventions", "CF-1.6"),
        ("history", "made up by iobench: a stand-in"),
    )

    def __init__(self, **options: str) -> None:
        known = {each.name: each for each in self.all_options()}
        for name in options:
            if name not in known:
                raise OptionError(
                    f"option {name!r}: {self.name} knows {', '.join(known) or 'none'}"
                )
        self.chosen: dict[str, Any] = {
            name: each.value(options[name]) if name in options else each.default
            for name, each in known.items()
        }

    @classmethod
    def all_options(cls) -> list[Option]:
        """Return the options: one for each key, and `options`."""
        of_keys = []
        for key in cls.keys:
            text = key.text or ("" if key.default else "By default all that are found.")
            of_keys.append(Option(key.name, text, key.default, key.values, True, key.parse))
        return [*of_keys, *cls.options]

    @property
    def stand_in_name(self) -> str:
        """What stand-ins are told apart by."""
        return self.name

    @property
    def sample_dim(self) -> str:
        """The dimension along which samples lie."""
        return self.axes[0].name

    def dims_of(self, each: RecipeVariable) -> tuple[str, ...]:
        """Return the dimensions of a variable."""
        return each.dims or tuple(axis.name for axis in self.axes)

    def combined(self, values: Sequence[Sequence[str]]) -> list[FileKey]:
        """Return the key of each file, of these values of each of `keys`."""
        names = [key.name for key in self.keys]
        return [dict(zip(names, each, strict=True)) for each in itertools.product(*values)]

    def file_keys(self) -> list[FileKey]:
        """Return the key of each file that the options choose, all where they choose none."""
        return self.combined([self.chosen.get(key.name) or key.values for key in self.keys])

    def file_url(self, key: FileKey) -> str:
        """Return where a file is published."""
        return self.url.format(**key)

    @property
    def is_chosen(self) -> bool:
        """Whether options choose files."""
        return any(self.chosen.get(key.name) for key in self.keys)

    @property
    def needs_all(self) -> bool:
        """Whether a file that is not at hand is missed: where options choose files."""
        return self.is_chosen

    def files(self, locator: Locator) -> list[Path]:
        """Return the files: all that were chosen, else those at hand."""
        urls = list(map(self.file_url, self.file_keys()))
        paths = locator.find(urls)
        missing = [url for url, path in zip(urls, paths, strict=True) if path is None]
        if missing and (self.needs_all or len(missing) == len(urls)):
            raise MissingFileError(
                f"{self.name}: {_listed(missing)} not found in {locator.searched()}; fetch the "
                "files and name their folder with --data-dir"
            )
        return [path for path in paths if path is not None]

    def facts(self) -> dict[str, Any]:
        """Return what every provenance says: the dataset and the terms."""
        known = {"dataset": self.name, "terms_of_use": self.terms_of_use}
        return {**known, "citation": self.citation} if self.citation else known

    # ---- the stand-in: which files

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        """Return what a stand-in holds: tiny, ordinary, or a share of all files."""
        first, *others = self.keys
        every, n_steps = tuple(first.values), 0
        if tiny:
            values, n_steps = self.tiny or every[:2], self.tiny_steps
        elif scale is None:
            values, n_steps = self.ordinary or every[:4], self.ordinary_steps
        else:
            values = spread(every, max(1, round(scale * len(every))))
        keys = self.combined([values, *(key.values for key in others)])
        return StandIn(seed, tuple(keys), n_steps, tiny)

    def stand_in_urls(self, plan: StandIn) -> dict[str, Callable[[Path], None]]:
        """Return what writes each file of a stand-in, by its URL."""
        return {self.file_url(key): functools.partial(self.write, plan, key) for key in plan.keys}

    def stand_in_files(
        self, *, scale: float | None, tiny: bool, seed: int
    ) -> dict[str, Callable[[Path], None]]:
        """Return the files of a stand-in; refuse one that lacks what was asked for."""
        by_url = self.stand_in_urls(self.stand_in(scale=scale, tiny=tiny, seed=seed))
        files = {in_mirror(url): write for url, write in by_url.items()}
        urls = list(map(self.file_url, self.file_keys())) if self.is_chosen else []
        missing = [url for url in urls if in_mirror(url) not in files]
        if missing and (self.needs_all or len(missing) == len(urls)):
            held = [url.rpartition("/")[2] for url in by_url]
            raise OptionError(
                f"{self.name}: {missing[0]} was not found, and the stand-in holds only "
                f"{_listed(held)}; choose among them, give --data-dir, or a larger --scale"
            )
        return files

    # ---- the stand-in: what a file holds

    def contents(self, key: FileKey, plan: StandIn) -> StandInFile:
        """Return what a file of a stand-in holds: its axes, then the variables."""
        axes = []
        for axis in self.axes:
            if axis.name == "time":
                axes.append(self.time_variable(self.times(key, plan.n_steps)))
            else:
                places = axis.first + axis.step * np.arange(self.length(axis, plan))
                axes.append(axis_variable(axis.name, places, axis.units))
        fixed = plan.seed, self.synthesis_version
        fields = [self.stored_field(each, fixed) for each in self.fields]
        return StandInFile([*axes, *fields], (*fixed, *key.values()), dict(self.attributes))

    def stored_field(self, each: RecipeVariable, key: tuple[int, ...]) -> StandInVariable:
        """Return a variable of a stand-in; a static one is the same in all files."""
        values: Any = Smooth(each.low, each.high, each.noise)
        if each.is_static:
            n_dims = len(self.dims_of(each)) - 1
            values = functools.partial(_static, values, (*key, each.name), n_dims)
        attributes = {"units": each.units} if each.units else {}
        return StandInVariable(each.name, self.stored_dims(each), values, each.dtype, attributes)

    def stored_dims(self, each: RecipeVariable) -> tuple[str, ...]:
        """Return the dimensions of a variable of the stand-in: static ones are there once."""
        dims = self.dims_of(each)
        return tuple(dim for dim in dims if not (each.is_static and dim == self.sample_dim))

    def times(self, key: FileKey, n_steps: int) -> NDArray[np.datetime64]:
        """Return the times of a stand-in's file: from its first key on that is a date."""
        first = next(each for each in key.values() if DATE.fullmatch(each))
        start, step = np.datetime64(first, "h"), np.timedelta64(self.step_hours, "h")
        behind = np.datetime64(first) + PERIODS[first.count("-")]
        n_all = self.n_steps or -(-(behind.astype("M8[h]") - start) // step)
        return start + step * np.arange(min(n_all, n_steps or n_all))

    def time_variable(self, times: NDArray[np.datetime64]) -> StandInVariable:
        """Return the coordinate ``time``."""
        units = f"hours since {SINCE.astype('M8[D]')} 00:00:00"
        hours = (times.astype("M8[h]") - SINCE).astype(np.float64)
        return axis_variable("time", hours, units, calendar="proleptic_gregorian")

    def length(self, axis: Axis, plan: StandIn) -> int:
        """Return the length of a dimension of a stand-in's file."""
        if length := plan.lengths.get(axis.name) or axis.length:
            return length
        raise IobenchError(f"{self.name}: axis {axis.name!r} needs a length for a stand-in")

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        """Write a file of a stand-in."""
        self.contents(key, plan).write(path)


def spread(values: Sequence[Any], count: int) -> tuple[Any, ...]:
    """Return so many of some values, at even distances."""
    return tuple(values[number * len(values) // count] for number in range(count))


def _static(
    smooth: Smooth, own_key: Any, n_dims: int, shape: tuple[int, ...], dtype: Any, key: Any
) -> NDArray[Any]:
    return np.broadcast_to(smooth(shape[len(shape) - n_dims :], dtype, own_key), shape)


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_LISTED
    return ", ".join(texts[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


# ---- files of stand-ins, said as tables: dimensions, variables, and what their values are

N_TERRACES = 32  # steps between the bounds of a variable, where it has no noise
NOISE_BITS = {2: 16, 4: 24, 8: 53}  # of a number's bytes: how many bits of it can be noise
MOST_VALUES: Final = 1 << 22  # made at once, but for the values of one row


class Smooth(msgspec.Struct, frozen=True):
    """Waves with noise between two bounds, which may differ along the last dimensions."""

    low: Any
    high: Any
    noise: float = 0.7  # the share of a number's bits that no compressor takes away
    bits: int = 0  # how many bits of a number can be noise; by default as its dtype has

    def __call__(
        self, shape: tuple[int, ...], dtype: DTypeLike, key: Sequence[int | str]
    ) -> NDArray[Any]:
        """Return values; the key alone decides, on any machine."""
        random = np.random.default_rng(
            [zlib.crc32(each.encode()) if isinstance(each, str) else each for each in key]
        )
        stored = np.dtype(dtype)
        bits = self.bits or NOISE_BITS[stored.itemsize]
        work: Any = np.float64 if bits > 24 else np.float32
        # Arithmetic that is rounded alike everywhere: no sines, powers or matrix products.
        values: NDArray[Any] = np.zeros((), dtype=work)
        for length in reversed(shape):
            place = (random.random() + random.integers(1, 4) * np.arange(length) / length) % 1
            wave = 4 * N_TERRACES / len(shape) * place * (1 - place)
            values = wave.astype(work).reshape(-1, *(1,) * values.ndim) + values
        np.floor(values, out=values)
        # In units of the last bit: the grain has 2 ** (bits * noise) steps, less between powers.
        power = math.floor(bits * self.noise)
        steps = math.ldexp(1 + bits * self.noise - power, power)
        values *= work((2.0**bits - steps) / N_TERRACES)
        if bits > 24:
            grain = random.random(shape)
            grain *= steps
        else:
            words = np.frombuffer(random.bytes(2 * values.size), dtype="<u2").reshape(shape)
            grain = np.multiply(words, work(steps / 65536), out=np.empty(shape, dtype=work))
        values += np.floor(grain, out=grain)
        span = (1 - 1e-6) / 2.0**bits * np.subtract(self.high, self.low)
        values *= _whole(span, shape).astype(work)
        values += _whole(self.low, shape).astype(work)
        if stored.kind == "i":
            np.rint(values, out=values)
        return values.astype(stored, copy=False)


class StandInVariable(msgspec.Struct, frozen=True, eq=False):
    """A variable of a `StandInFile`."""

    name: str
    dims: tuple[str, ...]
    # an array; or a function of shape, dtype and random key, as `Smooth`, called for some rows
    values: Any
    dtype: Any = "f4"
    attributes: Mapping[str, Any] = {}
    fill: Any = False  # by default none


class StandInFile(msgspec.Struct, frozen=True, eq=False):
    """A NetCDF file; of NetCDF-4 all variables are contiguous and uncompressed."""

    variables: Sequence[StandInVariable]
    key: tuple[int | str, ...] = ()  # what random values follow from, with the variable's name
    attributes: Mapping[str, Any] = {}
    lengths: Mapping[str, int] = {}  # of dimensions that have no coordinate
    format: str = "NETCDF4"

    def write(self, path: Path) -> None:
        """Write the file."""
        axes = [each for each in self.variables if each.dims == (each.name,)]
        dims = {**self.lengths, **{each.name: len(each.values) for each in axes}}
        with writing_library("netCDF4").Dataset(path, "w", format=self.format) as file:
            file.set_fill_off()
            file.setncatts(dict(self.attributes))
            for name, length in dims.items():
                file.createDimension(name, length)
            for each in self.variables:
                is_plain = self.format == "NETCDF4" and each.dtype is not str
                more = {"contiguous": True, "fill_value": each.fill} if is_plain else {}
                if each.fill is not False:
                    more["fill_value"] = each.fill
                stored = file.createVariable(each.name, each.dtype, each.dims, **more)
                stored.setncatts(dict(each.attributes))
                stored.set_auto_maskandscale(False)
            for each in self.variables:
                stored, shape = file[each.name], tuple(dims[dim] for dim in each.dims)
                if not callable(each.values):
                    stored[...] = each.values
                    continue
                rows = max(1, MOST_VALUES // math.prod(shape[1:]))
                for start in range(0, shape[0], rows):
                    part = (min(rows, shape[0] - start), *shape[1:])
                    key = (*self.key, each.name, start)
                    stored[start : start + rows] = each.values(part, each.dtype, key)


def axis_variable(name: str, values: ArrayLike, units: str = "", **more: Any) -> StandInVariable:
    """Return the coordinate of a dimension."""
    numbers = np.asarray(values)
    attributes = {"units": units, **more} if units else more
    return StandInVariable(name, (name,), numbers, numbers.dtype, attributes)


def _whole(bound: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a bound as an array without short inner axes, along which NumPy is slow."""
    numbers = np.asarray(bound)
    return np.ascontiguousarray(np.broadcast_to(numbers, shape[1:])) if numbers.ndim else numbers


def writing_library(name: str) -> Any:
    """Return a library that stand-ins are written with: ``netCDF4`` or ``h5py``."""
    return import_extra(name, f"a stand-in needs {name}", extra="netcdf")
