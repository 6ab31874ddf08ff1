"""What NetCDF files hold, found in several processes and kept: thousands of files take minutes.

One sidecar serves all files of a folder, since reading one for each would take as long again. It
holds a schema, as JSON, once for all files that share it, and of each file its size, its time of
change, and where its numbers lie.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.extents import read_extents
from iobench.datasets.netcdf.file import (
    NetcdfFile,
    NetcdfVariable,
    decode_slab,
    inspect_netcdf,
    read_through_library,
    where_slab,
)
from iobench.datasets.netcdf.storage import Chunked, Contiguous, slab_extents
from iobench.datasets.packing import Packing
from iobench.datasets.processes import Advance, run_jobs
from iobench.datasets.sidecars import load_sidecar, save_sidecar
from iobench.errors import FileFormatError, MissingFileError, StorageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.contract import Progress

__all__ = ["inspect_files", "whole_variable"]

INSPECTION_VERSION = 3
SIDECAR = "netcdf-files"
FILES_PER_JOB = 16
FEW_FILES = 3 * FILES_PER_JOB
"""Up to so many are inspected sooner by this process than by ones that must start first."""
State = tuple[int, int]
"""Size in bytes and time of change in ns."""


def inspect_files(
    files: Sequence[Path], *, cache_dir: Path, progress: Progress
) -> list[NetcdfFile]:
    """Return what each NetCDF file holds; what was found out before is read from sidecars.

    Parameters
    ----------
    files : sequence of Path
        In any number of folders.
    cache_dir : Path
        Where sidecars go if a folder is not writable.
    progress : Progress
        Called with (files done, files).

    Raises
    ------
    FileFormatError, MissingFileError, StorageError, MissingExtraError
        As `inspect_netcdf`.
    """
    # Taken before a file is read: one that changes meanwhile is read again next time.
    states = {path: _state(path) for path in files}
    folders = dict.fromkeys(path.parent for path in files)
    kept = {folder: _load(folder, cache_dir) for folder in folders}
    found: dict[Path, NetcdfFile] = {}
    for path, state in states.items():
        entry = kept[path.parent].get(path.name)
        if entry is not None and entry.state == state:
            found[path] = entry.file(path)
    missing = [path for path in states if path not in found]
    n_kept = len(found)
    progress(n_kept, len(states))
    jobs = [missing[n : n + FILES_PER_JOB] for n in range(0, len(missing), FILES_PER_JOB)]
    for number, inspected in run_jobs(
        _inspect,
        jobs,
        processes=1 if len(missing) <= FEW_FILES else None,
        progress=lambda done, _: progress(n_kept + done, len(states)),
        total=len(missing),
    ):
        found.update(zip(jobs[number], inspected, strict=True))
    for path in missing:
        entry = _told(found[path], states[path])
        if entry is not None:
            kept[path.parent][path.name] = entry
    for folder in dict.fromkeys(path.parent for path in missing):
        _save(folder, cache_dir, kept[folder])
    return [found[path] for path in files]


def whole_variable(file: NetcdfFile, name: str) -> NDArray[Any]:
    """Return all numbers of a variable, decoded as xarray does.

    Raises
    ------
    FileFormatError
        If the file has no numeric variable of that name.
    """
    variable = file.variables.get(name)
    if variable is None:
        raise FileFormatError(
            f"{file.path}: has no variable {name!r}; it has {', '.join(file.variables)}"
        )
    if variable.storage is None:
        return read_through_library(file, variable, dim=None, index=-1)
    slab = where_slab(file, variable, dim=None, index=-1)
    return decode_slab(slab, variable.packing, read_extents(slab_extents(slab)))


def _inspect(paths: Sequence[Path], advance: Advance) -> list[NetcdfFile]:
    inspected = []
    for path in paths:
        inspected.append(inspect_netcdf(path))
        advance(1)
    return inspected


def _state(path: Path) -> State:
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be reached ({error.strerror})") from error
    return stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is kept of one file: a schema that others may share, and ``places`` of numbers."""

    state: State
    schema: str
    places: NDArray[np.int64]

    def file(self, path: Path) -> NetcdfFile:
        """Return what the file holds."""
        schema, models = _parsed(self.schema)
        variables, start = {}, 0
        for told, model in zip(schema["variables"], models, strict=True):
            storage, start = _storage(told, self.places, start)
            variables[model.name] = replace(model, storage=storage)
        return NetcdfFile(path, schema["dims"], variables, schema["skipped"])


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[dict[str, Any], list[NetcdfVariable]]:
    """Return a schema and its variables, the same but for where their numbers lie."""
    schema: dict[str, Any] = json.loads(text)
    models = [
        NetcdfVariable(
            name=told["name"],
            dims=tuple(told["dims"]),
            shape=tuple(told["shape"]),
            packing=Packing(
                stored=told["stored"],
                dtype=told["dtype"],
                fill_values=tuple(_number(value) for value in told["fill_values"]),
                scale=_number(told["scale"]),
                offset=_number(told["offset"]),
            ),
            fill=_number(told["fill"]),
            storage=None,
            attributes=told["attributes"],
        )
        for told in schema["variables"]
    ]
    return schema, models


def _told(file: NetcdfFile, state: State) -> _Entry | None:
    """Return what to keep of a file; None where an attribute is not just a number."""
    try:
        told = [_told_variable(variable) for variable in file.variables.values()]
    except TypeError:
        return None
    schema = {"dims": dict(file.dims), "variables": told, "skipped": dict(file.skipped)}
    places = [_places(variable.storage) for variable in file.variables.values()]
    flat = np.concatenate([np.empty(0, dtype=np.int64), *places])
    return _Entry(state, json.dumps(schema, separators=(",", ":")), flat)


def _told_variable(variable: NetcdfVariable) -> dict[str, Any]:
    packing, storage = variable.packing, variable.storage
    return {
        "name": variable.name,
        "dims": variable.dims,
        "shape": [int(length) for length in variable.shape],
        "stored": packing.stored,
        "dtype": packing.dtype,
        "fill_values": [_told_number(value) for value in packing.fill_values],
        "scale": _told_number(packing.scale),
        "offset": _told_number(packing.offset),
        "fill": _told_number(variable.fill),
        "attributes": dict(variable.attributes),
        "storage": type(storage).__name__,
        "chunk": storage.chunk if isinstance(storage, Chunked) else (),
        "filters": storage.filters if isinstance(storage, Chunked) else (),
    }


def _told_number(value: Any) -> Any:
    """Return a number such that `_number` gives it with its type, on which arithmetic depends."""
    if value is None or type(value) in (int, float):
        return value
    if isinstance(value, np.number):
        return [value.dtype.str, value.tobytes().hex()]
    raise TypeError(type(value))


def _number(told: Any) -> Any:
    if not isinstance(told, list):
        return told
    dtype, content = told
    return np.frombuffer(bytes.fromhex(content), dtype=dtype)[0]


def _places(storage: Contiguous | Chunked | None) -> NDArray[np.int64]:
    if isinstance(storage, Chunked):
        grids = (storage.offsets, storage.nbytes, storage.masks)
        return np.concatenate([grid.ravel().astype(np.int64) for grid in grids])
    return np.array([] if storage is None else [storage.offset], dtype=np.int64)


def _storage(
    told: dict[str, Any], places: NDArray[np.int64], start: int
) -> tuple[Contiguous | Chunked | None, int]:
    """Return where a variable's numbers lie, and where ``places`` go on after it."""
    if told["storage"] == Contiguous.__name__:
        return Contiguous(int(places[start])), start + 1
    if told["storage"] != Chunked.__name__:
        return None, start
    chunk = tuple(told["chunk"])
    grid = tuple(-(-n // length) for n, length in zip(told["shape"], chunk, strict=True))
    count = math.prod(grid)
    offsets, nbytes, masks = places[start : start + 3 * count].reshape(3, *grid)
    storage = Chunked(chunk, tuple(told["filters"]), offsets, nbytes, masks.astype(np.uint32))
    return storage, start + 3 * count


def _description() -> str:
    return json.dumps(["netcdf-files", INSPECTION_VERSION])


def _load(folder: Path, cache_dir: Path) -> dict[str, _Entry]:
    """Return what is kept of the files of a folder, by name."""
    columns = load_sidecar(folder / SIDECAR, cache_dir, description=_description())
    if columns is None:
        return {}
    schemas = json.loads(columns["schemas"].tobytes())
    places = np.split(columns["places"], columns["ends"][:-1])
    rows = zip(
        columns["names"].tolist(), columns["states"].tolist(), columns["schema"].tolist(), places,
        strict=True,
    )  # fmt: skip
    return {
        name: _Entry((size, changed_ns), schemas[schema], where)
        for name, (size, changed_ns), schema, where in rows
    }


def _save(folder: Path, cache_dir: Path, entries: dict[str, _Entry]) -> None:
    if not entries:
        return
    schemas = dict.fromkeys(entry.schema for entry in entries.values())
    number = {schema: place for place, schema in enumerate(schemas)}
    rows = entries.values()
    columns = {
        "names": np.array(list(entries)),
        "states": np.array([entry.state for entry in rows], dtype=np.int64),
        "schema": np.array([number[entry.schema] for entry in rows], dtype=np.int64),
        "schemas": np.frombuffer(json.dumps(list(schemas)).encode(), dtype=np.uint8),
        "places": np.concatenate([entry.places for entry in rows]),
        "ends": np.cumsum([len(entry.places) for entry in rows], dtype=np.int64),
    }
    save_sidecar(folder / SIDECAR, cache_dir, columns, description=_description())
