"""A dataset of NetCDF files said as data: which files, which variables, what a sample is.

`Recipe` is the whole `Dataset` and `Synthesizer` for it; a subclass says its data as attributes and
overrides the few methods in which it is unlike others. See ``plugins/README.md``.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.cf_times import decode_times
from iobench.chunks.netcdf.file import inspect_netcdf
from iobench.coordinates import SampleLabels
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.chunked_samples import ChunkedSamples, only_variables
from iobench.datasets.contract import SampleIndex
from iobench.datasets.file_labels import CoordinateNames, compare_coordinates, label_samples
from iobench.datasets.plain_loop import make_plain_loop
from iobench.datasets.positions import FileCoordinates, SampleRows, spell_times
from iobench.datasets.published_files import PublishedFiles, RecipeVariable
from iobench.datasets.selection import within_dates
from iobench.datasets.source_files import inspect_files, whole_variable
from iobench.errors import FileFormatError, IobenchError, SampleError
from iobench.samples import SampleSpec, Variable
from iobench.stores.value_statistics import merge_means

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.netcdf.file import NetcdfFile
    from iobench.datasets.contract import Arrays, Baseline
    from iobench.datasets.locate import Locator
    from iobench.samples import Role, Sample

MAX_PLACED = 1 << 22  # of more samples than this a store keeps no coordinates
MAX_COMPARED = 1 << 16  # of more, coordinates of their parts of dimensions are not told
MAX_PARTS = 1 << 18  # bytes of a coordinate of which each sample has its own part


class ChannelGroup(msgspec.Struct, frozen=True):
    """An array of the sample, variables stacked as channels; float32 ``(channel, ...)``."""

    name: str
    fields: tuple[str, ...]
    role: Role = "input"


class Split(msgspec.Struct, frozen=True):
    """Samples by their time: those whose time, as ``2020-03-01T06``, begins with one of these."""

    name: str
    times: Sequence[str]


class Recipe(PublishedFiles, ChunkedSamples):
    """A dataset of NetCDF files, with stand-ins.

    A subclass is what the entry point names: it is called with the user's options. A sample is one
    index along the sample dimension of one file unless `items` and `hyperslabs` say otherwise; its
    arrays are the channel groups, or else each variable by itself, float32, unless `spec` and
    `preprocess` do. Instances are picklable and hold what `samples` learnt.
    """

    channel_groups: tuple[ChannelGroup, ...] = ()
    splits: tuple[Split, ...] = ()
    is_distinct: bool = True  # whether a time may be there but once
    first_steps: int | None = None  # how many of each file are samples; by default all
    source: str = ""  # where the schema is published
    left_out: Mapping[str, str] = {}  # coordinates that files have not, and why
    xarray_options: Mapping[str, Any] = {}  # of ``xarray.open_dataset``, for a plain loop
    opened: tuple[NetcdfFile, ...]

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse data of a class that do not fit together, in one line for its author."""
        super().__init_subclass__(**more)
        for mistake in cls._mistakes():
            name = getattr(cls, "name", "a recipe")
            raise IobenchError(f"{name}: {mistake}; correct class {cls.__name__}")

    def __init__(self, **options: str) -> None:
        ChunkedSamples.__init__(self)
        super().__init__(**options)
        self.normalisation: Normalisation = {}

    @classmethod
    def _mistakes(cls) -> Iterator[str]:
        """Yield what of a class's data does not fit together; a base class may lack some."""
        fields, dims = getattr(cls, "fields", ()), [each.name for each in getattr(cls, "axes", ())]
        names = [each.name for each in fields]
        for each in fields:
            try:
                is_number = np.dtype(each.dtype).kind in "fiu"
            except TypeError:
                is_number = False
            if not is_number:
                yield f"field {each.name!r} has dtype {each.dtype!r}, expected a number's, as 'f4'"
            if names.count(each.name) > 1:
                yield f"field {each.name!r} is there {names.count(each.name)} times, expected once"
            if unknown := [dim for dim in each.dims if dim not in dims]:
                yield f"field {each.name!r} has dimension {unknown[0]!r}, which is none of the axes"
        for group in cls.channel_groups:
            if unknown := [name for name in group.fields if name not in names]:
                yield f"channel group {group.name!r} has {unknown[0]!r}, which is no field"
        parts = {part for _, part, _, _ in string.Formatter().parse(cls.url) if part is not None}
        unknown = sorted(parts.difference(each.name for each in cls.keys))
        if unknown and cls.file_url is PublishedFiles.file_url:
            yield f"the URL has {{{unknown[0]}}}, which is none of the keys"

    # ---- which samples

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples of the files; see `items`."""
        opened = self.open(files, locator)
        index = self.items(opened)
        scored = [each.name for each in self.sample_fields if each.zscore]
        fitted: list[NetcdfFile] = []
        if scored:
            training = {index.where[number][0] for number in index.splits.get("train", ())}
            fitted = [file for n, file in enumerate(opened) if n in training or not training]
            per_point = [each.name for each in self.fields if each.zscore == "point"]
            self.normalisation = normalisation_of(fitted, scored, per_point, locator)
        provenance = self.provenance(opened, [file.path.name for file in fitted])
        return replace(
            index,
            provenance={**provenance, "stand_in": locator.stand_in},
            meteorology=self.meteorology(opened, index, locator.cache_dir),
        )

    def meteorology(
        self, files: Sequence[NetcdfFile], index: SampleIndex, cache_dir: Path
    ) -> SampleLabels:
        """Return what files say of the samples: coordinates along what they take of `ranges`."""
        dim, where = self.sample_dim, index.where
        if not 0 < len(where) <= MAX_PLACED:
            why = f"of up to {MAX_PLACED} samples alone"
            return SampleLabels((dim,), left_out={**self.left_out, "all": why})
        numbers = np.array([each[:2] for each in where], dtype=np.int64)
        as_stored = type(self).preprocess is Recipe.preprocess and not self.channel_groups
        every: list[Mapping[str, int | slice]] = [{}]
        if type(self).ranges is not ChunkedSamples.ranges and len(where) <= MAX_COMPARED:
            every = [self.ranges(each) for each in where]
        first = {name: part for name, part in every[0].items() if name != dim}
        # What all samples take of dimensions, and of which each takes its own part.
        of_all = {
            name: part for name, part in first.items() if all(each[name] == part for each in every)
        }
        own = {
            name: [part if isinstance(part, slice) else slice(part, part + 1 or None)
                   for part in (each[name] for each in every)]
            for name in first if name not in of_all
        }  # fmt: skip
        chosen = {
            each.name: each.name if as_stored and not each.zscore else ""
            for each in self.sample_fields
        }
        labels = label_samples(files, chosen, (dim,), numbers, cache_dir=cache_dir)
        coordinates, left_out = [], {**self.left_out, **labels.left_out}
        lengths = {pair for v in self.spec() for pair in zip(v.dims, v.shape, strict=True)}
        keys = "bounds", "climatology"
        bounds = [each.attributes.get(key) for each in labels.coordinates for key in keys]
        for each in labels.coordinates:
            place = tuple(of_all.get(name, slice(None)) for name in each.dims)
            dims = tuple(name for name in each.dims if not isinstance(of_all.get(name), int))
            one = replace(each, dims=dims, values=each.values[place])
            try:
                if not own.keys().isdisjoint(dims):
                    one = one.cut(own, max_nbytes=MAX_PARTS)
            except SampleError as error:
                left_out[each.name] = str(error)
                continue
            rest = [*zip(one.dims, one.values.shape, strict=True)][int(one.of_samples) :]
            lacking = {*(rest[:-1] if each.name in bounds else rest)} - lengths
            if lacking:
                along = " and ".join(dim for dim, _ in rest if dim in dict(lacking))
                left_out[each.name] = f"along {along}, of which samples do not have all"
            else:
                coordinates.append(one)
        return replace(labels, coordinates=tuple(coordinates), left_out=left_out)

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, checked against the recipe; what was learnt is kept."""
        opened = inspect_files(files, cache_dir=locator.cache_dir, progress=locator.progress)
        self.channel_groups = self.channel_groups_of(opened[0])
        for file in opened:
            self.check(file, opened[0])
        names = [each.name for each in self.sample_fields]
        known = CoordinateNames(opened[0], names, (self.sample_dim,))
        compare_coordinates(opened, known, cache_dir=locator.cache_dir)
        self.keep([only_variables(file, names) for file in opened])
        return tuple(opened)

    def keep(self, files: Sequence[NetcdfFile]) -> None:
        """Keep what reading needs of files."""
        self.keep_files(files, (self.sample_dim,))

    def channel_groups_of(self, first: NetcdfFile) -> tuple[ChannelGroup, ...]:
        """Return the arrays of a sample, where they follow from what the files hold."""
        return self.channel_groups

    @property
    def sample_fields(self) -> tuple[RecipeVariable, ...]:
        """The variables a sample is made of, each once."""
        by_name = {each.name: each for each in self.fields}
        stacked = dict.fromkeys(name for group in self.channel_groups for name in group.fields)
        return tuple(by_name[name] for name in stacked) if stacked else self.fields

    def check(self, file: NetcdfFile, first: NetcdfFile) -> None:
        """Raise FileFormatError where a file is of another schema than the recipe or ``first``."""
        for axis in self.axes:
            is_any = axis.name == self.sample_dim and not axis.length
            length = file.dims.get(axis.name)
            expected = axis.length or first.dims.get(axis.name)
            if not is_any and length is not None and length != expected:
                like = "" if axis.length else f" as in {first.path}"
                raise FileFormatError(
                    f"{file.path}: dimension {axis.name!r} has {length}, expected {expected}{like}"
                )
        for each in self.sample_fields:
            variable, dims = file.variables.get(each.name), self.dims_of(each)
            without = tuple(dim for dim in dims if dim != self.sample_dim)
            allowed = (dims, without) if each.is_static else (dims,)
            if variable is None:
                names = ", ".join(one.name for one in self.sample_fields)
                raise FileFormatError(
                    f"{file.path}: has no variable {each.name!r}; expected a file of {self.name} "
                    f"with {names}"
                )
            dtype = np.dtype(variable.packing.dtype)
            if variable.dims not in allowed or dtype.kind != "f":
                raise FileFormatError(
                    f"{file.path}: variable {each.name!r} is {dtype.name} "
                    f"({', '.join(variable.dims)}), expected floats "
                    + " or ".join(f"({', '.join(one)})" for one in allowed)
                )

    def items(self, files: Sequence[NetcdfFile]) -> SampleIndex:
        """Return the samples: each time along the sample dimension, file after file.

        Files whose times do not follow each other, as forecasts of the same lead times, are rows
        of their own.
        """
        dim = self.sample_dim
        for file in files:
            if not file.dims.get(dim):
                raise FileFormatError(f"{file.path}: has nothing along {dim!r}, expected samples")
        by_file = [times[: self.first_steps] for times in file_times(files, dim)]
        along = FileCoordinates(by_file, [""] * len(files), [""] * len(files))
        along.order = None  # files stay as they are
        samples = SampleRows((dim,), [along])
        times = np.concatenate(by_file)
        if self.is_distinct and samples.is_doubled:
            distinct, counts = np.unique(times, return_counts=True)
            time = distinct[counts > 1][:1]
            twice = samples.where.rows[np.flatnonzero(times == time)[:2], 0]
            before, again = (files[number].path for number in twice)
            raise FileFormatError(
                f"{again}: holds {spell_times(time)[0]}, which is in {before} already; expected "
                "each time once: are two files copies of one?"
            )
        by_split: dict[str, Sequence[int]] = {}
        for split in self.splits:
            parts = [within_dates(times, each, each, split.name) for each in split.times]
            if numbers := np.flatnonzero(np.logical_or.reduce(parts)).tolist():
                by_split[split.name] = numbers
        fields = samples.index_fields()
        return SampleIndex(self.spec(), samples.where, by_split, **fields)

    # ---- what a sample is

    def spec(self) -> SampleSpec:
        """Return what `preprocess` returns; called once the files are open."""
        by_name = {each.name: each for each in self.fields}
        groups = self.channel_groups or [
            ChannelGroup(each.name, (each.name,), each.role) for each in self.fields
        ]
        variables = []
        for group in groups:
            fields = [by_name[name] for name in group.fields]
            dims = tuple(dim for dim in self.dims_of(fields[0]) if dim != self.sample_dim)
            shape = tuple(self.opened[0].dims[dim] for dim in dims)
            units = {"1" if each.zscore else each.units for each in fields}
            one = units.pop() if len(units) == 1 else ""
            channels: tuple[str, ...] = ()
            if self.channel_groups:
                channels, dims, shape = group.fields, ("channel", *dims), (len(fields), *shape)
            variables.append(Variable(group.name, shape, "<f4", dims, one, group.role, channels))
        return SampleSpec(tuple(variables))

    def preprocess(self, arrays: Arrays, where: Any) -> Sample:
        """Return the channel groups, or each variable: scored in float64, returned in float32."""
        if not self.channel_groups:
            return {each.name: self._float32([each.name], arrays)[0] for each in self.fields}
        return {group.name: self._float32(group.fields, arrays) for group in self.channel_groups}

    def _float32(self, names: Sequence[str], arrays: Arrays) -> NDArray[np.float32]:
        shape = arrays[names[0]].shape
        stacked = np.empty((len(names), *shape), dtype=np.float32)
        scored = np.empty(shape)
        for channel, name in enumerate(names):
            if name not in self.normalisation:
                stacked[channel] = arrays[name]
                continue
            mean, divisor = self.normalisation[name]
            np.subtract(arrays[name], mean, out=scored)
            stacked[channel] = np.divide(scored, divisor, out=scored)
        return stacked

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain xarray loop: the same parts of variables, and our `preprocess`."""
        return make_plain_loop(index, self.plain_parts, self.preprocess, **self.xarray_options)

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what values follow from, JSON-ready; ``fitted`` are the files of z-scores."""
        facts = {
            **self.facts(),
            "options": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self.chosen.items()
            },
            "schema": {each.name: each.units for each in self.fields},
            "source": self.source,
        }
        if fitted:
            digest = hashlib.sha256()
            for name, (mean, divisor) in self.normalisation.items():
                digest.update(name.encode() + mean.tobytes() + divisor.tobytes())
            facts["normalisation"] = {
                "formula": "(x - mean) / std, ddof 0; a std of 0 divides by 1",
                "over": "all values, per variable",
                "per_point": [each.name for each in self.fields if each.zscore == "point"],
                "files": list(fitted),
                "sha256": digest.hexdigest(),
            }
        return facts


def file_times(files: Sequence[NetcdfFile], name: str) -> list[NDArray[np.datetime64]]:
    """Return a time coordinate of each file, to the second; one time of a scalar."""
    result: list[NDArray[np.datetime64]] = []
    for file in files:
        variable, units, times = file.variables.get(name), "", None
        if variable is not None and variable.dims in ((name,), ()):
            units, calendar = (variable.attributes.get(key, "") for key in ("units", "calendar"))
            times = decode_times(np.atleast_1d(whole_variable(file, name)), units, calendar)
        if times is None or times.dtype.kind != "M" or np.isnat(times).any():
            raise FileFormatError(
                f"{file.path}: {name} has units {units!r}, expected a date for each along it, as "
                "'hours since 1970-01-01 00:00:00' of the standard calendar, in UTC or with a "
                "zone as +01:00"
            )
        result.append((times + np.timedelta64(500, "ms")).astype("M8[s]"))
    return result


# ---- means and deviations: the moments of each file are kept, a further one costs its own bytes

Normalisation = Mapping[str, "tuple[NDArray[np.float64], NDArray[np.float64]]"]
"""By variable what is subtracted and divided by, scalars or of a field's shape; a deviation of 0
divides by 1."""


def normalisation_of(
    files: Sequence[NetcdfFile], names: Sequence[str], per_point: Sequence[str], locator: Locator
) -> Normalisation:
    """Return the normalisation over files."""
    what = json.dumps(["moments 3", sorted(per_point), sorted(names)])
    inspect = partial(_file_moments, tuple(names), tuple(per_point))
    inspection = Inspection(what, inspect, dict[str, tuple[int, Any, Any]])
    paths = [file.path for file in files]
    moments = catalogued(paths, inspection, cache_dir=locator.cache_dir, progress=locator.progress)
    normalisation = {}
    for name in names:
        count, mean, squares = reduce(merge_means, (each[name] for each in moments))
        deviation = np.sqrt(squares / count)
        normalisation[name] = np.asarray(mean), np.where(deviation > 0, deviation, 1.0)
    return normalisation


def _file_moments(
    names: tuple[str, ...], per_point: tuple[str, ...], path: Path
) -> dict[str, tuple[Any, Any, Any]]:
    """Return count, mean and sum of squared deviations of each variable of a file."""
    file, moments = inspect_netcdf(path), dict[str, Any]()
    for name in names:
        values = whole_variable(file, name).astype(np.float64, copy=False)
        axis = 0 if name in per_point else None
        mean = values.mean(axis=axis)
        if not np.isfinite(mean).all():
            raise FileFormatError(
                f"{path}: variable {name!r} has missing values, expected none; fetch the file again"
            )
        values = values - mean
        np.square(values, out=values)
        count = len(values) if axis == 0 else values.size
        moments[name] = count, np.asarray(mean), np.asarray(values.sum(axis=axis))
    return moments
