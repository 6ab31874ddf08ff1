"""What a file or store holds, whichever container: parsers fill it, datasets read by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from iobench.chunks.chunked_variable import ChunkedVariable  # noqa: TC001 - msgspec asks

if TYPE_CHECKING:
    from pathlib import Path
else:
    Path = Any  # or a URL


class SourceFile(msgspec.Struct, frozen=True, eq=False):
    """A NetCDF file, a Zarr store, or GRIB files together, without their numbers."""

    path: Path
    dims: Mapping[str, int]
    variables: Mapping[str, ChunkedVariable]  # the numeric ones
    skipped: Mapping[str, str]  # for each variable or group left out, why
    kind: str = "NetCDF"
    # variables of which no sample is made: dates of Zarr stores, all coordinates of GRIB files
    coordinates: Mapping[str, ChunkedVariable] = msgspec.field(default_factory=dict)
    group: str = ""
    # the files that hold variables, by name, where several were merged
    others: Mapping[str, SourceFile] = msgspec.field(default_factory=dict)
    # of Zarr stores and GRIB files: attributes of the whole and of each variable; those of NetCDF
    # files are read where they are needed
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    described: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    zarr_format: int = 0  # 2 or 3
    fingerprint: str = ""  # of a Zarr store: a digest of its metadata

    @property
    def numbers(self) -> dict[str, ChunkedVariable]:
        """All variables that are numbers or dates."""
        return {**self.variables, **self.coordinates}

    def holder(self, name: str) -> SourceFile:
        """Return the file that holds a variable: one of those that were merged."""
        return self.others.get(name, self)
