"""What files hold, by their metadata, and what a user asks of them: dimensions, variables."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunk_codecs import codec_name
from iobench.chunks.grib.field_cubes import describe_fields
from iobench.chunks.table_files import ROW
from iobench.datasets.source_files import file_kind, index_grib, inspect_files
from iobench.errors import FileFormatError, OptionError
from iobench.samples import Variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.source_file import SourceFile

EACH_FILE: Final = "file"  # as a sample dimension: each file is a sample
MOST_SAMPLES: Final = 1 << 29  # memory is taken for each: a billion are a few bytes of metadata


class Selection(msgspec.Struct, frozen=True):
    """The choices of a user."""

    # dimension along which one index is one sample, or several with commas, the slowest first;
    # None: not chosen yet
    sample_dim: str | None
    # names to use, in any order; empty: all that have the sample dimensions
    variables: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # which of them a model is trained towards
    group: str = ""  # of NetCDF files, whose variables are meant; of the root by default

    def asks_for(self, name: str) -> bool:
        """Return whether a variable was named."""
        return name in self.variables or name in self.targets

    def check_names(self, existing: Sequence[str], skipped: Mapping[str, str]) -> None:
        """Raise OptionError if a chosen variable is not there, listing those that are."""
        options = {"--variables": self.variables, "--target-variables": self.targets}
        for option, names in options.items():
            unknown = [name for name in names if name not in existing]
            if unknown:
                raise OptionError(
                    f"{option}: no variable {_with_reasons(unknown, skipped)}; the files have "
                    f"{', '.join(existing)}"
                )


def check_sample_dims(
    sample_dim: str | None, dimensions: Mapping[str, int], files: Sequence[Path]
) -> tuple[str, ...]:
    """Return the sample dimensions, or raise OptionError listing those that exist."""
    named = tuple(dim.strip() for dim in (sample_dim or "").split(","))
    if len(set(named)) < len(named):
        raise OptionError(f"--sample-dim {sample_dim}: expected each dimension once")
    missing = [dim for dim in named if dim not in dimensions]
    if sample_dim is not None and not missing:
        if (n_samples := math.prod(dimensions[dim] for dim in named)) > MOST_SAMPLES:
            raise FileFormatError(
                f"{files[0]}: claims {n_samples} samples along {sample_dim}, expected "
                f"{MOST_SAMPLES} at most; name another --sample-dim, or fetch it again"
            )
        return named
    listed = ", ".join(f"{dim} ({length})" for dim, length in dimensions.items()) or "none"
    listed = f"dimensions (lengths): {listed}"
    if sample_dim is None:
        once = [dim for dim, length in dimensions.items() if length == 1 and len(files) == 1]
        more = f"; of {once[0]} there is one: name more files, or their folder" if once else ""
        raise OptionError(
            f"{files[0]}: say which dimension counts samples with --sample-dim; {listed}{more}"
        )
    which = "such dimension" if len(named) == 1 else f"dimension {missing[0]!r}"
    more = f"; where each file is a sample, it is {EACH_FILE!r}" if len(files) > 1 else ""
    raise OptionError(f"--sample-dim {sample_dim}: {files[0]} has no {which}; {listed}{more}")


def check_not_in_groups(file: SourceFile) -> None:
    """Raise OptionError if a file has its variables in groups alone."""
    groups = [name.rstrip("/") for name in file.skipped if name.endswith("/")]
    if groups and not file.variables:
        raise OptionError(
            f"{file.path}: its variables lie in groups ({', '.join(groups)}); name one: "
            f"{file.path}#{groups[0]}"
        )


def with_file_dim(file: SourceFile, sample_dim: str | None) -> SourceFile:
    """Return a file with sample dimensions that it has one index of: a scalar, or `EACH_FILE`."""
    numbers = file.numbers
    one = {
        dim: 1
        for dim in (sample_dim or "").split(",")
        if dim not in file.dims and (dim == EACH_FILE or (dim in numbers and not numbers[dim].dims))
    }
    return replace(file, dims={**one, **file.dims}) if one else file


def choose_variables(
    file: SourceFile, selection: Selection, dims: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the variables of a sample, and for all others why they are left out."""
    selection.check_names(list(file.variables), file.skipped)
    left_out = {name: why for name, why in reasons(file, selection, dims).items() if why}
    chosen = tuple(name for name in file.variables if name not in left_out)
    if not chosen:
        raise OptionError(
            f"--sample-dim {','.join(dims)}: no variable of {file.path} has "
            f"{'it' if len(dims) == 1 else 'all of them'}; the file has "
            + ", ".join(f"{v.name} ({', '.join(v.dims)})" for v in file.variables.values())
            + (f"; left out: {_with_reasons(file.skipped, file.skipped)}" if file.skipped else "")
        )
    return chosen, {**file.skipped, **left_out}


def reasons(file: SourceFile, selection: Selection, dims: Sequence[str]) -> dict[str, str]:
    """Return for each variable of a file why it is no part of a sample, ``""`` if it is."""
    helpers = helper_names(file)
    there = {dim for each in file.variables.values() for dim in each.dims}
    # A dimension that the file has one index of, and no variable has, is that of the file itself.
    along = [dim for dim in dims if dim in there or file.dims.get(dim) != 1]

    def reason(each: ChunkedVariable) -> str:
        if selection.asks_for(each.name):
            return ""
        if selection.variables:
            return "not asked for"
        if each.name in helpers:
            return "a coordinate"
        if along or each.dims or EACH_FILE in dims:
            return lacking(along, each.dims)
        return "a single number"

    return {name: reason(each) for name, each in file.variables.items()}


def lacking(dims: Sequence[str], there: Sequence[str]) -> str:
    """Return which dimension of the samples a variable has not once, in words; ``""`` if none."""
    other = {dim: there.count(dim) for dim in dims if there.count(dim) != 1}
    if not other:
        return ""
    dim, times = next(iter(other.items()))
    return f"has the dimension {dim} {times} times" if times else f"lacks the dimension {dim}"


def _with_reasons(names: Iterable[str], reasons: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({reasons[name]})" if name in reasons else name for name in names)


def helper_names(file: SourceFile) -> set[str]:
    """Return the names of variables that only describe others."""
    names = {name for name in file.variables if name in file.dims}
    for variable in file.variables.values():
        for key in ("coordinates", "bounds", "grid_mapping"):
            names.update(variable.attributes.get(key, "").replace(":", " ").split())
    return names


def units_of(file: SourceFile, name: str) -> str:
    """Return the units of a variable, ``""`` where it has none."""
    own = file.numbers.get(name)
    return "" if own is None else own.attributes.get("units", "")


def holds_times(file: SourceFile, name: str) -> bool:
    """Return whether there is a variable that holds times: dates, or numbers by their units."""
    own = file.numbers.get(name)
    is_date = own is not None and "M8" in own.packing.stored
    return is_date or " since " in units_of(file, name)


def sample_variable(
    variable: ChunkedVariable, selection: Selection, dims: Sequence[str]
) -> Variable:
    """Return what one index of a variable along each of the sample dimensions is in a sample."""
    lengths = zip(variable.dims, variable.shape, strict=True)
    own = [(dim, n) for dim, n in lengths if dim not in dims]
    return Variable(
        name=variable.name,
        shape=tuple(length for _, length in own),
        dtype=variable.packing.dtype,
        dims=tuple(name for name, _ in own),
        units=variable.attributes.get("units", ""),
        role="target" if variable.name in selection.targets else "input",
    )


# ---- what files hold, by their metadata: no number of them is read

COUNTED: Final = frozenset(
    {"time", "valid_time", "date", "sample", "samples", "record", "event", "case", "example"}
)
"""Dimensions that count samples by their name, where no coordinate tells."""
GRID: Final = frozenset({"y", "x", "lat", "lon", "latitude", "longitude", "rlat", "rlon"})
"""Dimensions of one field, whatever their length."""
NAMELESS: Final = re.compile(r"phony_dim_\d+")
"""Dimensions that HDF5 has no names for."""


def describe_file(path: Path, *, cache_dir: Path, group: str = "") -> dict[str, Any]:
    """Return what a GRIB or NetCDF file, or a Zarr store, holds."""
    file = _inspected([path], cache_dir, group)
    helpers = helper_names(file)
    own = [each for name, each in file.variables.items() if name not in helpers]
    by_size = sorted(own, key=lambda each: -math.prod(each.shape))
    several = (dim for v in by_size for dim, n in zip(v.dims, v.shape, strict=True) if n > 1)
    return {
        "format": f"{file.kind} {file.zarr_format or ''}".rstrip(),
        "dims": dict(file.dims),
        "variables": [_variable(each) for each in own],
        "coordinates": [name for name in file.variables if name in helpers],
        "skipped": dict(file.skipped),
        "sample_dims": list(dict.fromkeys(several)),
    }


def _variable(variable: ChunkedVariable) -> dict[str, Any]:
    own = variable.attributes
    codecs = ", ".join(map(codec_name, variable.codecs)) or "none"
    if variable.library:
        codecs = f"by {variable.library}"
    return {
        "name": variable.name,
        "dims": list(variable.dims),
        "shape": list(variable.shape),
        "dtype": np.dtype(variable.packing.stored).name,
        "units": own.get("units", ""),
        "chunk": None if "messages" in own else list(variable.chunk) or None,
        "codec": own.get("messages") or variable.why_unread or codecs,
    }


def likely_sample_dim(
    files: Sequence[Path], *, cache_dir: Path, names: Sequence[str] = (), group: str = ""
) -> tuple[str, str] | None:
    """Return the dimension that most likely counts samples, of times or by name, and why."""
    file = _inspected(files, cache_dir, group)
    if file.kind in ("Parquet", "Arrow"):
        return ROW, "of the table"
    helpers = helper_names(file)
    variables = [each for name, each in file.variables.items() if name not in helpers]
    variables = [each for each in variables if each.name in names] or variables
    several = {dim for dim, length in file.dims.items() if length > 1 or len(files) > 1}
    if file.kind == "GRIB":
        times = [dim for dim in ("time", "step") if file.dims.get(dim, 1) > 1][:1]
        why = f"of which the messages have {file.dims[times[0]]:,}" if times else ""
    else:
        times = [dim for dim in file.dims if dim in several and holds_times(file, dim)]
        why = "whose coordinate holds times"
    times = [dim for dim in times if any(dim in each.dims for each in variables)]
    if not times:
        why = "by its name"
        held = dict.fromkeys(dim for each in variables for dim in each.dims)
        times = [dim for dim in held if dim.lower() in COUNTED and dim in several]
    if len(times) == 1:
        return times[0], why
    if not times and file.kind != "GRIB" and len(files) > 1:
        of_file = [name for name, each in file.numbers.items() if not each.dims]
        of_file = [name for name in of_file if holds_times(file, name)]
        of_file = [name for name in of_file if name.lower() in COUNTED] or of_file
        if len(of_file) == 1:
            return of_file[0], "of which each file has one time"
        is_named = [dim for dim in file.dims if not NAMELESS.match(dim)]
        if (set(is_named) <= GRID or file.kind == "npz") and variables:
            return EACH_FILE, "as none of their dimensions counts samples"
    return None


def _inspected(files: Sequence[Path], cache_dir: Path, group: str) -> SourceFile:
    """Return what the first of some files holds; of GRIB, all together."""
    kind = file_kind(files[0])
    if kind == "GRIB":
        return describe_fields(index_grib(files, cache_dir=cache_dir))
    (file,) = inspect_files(files[:1], cache_dir=cache_dir, group=group, kind=kind)
    check_not_in_groups(file)
    return file
