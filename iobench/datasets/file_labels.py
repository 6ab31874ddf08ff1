"""Coordinates of source files: which there are, whether files agree on them, those of samples.

Which variables of the first file are coordinates, bounds and grid mappings say the attributes of
the CF conventions that name others; they are read where files may differ.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, SampleLabels
from iobench.datasets.file_variables import holds_times
from iobench.datasets.positions import decode_parts, seconds_since_1970
from iobench.datasets.source_files import describe_source, whole_variables
from iobench.errors import FileFormatError, IobenchError, SampleError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.source_file import SourceFile

MAX_NBYTES: Final = 1 << 28
"""Of one coordinate that is kept: two of 16 million points each make a large grid."""
RELATIONS: Final = frozenset(
    {"coordinates", "bounds", "climatology", "grid_mapping", "formula_terms", "cell_measures"}
)
"""Attributes that name other variables."""
HORIZONTAL: Final = frozenset({
    "degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN",
    "degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE",
    "latitude", "longitude",
})  # fmt: skip
"""Units and standard names of places (CF conventions 1.11, sections 4.1 and 4.2)."""
ROUNDING: Final = 1e-6  # of a coordinate's largest value: what float32 numbers of it may differ by


class CoordinateNames:
    """The coordinates of the chosen variables of a file, those of dimensions first."""

    def __init__(
        self, file: SourceFile, chosen: Collection[str], sample_dims: Sequence[str]
    ) -> None:
        self.described = described = describe_source(file)
        numbers = file.numbers
        shapes = {name: (each.dims, each.shape) for name, each in numbers.items()}
        shapes |= {name: (dims, values.shape) for name, (dims, values) in described.texts.items()}
        self.shapes = {
            name: dict(zip(dims, shape, strict=True))
            for name, (dims, shape) in shapes.items()
            if len(set(dims)) == len(dims)
        }
        self.attributes = {name: described.variables.get(name, {}) for name in self.shapes}
        self.parents = {  # of bounds
            own[key]: name
            for name, own in self.attributes.items()
            for key in ("bounds", "climatology")
            if isinstance(own.get(key), str)
        }
        self.of_file = {dim for dim in sample_dims if self.shapes.get(dim) == {}}
        self.mappings = {n for n, own in self.attributes.items() if "grid_mapping_name" in own}
        variables = [numbers[name] for name in chosen if name in numbers]
        listed = " ".join(each.attributes.get("coordinates", "") for each in variables).split()
        places = {
            name
            for name, own in self.attributes.items()
            if {str(own.get(key)) for key in ("units", "standard_name")} & HORIZONTAL
        }
        dims = set(sample_dims).union(*(each.dims for each in variables))
        axes = [
            name
            for name, shape in self.shapes.items()
            if name in dims and (shape.keys() == {name} or name in self.of_file)
        ]
        # Names, and in formula terms and the like also what each stands for.
        every = (described.attributes, *self.attributes.values())
        texts = [own[key] for own in every for key in RELATIONS if isinstance(own.get(key), str)]
        words = {word for text in texts for word in text.replace(":", " ").split()}
        related = {*file.coordinates, *listed, *places, *self.mappings, *words}
        self.left_out: dict[str, str] = {}
        self.names = [*axes]
        for name, shape in self.shapes.items():
            own_dims = [*shape][:-1] if name in self.parents else shape
            if name not in related or name in {*chosen, *axes} or not dims.issuperset(own_dims):
                continue
            nbytes = 8 * int(np.prod([*shape.values()], dtype=np.int64))
            if nbytes <= MAX_NBYTES:
                self.names.append(name)
            else:
                self.left_out[name] = f"{nbytes} bytes, more than a store keeps of a coordinate"
        # Samples may have values of their own along their dimensions, or by file.
        self.moving = [
            name
            for name in self.names
            if not self.shapes[name].keys().isdisjoint(sample_dims)
            or (not self.shapes[name] and name in numbers and name not in self.mappings)
        ]
        # What files are to agree on, and what of it says where the numbers of samples are.
        self.fixed = [
            name
            for name in self.names
            if self.shapes[name] and name not in {*self.moving, *self.mappings}
        ]
        self.decisive = {*axes, *listed, *places}.intersection(self.fixed) - {*self.parents}


def compare_coordinates(
    files: Sequence[SourceFile],
    names: CoordinateNames,
    *,
    cache_dir: Path,
    are_places: bool = False,
) -> tuple[dict[str, str], list[str]]:
    """Return why samples lack a coordinate that files do not agree on, and notes for users.

    One that says where numbers are is to be equal; ``are_places`` allows for grids that move.
    """
    differ: dict[str, str] = {}
    if len(files) == 1:
        return differ, []
    digests = whole_variables(files, names.fixed, cache_dir=cache_dir, digest=_digest)
    for name in names.fixed:
        pairs = [*zip(files, digests[name], strict=True)]
        dims = names.shapes[name].keys()
        known = [(file, own.tobytes()) for file, own in pairs if own is not None]
        first, expected = known[0]
        lacking = [file for file, own in pairs if own is None and dims <= {*file.dims}]
        for file in lacking[:1]:
            differ[name] = f"is missing in {file.path.name}: taken to be that of {first.path.name}"
        for file in (file for file, own in known if own != expected):
            values = whole_variables([first, file], [name], cache_dir=cache_dir)[name]
            one, other = (np.asarray(each) for each in values)
            if _same_values(one, other):
                continue
            may_move = holds_times(first, name) or (are_places and len(dims) > 1)
            if name in names.decisive and not may_move:
                raise FileFormatError(
                    f"{file.path}: coordinate {name!r} has other values: {_ends(other)}, expected "
                    f"{_ends(one)} as in {first.path}; give files of one grid, levels and order at "
                    f"a time, or write it again with xarray: sel({name}=...) puts it in that "
                    f"order, drop_vars({name!r}) leaves it out"
                )
            differ[name] = (
                f"has other values in {file.path.name} than in {first.path.name}: samples are put "
                "together index by index"
            )
            break
    notes = [f"coordinate {name!r} {why}" for name, why in differ.items() if name in names.decisive]
    return differ, notes


def _ends(values: NDArray[Any]) -> str:
    ends = values.reshape(-1)[[0, -1]].tolist()
    return " ... ".join(f"{each:g}" if isinstance(each, float) else f"{each}" for each in ends)


def _digest(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a digest of values, their dtype and shape."""
    state = hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16)
    state.update(f"{values.dtype.str} {values.shape}".encode())
    return np.frombuffer(state.digest(), np.uint8)


def _same_values(first: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether coordinates are equal, but for the last digit of float32."""
    if first.shape != other.shape:
        return False
    if first.dtype.kind not in "iuf" or other.dtype.kind not in "iuf":
        return bool(np.array_equal(first, other))
    one, two = first.astype(np.float64), other.astype(np.float64)
    allowed = ROUNDING * float(np.nanmax(np.abs(one), initial=0.0))
    steps = np.abs(np.diff(one))
    if steps.size and (steps > 0).any():
        allowed = min(allowed, 0.01 * float(steps[steps > 0].min()))
    return bool(np.allclose(one, two, rtol=0, atol=allowed, equal_nan=True))


def label_samples(
    files: Sequence[SourceFile],
    chosen: Mapping[str, str],
    dims: tuple[str, ...],
    rows: NDArray[np.int64],
    *,
    cache_dir: Path,
    differ: Mapping[str, str] | None = None,
) -> SampleLabels:
    """Return what files of one grid say of samples: ``rows`` has file and indexes of each.

    ``chosen`` are variables of samples by their names in files, ``""`` for those that samples do
    not have; ``differ`` says why samples lack coordinates that files do not agree on.
    """
    try:
        known = CoordinateNames(files[0], chosen, dims)
        if differ is None:
            differ, _ = compare_coordinates(files, known, cache_dir=cache_dir)
    except IobenchError as error:  # the samples can be made all the same
        return SampleLabels(dims, left_out={"all": str(error)})
    moving = whole_variables(files, known.moving, cache_dir=cache_dir)
    coordinates, left_out, described = [], {**known.left_out, **differ}, known.described
    for name in known.names:
        shape = known.shapes[name]
        try:
            if SAMPLE_DIM in shape.keys() - set(dims):
                raise SampleError(f"along a dimension called {SAMPLE_DIM!r}, as samples are")
            if name in known.moving:
                values = moving[name]
            elif name in known.mappings:
                values = [np.zeros([*shape.values()], dtype=np.int32)]
            elif name in described.texts:
                values = [described.texts[name][1]]
            else:
                values = whole_variables(files[:1], [name], cache_dir=cache_dir)[name]
            parts = [each for each in values if each is not None]
            if len(parts) < len(values):
                raise SampleError("not read in every file")
            if name not in differ:
                coordinates.append(_coordinate(name, parts, files, known, dims, rows))
        except IobenchError as error:  # a coordinate that cannot be read ends no conversion
            left_out[name] = str(error)
    return SampleLabels(
        sample_dims=dims,
        coordinates=tuple(coordinates),
        variables={
            name: described.variables[own]
            for own, name in chosen.items()
            if name and own in described.variables
        },
        attributes=described.attributes,
        left_out=left_out,
    )


def _coordinate(
    name: str,
    parts: Sequence[NDArray[Any]],
    files: Sequence[SourceFile],
    known: CoordinateNames,
    sample_dims: tuple[str, ...],
    rows: NDArray[np.int64],
) -> Coordinate:
    """Return a coordinate of which each sample has a value, or all have the same one."""
    dims, attributes = tuple(known.shapes[name]), dict(known.attributes[name])
    is_moving = name in known.moving
    if parts[0].dtype.kind == "M":
        parts = [_seconds(part) for part in parts]
        attributes["units"] = TIME_UNITS
    owners = [file.numbers.get(known.parents.get(name, name)) for file in files]
    texts = [one.attributes for one in owners if one is not None and is_moving]
    units = [(one.get("units", ""), one.get("calendar", "")) for one in texts]
    if len(set(units)) > 1:
        times = decode_parts(parts, *zip(*units, strict=True))
        if times is None:
            raise SampleError("of several units or calendars in its files")
        parts = [_seconds(each) for each in times]
        if name not in known.parents:
            calendar = {"calendar": units[0][1]} if units[0][1] else {}
            attributes |= {"units": TIME_UNITS, **calendar}
    parts = parts if dims else [part.reshape(()) for part in parts]
    same = not dims and all(np.array_equal(part, parts[0]) for part in parts)
    if not is_moving or (same and name not in known.of_file):
        return Coordinate(name, dims, parts[0], attributes)
    rest = tuple(dim for dim in dims if dim not in sample_dims)
    own = [dim for dim in sample_dims if dim in dims]
    parts = [part.transpose([dims.index(dim) for dim in (*own, *rest)]) for part in parts]
    values = np.empty((len(rows), *parts[0].shape[len(own) :]), dtype=np.result_type(*parts))
    by_file = np.argsort(rows[:, 0], kind="stable")
    ends = np.searchsorted(rows[by_file, 0], np.arange(len(parts) + 1))
    for number, part in enumerate(parts):
        samples = by_file[ends[number] : ends[number + 1]]
        at = tuple(rows[samples, 1 + sample_dims.index(dim)] for dim in own)
        values[samples] = part[at] if own else part
    return Coordinate(name, (SAMPLE_DIM, *rest), values, attributes)


def _seconds(times: NDArray[Any]) -> NDArray[Any]:
    """Return times as seconds since 1970 of their calendar: whole, or fractions with NaN."""
    flat = times.reshape(-1)
    seconds = seconds_since_1970(flat.astype("M8[us]") if times.dtype.kind == "M" else flat)
    is_whole = bool((seconds % 1 == 0).all())  # NaN is none
    return (seconds.astype(np.int64) if is_whole else seconds).reshape(times.shape)
