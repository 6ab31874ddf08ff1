"""Files of a set: whether they mean the same but for the sample dimension, and what they hold.

One check for every container and command: in which order coordinates of other dimensions lie,
units, repeated times; files that hold other variables of the same samples are merged.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.datasets.file_variables import holds_times, numbers_of, sample_names, units_of
from iobench.errors import FileFormatError
from iobench.files.urls import URL

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.file_variables import Selection, SourceFile

Order = Mapping[str, "NDArray[np.int64]"]
"""Of a file that lies otherwise than the first: the index there of each index, by dimension."""

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
FORWARD: Final = slice(None)
BACKWARD: Final = slice(None, None, -1)
EASTWARD: Final = re.compile("degrees?_?(east|E)")
MAX_REMOTE_FILES: Final = 64
"""Behind URLs each coordinate is a request: of more files than this the last is compared."""


class Agreement(msgspec.Struct, frozen=True, eq=False):
    """How files lie, which coordinates mean the same in all, and what users are to know.

    ``orders`` has the path of each file that lies otherwise than the first.
    """

    orders: Mapping[Path, Order]
    same: frozenset[str]
    notes: Sequence[str]

    def in_order(
        self, file: Any, name: str, values: NDArray[Any], dims: Sequence[str]
    ) -> NDArray[Any]:
        """Return values of a variable of a file in the order that the first file has."""
        return in_order(values, dims, self.orders.get(holder(file, name).path, {}))


NO_AGREEMENT: Final = Agreement({}, frozenset(), ())


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


def agreement(
    files: Sequence[Any],
    coordinates: Mapping[str, tuple[str, ...]],
    whole: Callable[..., Mapping[str, Sequence[NDArray[Any] | None]]],
    *,
    are_places: bool = False,
) -> Agreement:
    """Return in which order files lie, by what their coordinates say.

    ``whole(files, names, digest=None)`` returns by name what each file has, or digests of it.
    """
    if len(files) == 1:
        return Agreement({}, frozenset(), [])
    compared = [files[0], *(files[-1:] if is_far(files) else files[1:])]
    by_name = whole(compared, list(coordinates), digest=digest)
    orders: dict[Path, Order] = {}
    notes, differing, settled = list[str](), set[str](), set[str]()
    by_rank = sorted(coordinates.items(), key=lambda each: (len(each[1]), each[1] != each[:1]))
    for name, dims in by_rank:
        pairs = list(zip(compared, by_name[name], strict=True))
        lacking = [file for file, own in pairs if own is None and {*dims} <= {*file.dims}]
        known = [(file, own) for file, own in pairs if own is not None]
        turned, apart = [], []
        for file, own in known[1:]:
            first, expected = known[0]
            order = orders.get(file.path, {})
            if order.keys().isdisjoint(dims) and own.tobytes() == expected.tobytes():
                continue
            values, stored = (whole([each], [name])[name][0] for each in (first, file))
            assert values is not None
            assert stored is not None
            other = in_order(stored, dims, order)
            index = _index(values, other, [dim not in settled for dim in dims])
            if index is None and _is_east(first, name):
                index = _index(values % 360, other % 360, [dim not in settled for dim in dims])
            if index is not None:
                parts = zip(dims, values.shape, index, strict=True)
                more = {dim: np.arange(n)[part] for dim, n, part in parts if part is not FORWARD}
                turned += [file] * bool(more)
                if more or not same_values(values, other):  # another meridian
                    orders[file.path] = {**order, **more}
            elif holds_times(first, name) or (are_places and len(dims) > 1):
                apart.append(file)
            else:
                raise FileFormatError(_refusal(file, first, name, other, values))
        settled.update(dims)
        differing.update([name] * bool(apart or lacking))
        for some, what in (
            (turned, "lies in another order in {} than in {}, which samples have"),
            (apart, "has other values in {} than in {}: samples are put together index by index"),
            (lacking, "is missing in {}: it is taken to be that of {}"),
        ):
            if some and known:
                others = f" and {len(some) - 1} more" if len(some) > 1 else ""
                where = what.format(f"{some[0].path.name}{others}", known[0][0].path.name)
                notes.append(f"coordinate {name!r} {where}")
    return Agreement(orders, frozenset(by_name.keys() - differing), notes)


def in_order(values: NDArray[Any], dims: Sequence[str], order: Order) -> NDArray[Any]:
    """Return values along dimensions in the order that the first file has."""
    for axis, dim in enumerate(dims):
        if dim in order:
            values = values.take(order[dim], axis)
    return values


def _index(
    first: NDArray[Any], other: NDArray[Any], may_turn: Sequence[bool]
) -> tuple[Any, ...] | None:
    """Return the index that makes a coordinate the first one; None where none does."""
    if first.shape != other.shape:
        return None
    directions = [(FORWARD, BACKWARD) if free else (FORWARD,) for free in may_turn]
    indexes: list[tuple[Any, ...]] = list(itertools.product(*directions))
    if may_turn == [True] and len(np.unique(first)) == len(first):
        indexes.append((np.argsort(other)[np.argsort(np.argsort(first))],))
    return next((index for index in indexes if same_values(first, other[index])), None)


def _is_east(file: Any, name: str) -> bool:
    return name.lower() in ("lon", "longitude") or bool(EASTWARD.fullmatch(units_of(file, name)))


def _refusal(file: Any, first: Any, name: str, other: NDArray[Any], values: NDArray[Any]) -> str:
    is_zarr = hasattr(file, "zarr_format")
    opened = f"xarray.open_{'zarr' if is_zarr else 'dataset'}({str(file.path)!r})"
    written = f"to_zarr(NEW, zarr_format={file.zarr_format})" if is_zarr else "to_netcdf(NEW)"
    actual, expected = (
        " ... ".join(f"{each:g}" if each.dtype.kind in "iuf" else f"{each}" for each in ends)
        for ends in (some.reshape(-1)[[0, -1]] for some in (other, values))
    )
    return (
        f"{file.path}: coordinate {name!r} has other values: {actual}, expected {expected} as in "
        f"{first.path}; give files of one grid and the same levels at a time, or, where its values "
        f"do not matter, {opened}.drop_vars({name!r}).{written}"
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


def distinct_samples(
    files: Sequence[Any],
    times: Sequence[NDArray[Any]],
    sample: Callable[[Any, int], Mapping[str, NDArray[Any]]],
    scalars: Callable[[Any], Mapping[str, float]],
    dim: str,
) -> tuple[NDArray[np.bool_], str]:
    """Return which samples are kept where a time is there twice, and a note of it.

    Of equal ones the first; all of files that are members or forecasts: of the same times, or with
    different values of a coordinate of one number. ``times`` are those of each file, as
    `exact_times` has them; ``sample`` returns the arrays of a sample, ``scalars`` the single
    numbers of a file.
    """
    every = np.concatenate(times)
    distinct = np.ones(len(every), dtype=bool)
    _, firsts, numbers = np.unique(every, return_index=True, return_inverse=True)
    is_known = (every == every) & (every != np.iinfo(np.int64).min)
    again = np.flatnonzero((firsts[numbers] < np.arange(len(every))) & is_known)
    starts = np.cumsum([0, *map(len, times)])

    def place(sample: int) -> tuple[int, int]:
        number = int(np.searchsorted(starts, sample, "right")) - 1
        return number, sample - int(starts[number])

    note = ""
    for here in again.tolist():
        (number, index), (earlier, at) = place(here), place(int(firsts[numbers[here]]))
        file, other = files[number], files[earlier]
        arrays, expected = sample(file, index), sample(other, at)
        differs = [name for name in arrays if arrays[name].tobytes() != expected[name].tobytes()]
        distinct[here] = bool(differs)
        if not differs:
            note = (
                f"{len(again)} of {len(distinct)} samples along {dim} are of a time that is there "
                f"before, and equal to that sample bit for bit (index {index} of {file.path.name} "
                f"as index {at} of {other.path.name}): taken once"
            )
        elif number != earlier and (
            set(times[number].tolist()) == set(times[earlier].tolist())
            or scalars(file) != scalars(other)
        ):
            return np.ones_like(distinct), (
                f"{len(again)} of {len(distinct)} samples have a {dim} that is there before: all "
                f"are kept, those of {file.path.name} and {other.path.name} as members, or "
                "forecasts"
            )
        else:
            repeated = map(place, again.tolist())
            doubled = [each for owner, each in repeated if owner == number]
            raise FileFormatError(
                f"{file.path}: index {index} along {dim} is of the same time as index {at} of "
                f"{other.path}, with other values of {differs[0]!r}; leave a file out, or write it "
                f"again without these: xarray's isel({{{dim!r}: [at for at in "
                f"range({len(times[number])}) if at not in {doubled}]}})"
            )
    return distinct, note


def variables_of_files(
    files: Sequence[SourceFile], selection: Selection, dims: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return which variables of a sample each file has."""
    every = dict.fromkeys(name for file in files for name in file.variables)
    selection.check_names(
        list(every), {name: why for file in files for name, why in file.skipped.items()}
    )
    return [sample_names(file, selection, dims) for file in files]


def holder(file: Any, name: str) -> Any:
    """Return the file that holds a variable: one of those that were merged."""
    return getattr(file, "others", {}).get(name, file)


def merged_files(
    files: Sequence[Any],
    names: Sequence[tuple[str, ...]],
    dims: Sequence[str],
    places: Callable[[Sequence[Any]], Sequence[bytes]],
) -> list[Any]:
    """Return files that have all variables: ``others`` of each says which lie elsewhere."""
    if len(set(map(frozenset, names))) == 1:
        return list(files)
    every = dict.fromkeys(name for own in names for name in own)
    shared = ",".join(name for name in every if all(name in own for own in names))
    advice = f", or take what all have: --variables {shared}" if shared else ""
    same = f"for the same {' and '.join(dims)}"
    by_place: dict[bytes, list[tuple[tuple[str, ...], Any]]] = {}
    for place, file, own in zip(places(files), files, names, strict=True):
        by_place.setdefault(place, []).append((own, file))
    merged = []
    for parts in by_place.values():
        held = dict.fromkeys(name for own, _ in parts for name in own)
        first, *others = [file for _, file in sorted(parts, key=lambda part: sorted(part[0]))]
        if sum(len(own) for own, _ in parts) > len(held):
            raise FileFormatError(
                f"{first.path}: has variables {same} as {others[0].path}, and other files have "
                f"other variables; name files of one member, or forecast, at a time{advice}"
            )
        if lacking := [name for name in every if name not in held]:
            other = next(file for own, file in zip(names, files, strict=True) if lacking[0] in own)
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


def with_one_dtype(
    files: Sequence[Any], names: Sequence[tuple[str, ...]]
) -> tuple[Sequence[Any], list[str]]:
    """Return files whose variables have one dtype each, and a line for each that is made wider.

    Where that is exact: floats of several widths, and whole numbers up to 32 bits as float64.
    """
    dtypes: dict[str, set[np.dtype[Any]]] = {}
    for file, own in zip(files, names, strict=True):
        for name in own:
            dtypes.setdefault(name, set()).add(np.dtype(file.variables[name].packing.dtype))
    wide = {
        name: np.result_type(*several)
        for name, several in dtypes.items()
        if len(several) > 1 and all(each.kind == "f" or each.itemsize <= 4 for each in several)
    }

    def widened(each: Any) -> Any:
        dtype = wide.get(each.name)
        if dtype is None or each.packing.dtype == dtype.str:
            return each
        packing = replace(each.packing, dtype=dtype.str, narrow=each.packing.dtype)
        return replace(each, packing=packing)

    if wide:
        files = [
            replace(file, variables={name: widened(each) for name, each in file.variables.items()})
            for file in files
        ]
    return files, [
        f"variable {name!r} has several dtypes in files "
        f"({', '.join(sorted(each.name for each in dtypes[name]))}): all are made {dtype.name}, "
        "which is exact"
        for name, dtype in wide.items()
    ]
