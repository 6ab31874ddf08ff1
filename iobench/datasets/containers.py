"""What NetCDF files and Zarr stores of a set hold; GRIB is in `iobench.datasets.grib_samples`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.chunks.boxes import index_box
from iobench.chunks.chunk_reading import read_stored_box
from iobench.chunks.netcdf.description import describe_netcdf
from iobench.chunks.packing import unpack
from iobench.chunks.zarr_store import (
    ZarrStore,
    check_held,
    check_through_zarr,
    inspect_zarr,
    metadata_fingerprint,
)
from iobench.datasets.cf_coordinates import SamplePlaces, netcdf_meteorology, zarr_meteorology
from iobench.datasets.chunked_samples import through_library
from iobench.datasets.file_sets import holder
from iobench.datasets.file_variables import (
    Selection,
    SourceFile,
    check_not_in_groups,
    check_sample_dims,
    numbers_of,
    with_file_dim,
)
from iobench.datasets.inspected_netcdf import inspect_files, whole_variables
from iobench.datasets.plain_loop import open_plainly
from iobench.datasets.rows import FileCoordinates
from iobench.files.urls import URL, range_file

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.coordinates import Meteorology
    from iobench.datasets.contract import Locator

Digest = Callable[[NDArray[Any]], NDArray[Any]]
ByFile = Mapping[str, Sequence[NDArray[Any] | None]]
TEXTS: Final = "not numeric"
"""Why arrays of texts are left out."""


class SampleSet(msgspec.Struct, frozen=True, eq=False):
    """The samples that files hold."""

    files: Sequence[Any]  # in the order that samples count them by
    names: Sequence[str]  # of the variables
    places: SamplePlaces
    known: Mapping[str, Sequence[NDArray[Any]]]  # of each file its coordinate along a dimension
    same: frozenset[str]  # coordinates that are equal in all files


class Container:
    """The files of a set, whose numbers are in one format."""

    kind = ""
    named_by_times = False
    notes: tuple[str, ...] = ()  # for users

    def __init__(self, selection: Selection, locator: Locator) -> None:
        self.selection, self.locator = selection, locator

    def inspect(self, files: Sequence[Path]) -> Sequence[SourceFile]:
        """Return what the files hold; what the first one lacks is said first."""
        raise NotImplementedError

    def whole(
        self, files: Sequence[Any], names: Sequence[str], *, digest: Digest | None = None
    ) -> ByFile:
        """Return variables of each file by name, or digests of them; None where it lacks one."""
        raise NotImplementedError

    def labels(self, samples: SampleSet) -> Meteorology:
        """Return coordinates and attributes of the samples."""
        raise NotImplementedError

    def texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        """Return the dimensions of the texts that a file has."""
        return {}

    def check(self, file: Any, names: Sequence[str]) -> None:
        """Check what a file claims of the chosen variables."""

    def sample_names(self, file: Any, dim: str) -> Sequence[str]:
        """Return the names of the samples of a file; none where its coordinate names them."""
        return ()

    def along(
        self, files: Sequence[Any], dim: str, stored: Sequence[NDArray[Any]]
    ) -> FileCoordinates:
        """Return the coordinate of files along a dimension, by what is stored of it."""
        variables = [_coordinate(file, dim) for file in files]
        units, calendars = (
            [None if each is None else each.attributes.get(name, "") for each in variables]
            for name in ("units", "calendar")
        )
        return FileCoordinates(stored, units, calendars)

    def stored(self, files: Sequence[Any], dim: str) -> list[NDArray[Any]]:
        """Return the coordinate of each file along a dimension, or the indices without one."""
        some = [file for file in files if _coordinate(file, dim)]
        values = self.whole([holder(file, dim) for file in some], [dim])[dim] if some else []
        by_path = {file.path: own for file, own in zip(some, values, strict=True)}
        parts = (by_path.get(file.path) for file in files)
        return [
            np.arange(file.dims[dim]) if own is None else own.reshape(-1)
            for file, own in zip(files, parts, strict=True)
        ]


class NetcdfFiles(Container):
    """NetCDF files."""

    kind = "NetCDF"

    def inspect(self, files: Sequence[Path]) -> Sequence[SourceFile]:
        """Return what the files hold; what the first one lacks is said first."""
        group, dim = self.selection.group, self.selection.sample_dim
        parts: list[SourceFile] = []
        for some in (files[:1], files[1:]):
            inspected = inspect_files(
                some,
                cache_dir=self.locator.cache_dir,
                progress=self.locator.progress,
                group=group,
            )
            parts += [with_file_dim(file, dim) for file in inspected]
            check_not_in_groups(parts[0])
            check_sample_dims(dim, dict(parts[0].dims), files)
        return parts

    def whole(
        self, files: Sequence[Any], names: Sequence[str], *, digest: Digest | None = None
    ) -> ByFile:
        """Return variables of each file by name, or digests of them."""
        return whole_variables(files, names, cache_dir=self.locator.cache_dir, digest=digest)

    def texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        """Return the dimensions of the texts that a file has."""
        if not any(why.startswith(TEXTS) for why in file.skipped.values()):
            return {}
        described = describe_netcdf(file.path, file.group).variables
        return {name: each.dims for name, each in described.items() if each.texts is not None}

    def labels(self, samples: SampleSet) -> Meteorology:
        """Return coordinates and attributes of the samples."""
        return netcdf_meteorology(
            samples.files,
            dict(zip(samples.names, samples.names, strict=True)),
            samples.places,
            cache_dir=self.locator.cache_dir,
            known=samples.known,
            same=samples.same,
        )


class ZarrStores(Container):
    """Zarr stores."""

    kind = "Zarr"
    named_by_times = True

    def inspect(self, files: Sequence[Path]) -> Sequence[SourceFile]:
        """Return what the files hold; what the first one lacks is said first."""
        inspected = []
        for number, path in enumerate(files):
            inspected.append(with_file_dim(inspect_zarr(path), self.selection.sample_dim))
            check_not_in_groups(inspected[0])
            self.locator.progress(number + 1, len(files))
        return inspected

    def whole(
        self, files: Sequence[Any], names: Sequence[str], *, digest: Digest | None = None
    ) -> ByFile:
        """Return variables of each file by name, or digests of them."""

        def value(file: Any, name: str) -> NDArray[Any] | None:
            if name not in numbers_of(file) and file.skipped.get(name) != TEXTS:
                return None
            values = _text_or_numbers(file, name)
            return values if digest is None else digest(values)

        return {name: [value(file, name) for file in files] for name in names}

    def texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        """Return the dimensions of the texts that a file has."""
        names = [name for name, why in file.skipped.items() if why == TEXTS]
        if not names or isinstance(file.path, URL):
            return {}
        with open_plainly(str(file.path)) as opened:
            return {name: opened.variables[name].dims for name in names}

    def check(self, file: Any, names: Sequence[str]) -> None:
        """Check what a store claims of the chosen variables."""
        for name in names:
            check_held(file.path, file.variables[name])
            if file.variables[name].only_library:
                check_through_zarr(file.variables[name])

    def labels(self, samples: SampleSet) -> Meteorology:
        """Return coordinates and attributes of the samples."""
        return zarr_meteorology(
            samples.files,
            self.whole,
            dict(zip(samples.names, samples.names, strict=True)),
            samples.places,
            known=samples.known,
            same=samples.same,
        )


def zarr_facts(path: Path) -> dict[str, Any]:
    """Return name, size of the numbers and a fingerprint of the metadata of a store."""
    store = inspect_zarr(path)
    nbytes = sum(
        int(np.prod(each.shape, dtype=np.int64)) * np.dtype(each.packing.stored).itemsize
        for each in store.variables.values()
    )
    return {
        "name": path.name,
        "zarr_format": store.zarr_format,
        "nbytes": nbytes,
        "fingerprint": metadata_fingerprint(store),
    }


def _coordinate(file: SourceFile, dim: str) -> ChunkedVariable | None:
    variable = numbers_of(file).get(dim)
    is_one = variable is not None and not variable.dims and file.dims.get(dim) == 1
    return variable if variable is not None and (is_one or variable.dims == (dim,)) else None


def _text_or_numbers(file: ZarrStore, name: str) -> NDArray[Any]:
    """Return the numbers, dates or texts of an array that tells where or when samples are."""
    if file.skipped.get(name) == TEXTS:
        with open_plainly(str(file.path)) as opened:
            return np.asarray(opened.variables[name].values.astype(str))
    variable = numbers_of(file)[name]
    if variable.only_library:
        return through_library(file, variable)
    # Without the fill value: zarr's default of 0 is a time like any other.
    values = read_stored_box(index_box(range_file(file.path), variable))
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if variable.packing.scale is not None or variable.packing.offset is not None:
        return unpack(values, replace(variable.packing, fill_values=()))
    return values.astype(values.dtype.newbyteorder("="), copy=False)
