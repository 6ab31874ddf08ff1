"""Whether files of a set mean the same but for the sample dimension.

One check for every container and command: coordinates of other dimensions, units, repeated times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets.cf_coordinates import HORIZONTAL, MAX_NBYTES
from iobench.errors import FileFormatError
from iobench.files.urls import URL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.chunk_manifest import StoredVariable
    from iobench.datasets.contract import SampleIndex
    from iobench.datasets.selection import SourceFile

Digests = Callable[[Sequence[Any], Sequence[str]], "Sequence[Mapping[str, str]]"]
"""Returns for each of some files the digest of each variable that it has."""

ROUNDING: Final = 1e-6
"""Of a coordinate's largest value: what float32 numbers of it may differ by."""
MAX_REMOTE_FILES: Final = 64
"""Behind URLs each coordinate is a request: of more files than this the last is compared."""


def compared_files(files: Sequence[Any]) -> Sequence[Any]:
    """Return the files whose coordinates are held against the first one's."""
    is_far = len(files) > MAX_REMOTE_FILES and isinstance(files[0].path, URL)
    return files[-1:] if is_far else files[1:]


def digest(values: NDArray[Any]) -> str:
    """Return a digest of numbers or times that are equal, whatever their dtype."""
    plain = values.astype("M8[ns]" if values.dtype.kind == "M" else np.float64) + (
        0 if values.dtype.kind == "M" else 0.0  # not -0.0
    )
    return hashlib.blake2b(np.ascontiguousarray(plain).tobytes(), digest_size=16).hexdigest()


def same_values(first: NDArray[Any], other: NDArray[Any]) -> bool:
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


def check_coordinates(
    files: Sequence[SourceFile],
    names: Sequence[str],
    sample_dims: Sequence[str],
    digests: Digests,
    read: Callable[[Any, str], NDArray[Any]],
) -> list[str]:
    """Return a line for each coordinate that cannot be held against the first file's.

    Parameters
    ----------
    files : sequence of SourceFile
        Of one schema.
    names, sample_dims : sequence of str
        The variables of a sample, and what samples are along.
    digests, read : callable
        Of coordinates of files; ``read`` returns their values, decoded.

    Raises
    ------
    FileFormatError
        If a coordinate has other values in a file, or the same in another order.
    """
    first, notes = files[0], []
    coordinates = _coordinates(first, names, sample_dims)
    if not coordinates or len(files) == 1:
        return []
    compared = compared_files(files)
    told = list(coordinates)
    (expected,), found = digests([first], told), digests(compared, told)
    values: dict[str, NDArray[Any]] = {}
    said = set()
    for file, own in zip(compared, found, strict=True):
        for name in coordinates:
            if own.get(name) == expected[name] or name in said:
                continue
            if name not in own and not set(coordinates[name].dims) <= set(file.dims):
                continue  # of another variable
            if name not in own:
                note = "is taken to be the same"
                notes.append(f"{file.path.name} has no coordinate {name!r} as {first.path.name}")
            else:
                if name not in values:
                    values[name] = read(first, name)
                other = read(file, name)
                if same_values(values[name], other):
                    continue
                _refuse(first, file, name, values[name], other)
                note = "samples are put together index by index"
                notes.append(f"coordinate {name!r} has other values in {file.path.name} than in "
                             f"{first.path.name}")  # fmt: skip
            notes[-1] += f": {note}"
            said.add(name)
    return notes


def _coordinates(
    file: SourceFile, names: Sequence[str], sample_dims: Sequence[str]
) -> dict[str, StoredVariable]:
    """Return what says where the numbers of a sample are, along its own dimensions."""
    dims = {dim for name in names for dim in file.variables[name].dims}
    told = {
        word for name in names
        for word in file.variables[name].attributes.get("coordinates", "").split()
    }  # fmt: skip
    dates: Mapping[str, StoredVariable] = getattr(file, "dates", {})
    return {
        name: each
        for name, each in (*file.variables.items(), *dates.items())
        if name not in names
        and each.dims
        and dims.issuperset(each.dims)
        and not set(sample_dims).intersection(each.dims)
        and (each.dims == (name,) or name in told or each.attributes.get("units") in HORIZONTAL)
        and 8 * int(np.prod(each.shape, dtype=np.int64)) <= MAX_NBYTES
    }


def _refuse(
    first: SourceFile, file: Any, name: str, values: NDArray[Any], other: NDArray[Any]
) -> None:
    """Raise FileFormatError unless samples have coordinates of their own: times, or a swath's."""
    variable = (file.variables.get(name) or file.dates[name])  # fmt: skip
    units = variable.attributes.get("units", "")
    is_zarr = hasattr(file, "zarr_format")
    opened = f"with d = xarray.{'open_zarr' if is_zarr else 'open_dataset'}({str(file.path)!r})"
    advice = f"write that file again, {opened}:"
    write = f"{'to_zarr' if is_zarr else 'to_netcdf'}(NEW)"
    flipped = next(
        (axis for axis in range(other.ndim) if same_values(values, np.flip(other, axis))), None
    )
    is_time = " since " in units or values.dtype.kind not in "iuf"
    is_east = values.ndim == 1 and (("degree" in units.lower() and "east" in units.lower())
                                    or name.lower() in ("lon", "longitude"))  # fmt: skip
    if flipped is not None and (other.size > 1):
        dim = variable.dims[flipped]
        what = f"runs the other way along {dim}"
        do = f"d.isel({{{dim!r}: slice(None, None, -1)}}).{write}"
    elif values.ndim == 1 and not is_time and same_values(np.sort(values), np.sort(other)):
        what = "has the same values in another order"
        order = np.argsort(other, kind="stable")[np.argsort(np.argsort(values, kind="stable"))]
        do = f"d.isel({{{variable.dims[0]!r}: {_spelled_order(order)}}}).{write}"
    elif is_east and same_values(np.sort(values % 360), np.sort(other % 360)):
        what = "counts longitude from another meridian"
        turned = f"(d[{name!r}] + 180) % 360 - 180" if values.min() < 0 else f"d[{name!r}] % 360"
        do = f"d.assign_coords({{{name!r}: {turned}}}).sortby({name!r}).{write}"
    elif is_time or values.ndim > 1:
        return
    else:
        what, advice = (
            "has other values",
            "give files of one grid and the same levels at a time,",
        )
        do = f"or, where its values do not matter, {opened}: d.drop_vars({name!r}).{write}"
    raise FileFormatError(
        f"{file.path}: coordinate {name!r} {what}: {_spelled(other)}, expected {_spelled(values)} "
        f"as in {first.path}; {advice} {do}"
    )


def _spelled(values: NDArray[Any]) -> str:
    flat = values.reshape(-1)
    spelled = [f"{each:g}" if values.dtype.kind in "iuf" else f"{each}" for each in flat[[0, -1]]]
    return f"{' ... '.join(spelled)} ({len(flat)})" if len(flat) > 1 else spelled[0]


def _spelled_order(order: NDArray[np.int64]) -> str:
    """Return indices as an expression: two pieces of a roll, else all of them."""
    turn = int(np.argmin(order))
    rolled = np.roll(np.arange(len(order)), turn)
    if (order == rolled).all():
        return f"[*range({int(order[0])}, {len(order)}), *range({int(order[0])})]"
    return str(order.tolist())


def mixed_units(files: Sequence[SourceFile], names: Sequence[str]) -> list[str]:
    """Return a line for each variable that another file has in other units than the first."""
    found = []
    for name in names:
        there = [(each.path.name, each.variables.get(name)) for each in files]
        units = [(path, one.attributes.get("units", "")) for path, one in there if one is not None]
        other = next((each for each in units if each[1] != units[0][1]), None)
        if other is not None:
            (first, here), (path, there_) = units[0], other
            found.append(
                f"variable {name!r} has other units in {path} ({_quoted(there_)}) than in {first} "
                f"({_quoted(here)}); numbers are kept as they are, and said to be of the first: "
                "convert them before, if they are not the same"
            )
    return found


def _quoted(units: str) -> str:
    return repr(units) if units else "none"


def times_there_twice(index: SampleIndex) -> list[str]:
    """Return a line on samples at a place that an earlier one has, where there are any.

    Where samples are along lead times, or are counted, other files have the same as a rule.
    """
    dims = index.dims
    units = {
        each.name: str(each.attributes.get("units", "")) for each in index.meteorology.coordinates
    }
    along = [index.along(dim) for dim in dims]
    places = [np.asarray(axis.positions, dtype=np.float64) for axis in along]
    if not dims or not all(map(len, places)):
        return []
    if not any(" since " in units.get(dim, "") for dim in dims):
        places += [np.asarray(axis.rows, dtype=np.float64) for axis in along if len(axis.rows)]
    if len(places) == 1 and (np.diff(places[0]) > 0).all():
        return []
    _, numbers = np.unique(np.stack(places), axis=1, return_inverse=True)
    numbers = numbers.reshape(-1)
    seen = np.unique(numbers, return_index=True)[1]
    is_first = np.zeros(len(numbers), dtype=bool)
    is_first[seen] = True
    again = np.flatnonzero(~is_first)
    if not len(again):
        return []
    first = int(again[0])
    before = int(seen[numbers[first]])
    have = "has" if len(again) == 1 else "have"
    return [
        f"{len(again)} of {len(index)} samples {have} a {' and '.join(dims)} that is there before: "
        f"{index.coordinate[first]!r} after {index.coordinate[before]!r}; all are kept, so leave "
        "files out where that is not meant"
    ]


def kept_once(
    paths: Sequence[Path],
    times: Sequence[NDArray[Any]],
    sample: Callable[[int, int], Mapping[str, NDArray[Any]]],
    are_apart: Callable[[int, int], bool],
    dim: str,
) -> tuple[list[NDArray[np.bool_]], str] | None:
    """Return which samples of each file are kept where a time is there twice, and a note of it.

    None where no time is there twice, or files are members or forecasts: of the same times, or told
    apart by other coordinates, with other values.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    times : sequence of ndarray
        Those of each, as `exact_times` has them.
    sample : callable
        Returns the arrays of a sample by the number of its file, and its index there.
    are_apart : callable
        Returns whether other coordinates tell two files apart: other forecasts, or members.
    dim : str
        The sample dimension.

    Raises
    ------
    FileFormatError
        If samples of one time differ.
    """
    every = np.concatenate(times)
    if len(np.unique(every)) == len(every):
        return None
    unknown = np.iinfo(np.int64).min
    kept = [np.ones(len(part), dtype=bool) for part in times]
    before: dict[float, tuple[int, int]] = {}
    last = ""
    first_times = [part.min(initial=every.max()) for part in times]
    for number in sorted(range(len(paths)), key=first_times.__getitem__):
        for index, time in enumerate(times[number].tolist()):
            here = number, index
            earlier = before.setdefault(time, here)
            if earlier == here or time == unknown or time != time:
                continue
            one, other = sample(*here), sample(*earlier)
            different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
            if different and number == earlier[0]:
                continue  # of one file: whoever wrote it meant both
            if different:
                again = np.isin(times[number], times[earlier[0]])
                if (again.all() and len(again) == len(times[earlier[0]])) or are_apart(
                    number, earlier[0]
                ):
                    return None
                raise FileFormatError(
                    f"{paths[number]}: index {index} along {dim} is of the same time as index "
                    f"{earlier[1]} of {paths[earlier[0]]}, with other values of {different[0]!r}; "
                    "leave a file out, or write it again without these: xarray's "
                    f"drop_isel({{{dim!r}: {np.flatnonzero(again).tolist()}}})"
                )
            kept[number][index] = False
            last = f"index {index} of {paths[number].name} as index {earlier[1]} of " + (
                paths[earlier[0]].name
            )
    dropped = sum(int((~each).sum()) for each in kept)
    if not dropped:
        return None
    return kept, (
        f"{dropped} of {sum(map(len, kept))} samples along {dim} are of a time that is there "
        f"before, and equal to that sample bit for bit ({last}): taken once"
    )
