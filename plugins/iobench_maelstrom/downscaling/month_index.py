"""What a month's file of application A5 holds and where: learnt once, kept beside it.

The NetCDF library takes about 28 ms to tell it of a file, the kept index about one: with the 264
months of tier 2 that was seven seconds at every start.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Advance,
    Chunked,
    Contiguous,
    NetcdfFile,
    NetcdfVariable,
    Packing,
    Progress,
    decode_slab,
    inspect_netcdf,
    load_sidecar,
    read_extents,
    read_through_library,
    run_jobs,
    save_sidecar,
    slab_extents,
    where_slab,
)
from iobench.errors import FileFormatError
from iobench_maelstrom.ens10.target import hourly_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench_maelstrom.downscaling.schema import Tier

__all__ = ["Month", "all_values", "months_of"]

INDEX_VERSION = 2
SERIAL_FILES = 32
"""Fewer are inspected sooner by this process than by ones that must start first."""

Columns = dict[str, "NDArray[Any]"]
Month = tuple[NetcdfFile, "NDArray[np.datetime64]"]
"""A file with the variables of its tier alone, and its times; none where it has no time."""


def months_of(
    paths: Sequence[Path], tier: Tier, *, cache_dir: Path, progress: Progress
) -> list[Month]:
    """Return what each file holds, from its kept index or several inspected at once.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    tier : Tier
        Whose variables are looked for.
    cache_dir : Path
        Where an index goes whose file lies in a folder that cannot be written.
    progress : Progress
        Called with (files known, files).

    Raises
    ------
    FileFormatError
        If a file is not NetCDF, is cut short, or its time is not a coordinate.
    """
    kept = {number: _kept(path, tier, cache_dir) for number, path in enumerate(paths)}
    found = {number: month for number, month in kept.items() if month is not None}
    missing = [number for number, month in kept.items() if month is None]
    done = len(found)
    jobs = run_jobs(
        _inspect,
        [(paths[number], _wanted(tier)) for number in missing],
        processes=1 if len(missing) < SERIAL_FILES else None,
        progress=lambda more, _: progress(done + more, len(paths)),
        total=len(missing),
    )
    for job, month in jobs:
        number = missing[job]
        found[number] = month
        _keep(paths[number], tier, cache_dir, month)
    progress(len(paths), len(paths))
    return [found[number] for number in range(len(paths))]


def all_values(file: NetcdfFile, name: str) -> NDArray[Any]:
    """Return a whole variable of a file, decoded."""
    variable = file.variables[name]
    if variable.storage is None:
        return read_through_library(file, variable, dim=None, index=-1)
    slab = where_slab(file, variable, dim=None, index=-1)
    return decode_slab(slab, variable.packing, read_extents(slab_extents(slab)))


def _wanted(tier: Tier) -> tuple[str, ...]:
    return tier.dims[0], *(each.name for each in tier.fields)


def _inspect(job: tuple[Path, tuple[str, ...]], advance: Advance) -> Month:
    path, (time, *names) = job
    whole = inspect_netcdf(path)
    known = {name: whole.variables[name] for name in (time, *names) if name in whole.variables}
    file = dataclasses.replace(whole, variables=known, skipped={})
    times = _times(file, time) if time in known else np.empty(0, "datetime64[h]")
    advance(1)
    return file, times


def _times(file: NetcdfFile, name: str) -> NDArray[np.datetime64]:
    variable = file.variables[name]
    if variable.dims != (name,) or file.dims[name] == 0:
        raise FileFormatError(
            f"{file.path}: {name!r} has dimensions ({', '.join(variable.dims)}) of length "
            f"{file.dims.get(name, 0)}, expected a coordinate along {name!r} of at least 1"
        )
    units, calendar = (variable.attributes.get(key, "") for key in ("units", "calendar"))
    return hourly_times(file.path, all_values(file, name), units, calendar)


def _beside(path: Path) -> Path:
    """Return what the index is kept under: the file's own name is that of its moments."""
    return path.with_name(f"{path.name}.layout")


def _description(path: Path, tier: Tier) -> str:
    """Return what must not have changed for a kept index to hold."""
    state = path.stat()
    what = ["downscaling-layout", INDEX_VERSION, *_wanted(tier)]
    return json.dumps([state.st_size, state.st_mtime_ns, *what])


def _kept(path: Path, tier: Tier, cache_dir: Path) -> Month | None:
    if not path.exists():
        return None  # inspecting it says so
    columns = load_sidecar(_beside(path), cache_dir, description=_description(path, tier))
    return None if columns is None else _month(path, columns)


def _keep(path: Path, tier: Tier, cache_dir: Path, month: Month) -> None:
    columns = _columns(*month)
    if columns is not None:
        save_sidecar(_beside(path), cache_dir, columns, description=_description(path, tier))


def _columns(file: NetcdfFile, times: NDArray[np.datetime64]) -> Columns | None:
    """Return a month as arrays; None where an attribute is no number that could be kept."""
    columns: Columns = {"times": times.astype("datetime64[h]").astype(np.int64)}
    variables = {}
    for name, variable in file.variables.items():
        packing = variable.packing
        numbers = (variable.fill, packing.scale, packing.offset, *packing.fill_values)
        if not all(each is None or np.asarray(each).dtype.kind in "iuf" for each in numbers):
            return None
        variables[name] = {
            "dims": variable.dims,
            "shape": variable.shape,
            "stored": packing.stored,
            "dtype": packing.dtype,
            "numbers": [None if each is None else _coded(each) for each in numbers],
            "attributes": dict(variable.attributes),
            "storage": _storage_columns(name, variable, columns),
        }
    columns["layout"] = np.array(json.dumps([dict(file.dims), variables]))
    return columns


def _storage_columns(name: str, variable: NetcdfVariable, columns: Columns) -> Any:
    """Return a storage as JSON can hold it; tables of chunks go to the columns."""
    storage = variable.storage
    if isinstance(storage, Chunked):
        columns[f"{name}.offsets"] = storage.offsets
        columns[f"{name}.nbytes"] = storage.nbytes
        columns[f"{name}.masks"] = storage.masks
        return {"chunk": storage.chunk, "filters": storage.filters}
    return None if storage is None else {"offset": int(storage.offset)}


def _month(path: Path, columns: Columns) -> Month:
    dims, variables = json.loads(str(columns["layout"][()]))
    known = {name: _variable(name, each, columns) for name, each in variables.items()}
    times = columns["times"].astype("datetime64[h]")
    return NetcdfFile(path, dims, known, {}), times


def _variable(name: str, told: Mapping[str, Any], columns: Columns) -> NetcdfVariable:
    fill, scale, offset, *fill_values = (_number(each) for each in told["numbers"])
    storage = told["storage"]
    held: Contiguous | Chunked | None = None
    if storage is not None and "offset" in storage:
        held = Contiguous(storage["offset"])
    elif storage is not None:
        tables = (columns[f"{name}.{table}"] for table in ("offsets", "nbytes", "masks"))
        held = Chunked(_whole(storage["chunk"]), _whole(storage["filters"]), *tables)
    packing = Packing(told["stored"], told["dtype"], tuple(fill_values), scale, offset)
    return NetcdfVariable(
        name,
        tuple(told["dims"]),
        _whole(told["shape"]),
        packing,
        fill,
        held,
        told["attributes"],
    )


def _whole(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers)


def _coded(number: Any) -> tuple[str, str]:
    """Return a number exactly, with its dtype: packed values are unpacked in its precision."""
    value = np.asarray(number)
    return value.dtype.str, value.tobytes().hex()


def _number(coded: tuple[str, str] | None) -> Any:
    if coded is None:
        return None
    return np.frombuffer(bytes.fromhex(coded[1]), dtype=coded[0])[0]
