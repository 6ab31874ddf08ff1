"""Files of a set: whether they mean the same but for the sample dimension, and what they hold.

One check for every container and command: in which order coordinates of other dimensions lie,
units, repeated times; files that hold other variables of the same samples are merged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.datasets.file_variables import holds_times, numbers_of, units_of
from iobench.errors import FileFormatError
from iobench.files.urls import URL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.file_variables import SourceFile

MAX_NBYTES: Final = 1 << 28
"""Of one coordinate that is kept: two of 16 million points each make a large grid."""
HORIZONTAL: Final = frozenset({
    "degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN",
    "degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE",
    "latitude", "longitude",
})  # fmt: skip
"""Units and standard names of places (CF conventions 1.11, sections 4.1 and 4.2)."""
ROUNDING: Final = 1e-6
"""Of a coordinate's largest value: what float32 numbers of it may differ by."""
MAX_REMOTE_FILES: Final = 64
"""Behind URLs each coordinate is a request: of more files than this the last is compared."""


def is_far(files: Sequence[Any]) -> bool:
    """Return whether too many files are behind URLs for each to be asked."""
    return len(files) > MAX_REMOTE_FILES and isinstance(files[0].path, URL)


def digest(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a digest of values, their dtype and shape."""
    state = hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16)
    state.update(f"{values.dtype.str} {values.shape}".encode())
    return np.frombuffer(state.digest(), np.uint8)


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


def coordinates_of(
    file: Any, names: Sequence[str], sample_dims: Sequence[str], texts: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the dimensions of what says where the numbers of a sample are along its own.

    ``texts`` has those of coordinates that are texts.
    """
    sampled = [file.variables[name] for name in names]
    dims = {dim for each in sampled for dim in each.dims}.difference(sample_dims)
    listed = {one for each in sampled for one in each.attributes.get("coordinates", "").split()}
    small = {
        name: each.dims
        for name, each in numbers_of(file).items()
        if name not in names and 8 * int(np.prod(each.shape, dtype=np.int64)) <= MAX_NBYTES
    }
    return {
        name: tuple(own)
        for name, own in {**small, **texts}.items()
        if own
        and dims.issuperset(own)
        and (tuple(own) == (name,) or name in listed or units_of(file, name) in HORIZONTAL)
    }


def compare_coordinates(
    files: Sequence[Any],
    coordinates: Mapping[str, tuple[str, ...]],
    whole: Callable[..., Mapping[str, Sequence[NDArray[Any] | None]]],
    *,
    are_places: bool = False,
) -> tuple[frozenset[str], list[str]]:
    """Return the coordinates that are the same in all files, and notes on those that may differ.

    ``whole(files, names, digest=None)`` returns by name what each file has, or digests of it;
    ``are_places`` of files of one sample each, whose grids may move.
    """
    compared = [files[0], *(files[-1:] if is_far(files) else files[1:])]
    by_name = whole(compared, list(coordinates), digest=digest)
    same, notes = set(coordinates), list[str]()
    for name, dims in coordinates.items():
        pairs = list(zip(compared, by_name[name], strict=True))
        lacking = [file for file, own in pairs if own is None and {*dims} <= {*file.dims}]
        known = [(file, own) for file, own in pairs if own is not None]
        moved = []
        for file, own in known[1:]:
            first, expected = known[0]
            if own.tobytes() == expected.tobytes():
                continue
            values, other = (whole([each], [name])[name][0] for each in (first, file))
            assert values is not None
            assert other is not None
            if same_values(values, other):
                continue
            if not (holds_times(first, name) or (are_places and len(dims) > 1)):
                raise FileFormatError(_refusal(file, first, name, other, values))
            moved.append(file)
        if moved or lacking:
            same.discard(name)
        for some, what in (
            (moved, "has other values in {} than in {}: samples are put together index by index"),
            (lacking, "is missing in {}: it is taken to be that of {}"),
        ):
            if some and known:
                others = f" and {len(some) - 1} more" if len(some) > 1 else ""
                where = what.format(f"{some[0].path.name}{others}", known[0][0].path.name)
                notes.append(f"coordinate {name!r} {where}")
    return frozenset(same), notes


def _refusal(file: Any, first: Any, name: str, other: NDArray[Any], values: NDArray[Any]) -> str:
    is_zarr = hasattr(file, "zarr_format")
    opened, expected_of = (
        f"xarray.open_{'zarr' if is_zarr else 'dataset'}({str(each.path)!r})"
        for each in (file, first)
    )
    written = f"to_zarr(NEW, zarr_format={file.zarr_format})" if is_zarr else "to_netcdf(NEW)"
    actual, expected = (
        " ... ".join(f"{each:g}" if each.dtype.kind in "iuf" else f"{each}" for each in ends)
        for ends in (some.reshape(-1)[[0, -1]] for some in (other, values))
    )
    advice = (
        "give files of one grid and the same levels at a time, or, where its values do not "
        f"matter, {opened}.drop_vars({name!r}).{written}"
    )
    if len(set(values.ravel().tolist())) == values.size and values.ndim == 1 and (
        np.array_equal(np.sort(values), np.sort(other))
    ):  # fmt: skip
        advice = f"write it in that order: {opened}.sel({name}={expected_of}[{name!r}]).{written}"
    return (
        f"{file.path}: coordinate {name!r} has other values: {actual}, expected {expected} as in "
        f"{first.path}; {advice}"
    )


def mixed_units(files: Sequence[SourceFile], names: Sequence[str]) -> list[str]:
    """Return a line for each variable that another file has in other units than the first."""
    notes = []
    for name in names:
        units = [(units_of(file, name), file.path.name) for file in files if name in file.variables]
        if other := next((each for each in units if each[0] != units[0][0]), None):
            notes.append(
                f"variable {name!r} has other units in {other[1]} ({other[0]!r}) than in "
                f"{units[0][1]} ({units[0][0]!r}): numbers are kept as they are"
            )
    return notes


def holder(file: Any, name: str) -> Any:
    """Return the file that holds a variable: one of those that were merged."""
    return getattr(file, "others", {}).get(name, file)


def merged_files(
    pairs: Sequence[tuple[Any, tuple[str, ...]]], places: Sequence[Any], dims: Sequence[str]
) -> list[Any]:
    """Return files that have all variables, of files with their own and where their samples lie.

    ``others`` of each says which lie elsewhere.
    """
    every = dict.fromkeys(name for _, own in pairs for name in own)
    shared = ",".join(name for name in every if all(name in own for _, own in pairs))
    advice = f", or take what all have: --variables {shared}" if shared else ""
    same = f"for the same {' and '.join(dims)}"
    by_place: dict[Any, list[tuple[Any, tuple[str, ...]]]] = {}
    for place, pair in zip(places, pairs, strict=True):
        by_place.setdefault(place, []).append(pair)
    merged = []
    for parts in by_place.values():
        held = [name for _, own in parts for name in own]
        first, *others = [file for file, _ in sorted(parts, key=lambda part: sorted(part[1]))]
        if len(held) > len(set(held)):
            raise FileFormatError(
                f"{first.path}: has variables {same} as {others[0].path}, and other files have "
                f"other variables; name files of one member, or forecast, at a time{advice}"
            )
        if lacking := [name for name in every if name not in held]:
            other = next(file for file, own in pairs if lacking[0] in own)
            raise FileFormatError(
                f"{first.path}: variable {lacking[0]!r} is missing, expected as in {other.path}: "
                f"no file has it {same}; add that file, or cut files alike{advice}"
            )
        merged.append(_merged(first, others) if others else first)
    return merged


def _merged(first: Any, others: Sequence[Any]) -> Any:
    """Return a file with the variables of others too."""
    fields = [each for each in ("dims", "variables", "dates", "described") if hasattr(first, each)]
    union = {each: dict(getattr(first, each)) for each in fields}
    held = {}
    for file in others:
        for each in fields:
            for name, one in getattr(file, each).items():
                if name not in union[each]:
                    union[each][name], held[name] = one, file
    skipped = {
        name: why
        for file in (first, *others)
        for name, why in file.skipped.items()
        if name not in union["variables"]
    }
    return replace(first, **union, skipped=skipped, others=held)
