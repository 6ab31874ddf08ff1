"""A dataset of NetCDF files said as data: which files, which variables, what a sample is.

`Recipe` is the whole `Dataset` and `Synthesizer` for it; a subclass says its data as attributes and
overrides the few methods in which it is unlike others. See ``plugins/README.md``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.assembler import read_boxes
from iobench.chunks.boxes import index_box
from iobench.chunks.chunked_fields import ChunkedFields
from iobench.chunks.netcdf.file import (
    NetcdfFile,
    make_box,
    read_through_library,
)
from iobench.chunks.packing import unpack
from iobench.chunks.sampled_variable import SampledVariable, chunks_of_sample
from iobench.coordinates import SampleLabels
from iobench.datasets.contract import SampleIndex
from iobench.datasets.file_labels import SamplePlaces, labels_of_files
from iobench.datasets.file_sets import compare_coordinates, coordinates_of
from iobench.datasets.inspected_netcdf import describe_files, inspect_files, whole_variables
from iobench.datasets.normalisation import Normalisation, normalisation_of
from iobench.datasets.plain_loop import VariablePart, make_plain_loop
from iobench.datasets.published_files import PublishedFiles, StandIn
from iobench.datasets.recipe_data import (
    Axis,
    ChannelGroup,
    FileKey,
    Hyperslab,
    Items,
    RecipeVariable,
    Split,
)
from iobench.datasets.recipe_items import items_along
from iobench.datasets.recipe_stand_ins import (
    SINCE,
    define_axes,
    smooth_values,
    writing_library,
)
from iobench.errors import FileFormatError, IobenchError, OptionError, SampleError
from iobench.files.urls import range_file
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.boxes import Box
    from iobench.chunks.chunked_variable import ChunkedVariable, Place
    from iobench.datasets.baseline import Baseline
    from iobench.datasets.contract import Arrays, Locator, Raw
    from iobench.samples import Sample

DATE = re.compile(r"\d{4}(-\d\d){0,2}")
MAX_PLACED = 1 << 22
"""Of more samples than this a store keeps no coordinates."""
MAX_COMPARED = 1 << 16
"""Of more samples than this, coordinates of their parts of dimensions are not told."""
MAX_PARTS = 1 << 18
"""Bytes of a coordinate of which each sample has its own part: the index goes to each worker."""
PERIODS = (np.timedelta64(1, "Y"), np.timedelta64(1, "M"), np.timedelta64(1, "D"))
"""What a date stands for that has a year, a month, a day."""

ENCODER = msgspec.msgpack.Encoder(enc_hook=repr)
NUMPY_UNITS = ("Y", "M", "D", "h", "m", "s", "ms", "us", "ns")


class Recipe(PublishedFiles, ChunkedFields):
    """A dataset of NetCDF files; also a `PlannedDataset`, `ChunkedDataset` and `Synthesizer`.

    A subclass is what the entry point names: it is called with the user's options. A sample is one
    index along the sample dimension of one file unless `items` and `hyperslabs` say otherwise; its
    arrays are the channel groups, or else each variable by itself, float32, unless `spec` and
    `preprocess` do. Instances are picklable and hold what `samples` learnt.

    """

    axes: tuple[Axis, ...]  # all dimensions; by default the first is the samples'
    fields: tuple[RecipeVariable, ...]
    channel_groups: tuple[ChannelGroup, ...] = ()
    splits: tuple[Split, ...] = ()
    time_unit: str = "s"  # NumPy's, of times as they are named: one of `NUMPY_UNITS`
    is_distinct: bool = True  # whether a time may be there but once
    source: str = ""  # where the schema is published
    step_hours: int = 1  # between the times of a stand-in
    n_steps: int = 0  # of a real file; 0: as many as fit into its month, day or year
    left_out: Mapping[str, str] = {}  # coordinates that files have not, and why
    xarray_options: Mapping[str, Any] = {}  # of ``xarray.open_dataset``, for a plain loop
    attributes: tuple[tuple[str, str], ...] = (
        ("Conventions", "CF-1.6"),
        ("history", "made up by iobench: a stand-in"),
    )

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse data of a class that do not fit together, in one line for its author."""
        super().__init_subclass__(**more)
        for mistake in cls._mistakes():
            name = getattr(cls, "name", "a recipe")
            raise IobenchError(f"{name}: {mistake}; correct class {cls.__name__}")

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.opened: tuple[NetcdfFile, ...] = ()
        self.normalisation = Normalisation({})
        self._sampled: dict[int, list[SampledVariable]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_sampled": {}}

    @classmethod
    def _mistakes(cls) -> Iterator[str]:
        """Yield what of a class's data does not fit together; a base class may lack some."""
        fields, axes = getattr(cls, "fields", ()), getattr(cls, "axes", ())
        dims, names = [each.name for each in axes], [each.name for each in fields]
        if cls.time_unit not in NUMPY_UNITS:
            expected = ", ".join(NUMPY_UNITS)
            yield f"time_unit is {cls.time_unit!r}, expected one of NumPy's: {expected}"
        for each in fields:
            yield from each.mistakes()
            if names.count(each.name) > 1:
                yield f"field {each.name!r} is there {names.count(each.name)} times, expected once"
            for dim in each.dims:
                if dim not in dims:
                    yield f"field {each.name!r} has dimension {dim!r}, which is none of the axes"
        for group in cls.channel_groups:
            for name in group.fields:
                if name not in names:
                    yield f"channel group {group.name!r} has {name!r}, which is none of the fields"
        if cls.file_url is PublishedFiles.file_url:
            keys = {each.name for each in cls.keys}
            for _, part, _, _ in string.Formatter().parse(cls.url):
                if part is not None and part not in keys:
                    yield f"the URL has {{{part}}}, which is none of the keys"
        first = cls.keys[0].values if cls.keys else ()
        for value in (*cls.tiny, *cls.ordinary):
            if value not in first:
                yield f"a stand-in of {value!r}, which is no value of the first key"

    @property
    def sample_dim(self) -> str:
        """The dimension along which samples lie."""
        return self.axes[0].name

    # ---- which samples

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples of the files; see `items`.

        Raises FileFormatError of a file that is cut short or of another schema, or that holds a
        time of another one.
        """
        opened = self.open(files, locator)
        items = self.items(opened)
        scored = [each for each in self.sample_fields if each.zscore]
        fitted = self._fitted(items, len(opened)) if scored else []
        if scored:
            self.normalisation = normalisation_of(
                [opened[number] for number in fitted],
                [each.name for each in scored],
                locator,
                per_point=[each.name for each in self.fields if each.zscore == "point"],
            )
        provenance = self.provenance(opened, [opened[number].path.name for number in fitted])
        return SampleIndex(
            spec=self.spec(),
            where=items.where,
            splits=items.splits,
            coordinate=items.coordinate,
            positions=items.positions,
            position_units=items.position_units,
            rows=items.rows,
            provenance={**provenance, "stand_in": locator.stand_in},
            meteorology=self.meteorology(opened, items, locator.cache_dir),
        )

    def meteorology(
        self, files: Sequence[NetcdfFile], items: Items, cache_dir: Path
    ) -> SampleLabels:
        """Return what the files say of the samples: coordinates along what they take of `ranges`.

        Attributes are those of variables that samples hold as the files do.
        """
        dim, where = self.sample_dim, items.where
        if not 0 < len(where) <= MAX_PLACED:
            why = f"of up to {MAX_PLACED} samples alone"
            return SampleLabels((dim,), left_out={**self.left_out, "all": why})
        numbers = np.array([each[:2] for each in where], dtype=np.int64)
        places = SamplePlaces((dim,), numbers[:, 0], {dim: numbers[:, 1]})
        as_stored = self.holds_as_stored
        chosen = {
            each.name: each.name if as_stored and not each.zscore else ""
            for each in self.sample_fields
        }
        windows, parts, single = self._taken(where)
        labels = labels_of_files(
            files,
            lambda file: describe_files([file], cache_dir=cache_dir),
            partial(whole_variables, cache_dir=cache_dir),
            chosen,
            places,
            windows=windows,
        )
        coordinates, left_out = [], {**self.left_out, **labels.left_out}
        for each in labels.coordinates:
            axes = tuple(axis for axis, name in enumerate(each.dims) if name in single)
            dims = tuple(name for name in each.dims if name not in single)
            one = msgspec.structs.replace(each, dims=dims, values=np.squeeze(each.values, axes))
            try:
                is_cut = not set(parts).isdisjoint(dims)
                coordinates.append(one.cut(parts, max_nbytes=MAX_PARTS) if is_cut else one)
            except SampleError as error:
                left_out[each.name] = str(error)
        labels = msgspec.structs.replace(labels, coordinates=tuple(coordinates), left_out=left_out)
        return labels.within({
            pair for each in self.spec() for pair in zip(each.dims, each.shape, strict=True)
        })  # fmt: skip

    def _taken(
        self, where: Sequence[Any]
    ) -> tuple[dict[str, slice], dict[str, list[slice]], set[str]]:
        """Return what all samples take of dimensions, what each takes, and which they lack."""
        windows: dict[str, slice] = {}
        parts: dict[str, list[slice]] = {}
        single: set[str] = set()
        if type(self).ranges is Recipe.ranges or len(where) > MAX_COMPARED:
            return windows, parts, single
        every = [self.ranges(each) for each in where]
        for dim in every[0]:
            own = [_as_slice(each[dim]) for each in every]
            if dim == self.sample_dim:
                continue
            if own.count(own[0]) < len(own):
                parts[dim] = own
                continue
            windows[dim] = own[0]
            if isinstance(every[0][dim], int):
                single.add(dim)
        return windows, parts, single

    @property
    def holds_as_stored(self) -> bool:
        """Whether samples hold variables as the files do."""
        return type(self).preprocess is Recipe.preprocess and not self.channel_groups

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, checked against the recipe; what was learnt is kept."""
        opened = inspect_files(files, cache_dir=locator.cache_dir, progress=locator.progress)
        self.channel_groups = self.channel_groups_of(opened[0])
        for file in opened:
            self.check(file, opened[0])
        names = [each.name for each in self.sample_fields]
        coordinates = coordinates_of(opened[0], names, (self.sample_dim,), {})
        whole = partial(whole_variables, cache_dir=locator.cache_dir)
        compare_coordinates(opened, coordinates, whole)
        self.keep([only_variables(file, names) for file in opened])
        return tuple(opened)

    def keep(self, files: Sequence[NetcdfFile]) -> None:
        """Keep what reading needs: travels to the workers, what files have alike once."""
        known: dict[bytes, ChunkedVariable] = {}

        def shared(each: ChunkedVariable) -> ChunkedVariable:
            return each if each.is_in_chunks else known.setdefault(ENCODER.encode(each), each)

        self.opened = tuple(
            msgspec.structs.replace(
                file, variables={name: shared(each) for name, each in file.variables.items()}
            )
            for file in files
        )
        every = [each for file in self.opened for each in file.variables.values()]
        self.fused = ("read", "decode") if any(each.only_library for each in every) else ()
        self._find_chunks(self.sample_dim, every)

    def channel_groups_of(self, first: NetcdfFile) -> tuple[ChannelGroup, ...]:
        """Return the arrays of a sample, where they follow from what the files hold."""
        return self.channel_groups

    @property
    def sample_fields(self) -> tuple[RecipeVariable, ...]:
        """The variables a sample is made of, each once."""
        by_name = {each.name: each for each in self.fields}
        stacked = dict.fromkeys(name for group in self.channel_groups for name in group.fields)
        return tuple(by_name[name] for name in stacked) if stacked else self.fields

    def dims_of(self, each: RecipeVariable) -> tuple[str, ...]:
        """Return the dimensions of a variable."""
        return each.dims or tuple(axis.name for axis in self.axes)

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
            self._check_field(file, each)

    def _check_field(self, file: NetcdfFile, each: RecipeVariable) -> None:
        dims = self.dims_of(each)
        without = tuple(dim for dim in dims if dim != self.sample_dim)
        allowed = (dims, without) if each.is_static else (dims,)
        variable = file.variables.get(each.name)
        if variable is None:
            raise FileFormatError(
                f"{file.path}: has no variable {each.name!r}; expected a file of {self.name} with "
                + ", ".join(one.name for one in self.sample_fields)
            )
        if variable.dims not in allowed or np.dtype(variable.packing.dtype).kind != "f":
            raise FileFormatError(
                f"{file.path}: variable {each.name!r} is {np.dtype(variable.packing.dtype).name} "
                f"({', '.join(variable.dims)}), expected floats "
                + " or ".join(f"({', '.join(one)})" for one in allowed)
            )

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return the samples: each index along the sample dimension, file after file.

        Files whose times do not follow each other, as forecasts of the same lead times, are rows
        of their own.
        """
        return items_along(
            self.sample_dim,
            files,
            time_unit=self.time_unit,
            splits=self.splits,
            is_distinct=self.is_distinct,
        )

    def _fitted(self, items: Items, n_files: int) -> list[int]:
        """Return the files whose first sample is in the split ``train``; all where none is."""
        firsts: dict[int, int] = {}
        for number, where in enumerate(items.where):
            firsts.setdefault(where[0], number)
        training = set(items.splits.get("train", ()))
        return [n for n in range(n_files) if firsts.get(n) in training] or list(range(n_files))

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

    def files_of(self, where: Any) -> Sequence[int]:
        """Return the numbers of the files that a sample takes variables of: its own."""
        return where[:1]  # type: ignore[no-any-return]

    def ranges(self, where: Any) -> dict[str, int | slice]:
        """Return what a sample takes of dimensions: an index, or a slice; the others are whole."""
        return {self.sample_dim: where[1]}

    def hyperslabs(self, where: Any) -> list[Hyperslab]:
        """Return what a sample takes of its files: its `ranges` of each variable."""
        ranges = self.ranges(where)
        return [
            Hyperslab(name, ranges, number)
            for number in self.files_of(where)
            for name in self._file(number).variables
        ]

    def read(self, where: Any) -> Any:
        """Return the bytes of the sample's hyperslabs; their arrays where the library must read."""
        slabs = self._slabs(where)
        if self.fused:
            return {each.array: _through_library(each, file) for each, file in slabs}
        boxes = [_box(each, file, self.sample_dim) for each, file in slabs]
        return read_boxes(self._chunks, boxes, (where[0], where[1]))

    def decode(self, raw: Raw, where: Any) -> Arrays:
        """Return the sample's arrays by name, as ``xarray.open_dataset`` decodes them."""
        arrays = {}
        for (slab, file), numbers in zip(self._slabs(where), raw.arrays(), strict=True):
            variable = file.variables[slab.variable]
            values = unpack(numbers, variable.packing)
            if numbers.ndim == len(variable.dims):  # of a box, which keeps all dimensions
                values = np.asarray(values[_indexes(slab, variable)])
            arrays[slab.array] = values
        return arrays

    def _slabs(self, where: Any) -> list[tuple[Hyperslab, NetcdfFile]]:
        """Return the hyperslabs of a sample, each with its file."""
        return [
            (each, self._file(where[0] if each.file is None else each.file))
            for each in self.hyperslabs(where)
        ]

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain xarray loop: the same parts of variables, and our `preprocess`."""
        options = self.xarray_options
        return make_plain_loop(index, self._parts_of, self.preprocess, **options)

    def _parts_of(self, where: Any) -> list[VariablePart]:
        """Return what xarray has to read of a sample, as `hyperslabs` says it."""
        return [
            VariablePart(
                str(file.path),
                file.variables[each.variable].name,
                each.ranges,
                name=each.array,
            )
            for each, file in self._slabs(where)
        ]

    def chunks_of(self, where: Any) -> list[tuple[SampledVariable, Place]]:
        """Return the chunks that a sample takes; none of parts of an index along the dimension."""
        own, (number, index) = type(self), where[:2]
        is_of_index = own.hyperslabs is Recipe.hyperslabs and own.ranges is Recipe.ranges
        if self.fused or not is_of_index:
            return []
        if number not in self._sampled:
            self._sampled[number] = [
                SampledVariable(range_file(file.path), each, [self.sample_dim], name)
                for file in map(self._file, self.files_of(where))
                for name, each in file.variables.items()
            ]
        return chunks_of_sample(self._sampled[number], (index,))

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
            scale = self.normalisation.scales.get(name)
            if scale is None:
                stacked[channel] = arrays[name]
                continue
            np.subtract(arrays[name], scale.mean, out=scored)
            stacked[channel] = np.divide(scored, scale.divisor, out=scored)
        return stacked

    def _file(self, number: int) -> NetcdfFile:
        if not self.opened:
            raise OptionError(f"{self.name}: call samples() before reading a sample")
        return self.opened[number]

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples' values follow from, JSON-ready; for manifests of stores.

        ``fitted`` are the names of the files that z-scores are over.
        """
        scored = {
            "formula": "(x - mean) / std, ddof 0; a std of 0 divides by 1",
            "over": "all values, per variable",
            "per_point": [each.name for each in self.fields if each.zscore == "point"],
            "files": list(fitted),
            "sha256": self.normalisation.checksum(),
        }
        facts = {
            **self.facts([file.path for file in files]),
            "options": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self.chosen.items()
            },
            "schema": {each.name: each.units for each in self.fields},
            "source": self.source,
        }
        return {**facts, "normalisation": scored} if fitted else facts

    # ---- the stand-in

    def times(self, key: FileKey, n_steps: int) -> NDArray[np.datetime64]:
        """Return the times of a stand-in's file: from its first key on that is a date."""
        first = next(each for each in key.values() if DATE.fullmatch(each))
        start, step = np.datetime64(first, "h"), np.timedelta64(self.step_hours, "h")
        behind = np.datetime64(first) + PERIODS[first.count("-")]
        whole = behind.astype("M8[h]") - start
        n_all = self.n_steps or -(-whole // step)
        return start + step * np.arange(min(n_all, n_steps or n_all))

    def length(self, axis: Axis, key: FileKey, plan: StandIn) -> int:
        """Return the length of a dimension of a stand-in's file."""
        if axis.name == self.sample_dim and not axis.length:
            return len(self.times(key, plan.n_steps))
        if not axis.length:
            raise IobenchError(f"{self.name}: axis {axis.name!r} needs a length for a stand-in")
        return axis.length

    def stored_dims(self, each: RecipeVariable) -> tuple[str, ...]:
        """Return the dimensions of a variable of the stand-in: static ones are there once."""
        dims = self.dims_of(each)
        return tuple(dim for dim in dims if not (each.is_static and dim == self.sample_dim))

    def values(self, each: RecipeVariable, key: FileKey, plan: StandIn) -> NDArray[Any]:
        """Return the numbers of a variable of a stand-in's file, of the shape it is stored in.

        They follow from the seed, the file and the variable alone. By default smooth waves with
        noise between the variable's bounds.
        """
        lengths = {axis.name: self.length(axis, key, plan) for axis in self.axes}
        stored = tuple(lengths[dim] for dim in self.stored_dims(each))
        shape, what = stored, (each.name, *key.values())
        if each.is_static:
            dims = [dim for dim in self.dims_of(each) if dim != self.sample_dim]
            shape, what = tuple(lengths[dim] for dim in dims), (each.name,)
        numbers: tuple[int | str, ...] = (plan.seed, self.synthesis_version, *what)
        bounds = each.low, each.high
        smooth = smooth_values(shape, *bounds, *numbers, noise=each.noise, dtype=each.dtype)
        return np.broadcast_to(smooth, stored)

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        """Write a file of a stand-in: its axes, then the variables, each in one piece."""
        axes: dict[str, tuple[NDArray[Any], str]] = {}
        for axis in self.axes:
            numbers = np.arange(self.length(axis, key, plan)).astype(np.float64)
            axes[axis.name] = axis.first + axis.step * numbers, axis.units
            if axis.name == "time":
                hours = self.times(key, plan.n_steps).astype("M8[h]") - SINCE
                units = f"hours since {SINCE.astype('M8[D]')} 00:00:00"
                axes["time"] = hours.astype(np.float64), units
        with writing_library("netCDF4", self.name).Dataset(path, "w") as file:
            file.setncatts(dict(self.attributes))
            define_axes(file, axes, calendar="proleptic_gregorian")
            for each in self.fields:
                stored = file.createVariable(
                    each.name, each.dtype, self.stored_dims(each), contiguous=True, fill_value=False
                )
                if each.units:
                    stored.units = each.units
                stored[:] = self.values(each, key, plan)

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a file of a stand-in."""
        lengths = {axis.name: self.length(axis, key, plan) for axis in self.axes}
        return (32 << 10) + sum(
            int(np.prod([lengths[dim] for dim in self.stored_dims(each)], dtype=np.int64))
            * np.dtype(each.dtype).itemsize
            for each in self.fields
        )


def only_variables(file: NetcdfFile, names: Sequence[str]) -> NetcdfFile:
    """Return a file with these variables alone, in this order: what travels to the workers."""
    variables = {name: file.variables[name] for name in names if name in file.variables}
    return msgspec.structs.replace(file, variables=variables, skipped={})


def _box(slab: Hyperslab, file: NetcdfFile, sample_dim: str) -> Box:
    """Return what is read of a variable: an index of the sample dimension, or a box."""
    variable = file.variables[slab.variable]
    index = slab.ranges.get(sample_dim)
    if isinstance(index, int) and len(slab.ranges) == 1 and not slab.of_all:
        return index_box(range_file(file.path), variable, variable.axis(sample_dim), index)
    start, stop = _ends(slab, variable)
    has_samples = sample_dim in variable.dims and not slab.of_all
    axis = variable.dims.index(sample_dim) if has_samples else -1
    return make_box(file, slab.variable, start, stop, axis=axis, of_all=slab.of_all)


def _through_library(slab: Hyperslab, file: NetcdfFile) -> NDArray[Any]:
    variable = file.variables[slab.variable]
    ends = zip(*_ends(slab, variable), strict=True)
    read = read_through_library(file, variable, tuple(slice(*each) for each in ends))
    return np.asarray(read[_indexes(slab, variable)])


def _as_slice(part: int | slice) -> slice:
    return part if isinstance(part, slice) else slice(part, part + 1 or None)


def _ends(slab: Hyperslab, variable: ChunkedVariable) -> tuple[list[int], list[int]]:
    """Return the first index and the one after the last along each dimension."""
    ends = [
        _as_slice(slab.ranges.get(dim, slice(None))).indices(length)[:2]
        for dim, length in zip(variable.dims, variable.shape, strict=True)
    ]
    return [start for start, _ in ends], [stop for _, stop in ends]


def _indexes(slab: Hyperslab, variable: ChunkedVariable) -> tuple[Any, ...]:
    """Return what takes the dimensions of single indexes off a box."""
    return tuple(
        0 if isinstance(slab.ranges.get(dim), int) else slice(None) for dim in variable.dims
    )
