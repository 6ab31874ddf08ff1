"""What NetCDF files and Zarr stores of a set hold; GRIB is in `iobench.datasets.grib_samples`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.chunks.boxes import index_box
from iobench.chunks.chunk_reading import read_stored_box
from iobench.chunks.netcdf.description import NOT_KEPT, Description
from iobench.chunks.packing import unpack
from iobench.chunks.zarr_store import (
    ZarrStore,
    check_held,
    check_through_zarr,
    inspect_zarr,
    metadata_fingerprint,
)
from iobench.coordinates import SampleLabels, json_attributes
from iobench.datasets.chunked_samples import through_library
from iobench.datasets.file_labels import labels_of_files
from iobench.datasets.file_sets import holder
from iobench.datasets.file_variables import (
    Selection,
    SourceFile,
    check_not_in_groups,
    check_sample_dims,
    numbers_of,
    with_file_dim,
)
from iobench.datasets.inspected_netcdf import describe_files, inspect_files, whole_variables
from iobench.datasets.plain_loop import open_plainly
from iobench.datasets.positions import FileCoordinates
from iobench.files.urls import URL, range_file

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.datasets.contract import Locator
    from iobench.datasets.file_kinds import FileFacts
    from iobench.datasets.file_labels import SamplePlaces

Digest = Callable[[NDArray[Any]], NDArray[Any]]
ByFile = Mapping[str, Sequence[NDArray[Any] | None]]
TEXTS: Final = "not numeric"
"""Why arrays of texts are left out."""


class Container:
    """The files of a set, whose numbers are in one format."""

    kind = ""
    notes: tuple[str, ...] = ()  # for users

    def __init__(self, selection: Selection, locator: Locator) -> None:
        self.selection, self.locator = selection, locator

    def inspect(self, files: Sequence[Path]) -> Sequence[SourceFile]:
        """Return what the files hold; what the first one lacks is said first."""
        raise NotImplementedError

    def describe(self, file: Any) -> Description:
        """Return what a file says of itself: attributes and texts."""
        raise NotImplementedError

    def read_whole(
        self, files: Sequence[Any], names: Sequence[str], digest: Digest | None
    ) -> ByFile:
        """Return what `whole` does, of files that hold the variables themselves."""
        raise NotImplementedError

    def check(self, file: Any, names: Sequence[str]) -> None:
        """Check what a file claims of the chosen variables."""

    def facts(
        self, files: Sequence[Path], inspected: Sequence[Any], facts: Sequence[FileFacts]
    ) -> list[dict[str, Any]]:
        """Return name, size and fingerprint of files: of their beginnings and ends."""
        return [
            {"name": path.name, "nbytes": each.nbytes, "fingerprint": each.fingerprint}
            for path, each in zip(files, facts, strict=True)
        ]

    def whole(
        self, files: Sequence[Any], names: Sequence[str], *, digest: Digest | None = None
    ) -> ByFile:
        """Return variables of each file by name, or digests of them; None where it lacks one."""
        if not any(file.others for file in files):
            return self.read_whole(files, names, digest)
        return {
            name: self.read_whole([holder(file, name) for file in files], [name], digest)[name]
            for name in names
        }

    def labels(
        self,
        files: Sequence[Any],
        names: Sequence[str],
        places: SamplePlaces,
        same: frozenset[str],
    ) -> SampleLabels:
        """Return coordinates and attributes of samples, and why some are left out."""
        chosen = {name: name for name in names}
        return labels_of_files(files, self.describe, self.whole, chosen, places, same=same)

    def along(self, files: Sequence[Any], dim: str) -> FileCoordinates:
        """Return the coordinate of files along a dimension, or the indices where it has none."""
        variables = [_coordinate(file, dim) for file in files]
        some = [file for file, own in zip(files, variables, strict=True) if own is not None]
        values = iter(self.whole(some, [dim])[dim] if some else ())
        stored = [
            np.arange(file.dims[dim]) if own is None else np.asarray(next(values)).reshape(-1)
            for file, own in zip(files, variables, strict=True)
        ]
        units, calendars = (
            [None if each is None else each.attributes.get(name, "") for each in variables]
            for name in ("units", "calendar")
        )
        return FileCoordinates(stored, units, calendars)


class NetcdfFiles(Container):
    """NetCDF files."""

    kind = "NetCDF"

    def inspect(self, files: Sequence[Path]) -> Sequence[SourceFile]:
        """Return what the files hold; what the first one lacks is said first."""
        group, dim = self.selection.group, self.selection.sample_dim
        cache_dir, progress = self.locator.cache_dir, self.locator.progress
        (first,) = inspect_files(files[:1], cache_dir=cache_dir, group=group)
        check_not_in_groups(first)
        check_sample_dims(dim, dict(with_file_dim(first, dim).dims), files)
        every = inspect_files(files, cache_dir=cache_dir, progress=progress, group=group)
        return [with_file_dim(file, dim) for file in every]

    def describe(self, file: Any) -> Description:
        """Return what a file says of itself: attributes and texts."""
        parts = {each.path: each for each in (file, *file.others.values())}
        return describe_files([*parts.values()], cache_dir=self.locator.cache_dir)

    def read_whole(
        self, files: Sequence[Any], names: Sequence[str], digest: Digest | None
    ) -> ByFile:
        """Return variables of each file by name, or digests of them."""
        return whole_variables(files, names, cache_dir=self.locator.cache_dir, digest=digest)


class ZarrStores(Container):
    """Zarr stores."""

    kind = "Zarr"

    def inspect(self, files: Sequence[Path]) -> Sequence[SourceFile]:
        """Return what the files hold; what the first one lacks is said first."""
        inspected = []
        for number, path in enumerate(files):
            inspected.append(with_file_dim(inspect_zarr(path), self.selection.sample_dim))
            check_not_in_groups(inspected[0])
            self.locator.progress(number + 1, len(files))
        return inspected

    def facts(
        self, files: Sequence[Path], inspected: Sequence[Any], facts: Sequence[FileFacts]
    ) -> list[dict[str, Any]]:
        """Return name, size of the numbers and a fingerprint of the metadata of stores."""
        return [
            {
                "name": store.path.name,
                "zarr_format": store.zarr_format,
                "nbytes": sum(
                    math.prod(each.shape) * np.dtype(each.packing.stored).itemsize
                    for each in store.variables.values()
                ),
                "fingerprint": metadata_fingerprint(store),
            }
            for store in inspected
        ]

    def describe(self, file: Any) -> Description:
        """Return what a store says of itself; texts, which zarr decodes, of one on this machine."""
        attributes: dict[str, Mapping[str, Any]] = {}
        texts = {}
        for store in (file, *file.others.values()):
            attributes = {**store.described, **attributes}
            names = [name for name, why in store.skipped.items() if why == TEXTS]
            if names and not isinstance(store.path, URL):
                with open_plainly(str(store.path)) as opened:
                    for name in names:
                        own = opened.variables[name]
                        texts[name] = own.dims, own.values.astype(str)
                        attributes[name] = own.attrs
        return Description(
            json_attributes(file.attributes),
            {name: json_attributes(own, without=NOT_KEPT) for name, own in attributes.items()},
            texts,
        )

    def read_whole(
        self, files: Sequence[Any], names: Sequence[str], digest: Digest | None
    ) -> ByFile:
        """Return variables of each store by name, or digests of them."""

        def value(file: Any, name: str) -> NDArray[Any] | None:
            is_text = file.skipped.get(name) == TEXTS and not isinstance(file.path, URL)
            if name not in numbers_of(file) and not is_text:
                return None
            values = self.describe(file).texts[name][1] if is_text else _numbers(file, name)
            return values if digest is None else digest(values)

        return {name: [value(file, name) for file in files] for name in names}

    def check(self, file: Any, names: Sequence[str]) -> None:
        """Check what a store claims of the chosen variables."""
        for name in names:
            check_held(file.path, file.variables[name])
            if file.variables[name].only_library:
                check_through_zarr(file.variables[name])


def _coordinate(file: SourceFile, dim: str) -> ChunkedVariable | None:
    variable = numbers_of(file).get(dim)
    is_one = variable is not None and not variable.dims and file.dims.get(dim) == 1
    return variable if variable is not None and (is_one or variable.dims == (dim,)) else None


def _numbers(file: ZarrStore, name: str) -> NDArray[Any]:
    """Return the numbers or dates of an array that tells where or when samples are."""
    variable = numbers_of(file)[name]
    if variable.only_library:
        return through_library(file, variable, {})
    # Without the fill value: zarr's default of 0 is a time like any other.
    values = read_stored_box(index_box(range_file(file.path), variable))
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if variable.packing.scale is not None or variable.packing.offset is not None:
        return unpack(values, replace(variable.packing, fill_values=()))
    return values.astype(values.dtype.newbyteorder("="), copy=False)
