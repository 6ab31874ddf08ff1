"""``anemoi:PATH``: a Zarr store that anemoi-datasets made, one sample for each date."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.chunks.anemoi_layout import (
    gridded_data,
    missing_dates,
    scaling,
    stored_dates,
    variable_names,
)
from iobench.chunks.boxes import index_box
from iobench.chunks.chunk_reading import read_stored_box
from iobench.chunks.file_indexes import FileIndexes
from iobench.chunks.packing import Packing
from iobench.chunks.zarr_store import inspect_zarr, metadata_fingerprint, missing_keys
from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, SampleLabels, json_attributes
from iobench.datasets.chunked_samples import ChunkedSamples
from iobench.datasets.contract import SampleIndex
from iobench.datasets.selection import within_dates
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.files.urls import range_file
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.zarr_store import ZarrStore
    from iobench.datasets.contract import Arrays, Locator, PublishedStep, Raw
    from iobench.samples import Sample

OPTIONS = ("start", "end", "select", "drop", "normalise")
NORMALISATIONS = ("none", "mean-std")
DIMS = ("time", "variable", "ensemble", "cell")
TIME = {"standard_name": "time", "units": TIME_UNITS}
PLACES = {
    "latitudes": {"standard_name": "latitude", "units": "degrees_north"},
    "longitudes": {"standard_name": "longitude", "units": "degrees_east"},
}
ATTRIBUTES = ("attribution", "description", "field_shape", "frequency", "licence", "resolution")
"""Those of the store that are true of its samples, too."""


def anemoi_dataset(path: str | Path, **options: str) -> AnemoiDataset:
    """Make a dataset of a store that anemoi-datasets made."""
    for name in options:
        if name not in OPTIONS:
            raise OptionError(
                f"anemoi:{path}: unknown option {name}: {_near(name, OPTIONS, 'there is')}"
            )
    normalise = options.get("normalise", NORMALISATIONS[0])
    if normalise not in NORMALISATIONS:
        raise OptionError(
            f"normalise={normalise}: {_near(normalise, NORMALISATIONS, 'expected one of')}"
        )
    return AnemoiDataset(Path(path), options)


class AnemoiDataset(ChunkedSamples):
    """Dates of an anemoi-datasets store as samples; made by `anemoi_dataset`.

    One sample is the array ``data`` (channel, ensemble, cell) of one date. Reading takes the bytes
    of the date's chunks, decoding undoes their codec, preprocessing takes the chosen variables and
    normalises them.
    """

    title = ""
    published: PublishedStep | None = None
    thread_safe = True

    def __init__(self, path: Path, options: Mapping[str, str]) -> None:
        super().__init__()
        self.name = f"anemoi:{path.name}"
        self._path = path
        self._select, self._drop = (_names(options.get(name, "")) for name in ("select", "drop"))
        self._choice: dict[str, Any] = {name: options.get(name) or None for name in OPTIONS}
        self._choice["normalise"] = options.get("normalise", NORMALISATIONS[0])
        self._choice |= {"select": self._select or None, "drop": self._drop or None}
        self._columns: list[int] | None = None
        self._scaling: tuple[NDArray[Any], NDArray[Any]] | None = None

    def files(self, locator: Locator) -> list[Path]:
        """Return the store; raise MissingFileError if it is not there."""
        if not self._path.is_dir():
            what = "is a file" if self._path.exists() else "there is no such folder"
            raise MissingFileError(
                f"{self._path}: {what}, seen from {Path.cwd()}; name the Zarr store, a folder that "
                "ends in .zarr"
            )
        return [self._path]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample for each date that is asked for and not listed as missing."""
        store = inspect_zarr(self._path)
        data = self._take(store)
        names = variable_names(store, data)
        dates = stored_dates(store, data)
        columns = self._chosen_columns(names)
        self._columns = None if columns == list(range(len(names))) else columns
        channels = tuple(names[column] for column in columns)
        if self._choice["normalise"] == "mean-std":
            self._scaling = scaling(store, data, channels, columns)
        first, last = (self._choice[name] or "" for name in ("start", "end"))
        inside = within_dates(dates, first, last, f"start={first}, end={last}")
        chosen = np.flatnonzero(inside).tolist()
        listed = missing_dates(store)
        missing = [number for number in chosen if dates[number] in listed]
        left = [number for number in chosen if dates[number] not in listed]
        if not left:
            raise OptionError(
                f"{self._path}: no date left; it has {dates[0]} to {dates[-1]}, "
                f"{len(missing)} of those asked for are listed as missing"
            )
        self._check_chunks(data, dates, left)
        locator.progress(len(left), len(left))
        spec = Variable(
            "data",
            (len(channels), *data.shape[2:]),
            np.dtype(data.packing.stored).newbyteorder("<").str,
            ("channel", "ensemble", "cell"),
            channels=channels,
        )
        return SampleIndex(
            spec=SampleSpec((spec,)),
            where=FileIndexes([(0, number) for number in left]),
            coordinate=[str(dates[number]) for number in left],
            positions=[float(dates[number].astype(np.int64)) for number in left],
            position_units="seconds",
            provenance={
                "schema": "anemoi-1",
                "store": {"name": self._path.name, "fingerprint": metadata_fingerprint(store)},
                "options": self._choice,
                "missing_dates": [str(dates[number]) for number in missing],
                "field_shape": store.attributes.get("field_shape"),
                "frequency": store.attributes.get("frequency"),
            },
            meteorology=self._dates_and_places(store, data, dates[left]),
        )

    def _take(self, store: ZarrStore) -> ChunkedVariable:
        """Let samples be read from the array of all fields, as stored; return that array."""
        data = gridded_data(store)
        dtype = np.dtype(data.packing.stored)
        packing = Packing(data.packing.stored, dtype.newbyteorder("=").str)
        data = replace(data, dims=DIMS, packing=packing)
        self._dims, self._names, self._axes = DIMS[:1], ("data",), {"data": (0,)}
        self._files = (replace(store, variables={"data": data}),)
        self._find_chunks("time", [data])
        self.has_chunks = True
        return data

    def _dates_and_places(
        self, store: ZarrStore, data: ChunkedVariable, dates: NDArray[np.datetime64]
    ) -> SampleLabels:
        """Return the dates, the places of cells and what the store says of itself."""
        seconds = dates.astype("datetime64[s]").astype(np.int64)
        coordinates = [Coordinate("time", (SAMPLE_DIM,), seconds, TIME)]
        left_out = {}
        for name, attributes in PLACES.items():
            variable = store.variables.get(name)
            if variable is None or variable.shape != data.shape[-1:]:
                continue
            if variable.only_library:
                left_out[name] = variable.only_library
                continue
            values = read_stored_box(index_box(range_file(store.path), variable))
            coordinates.append(
                Coordinate(attributes["standard_name"], ("cell",), values, attributes)
            )
        attributes_of_store = json_attributes(
            {k: v for k, v in store.attributes.items() if k in ATTRIBUTES}
        )
        return SampleLabels(("time",), tuple(coordinates), {}, attributes_of_store, left_out)

    def _chosen_columns(self, names: Sequence[str]) -> list[int]:
        for option, chosen in (("select", self._select), ("drop", self._drop)):
            for name in chosen:
                if name not in names:
                    raise OptionError(
                        f"{option}={name}: {self._path} has no such variable: "
                        f"{_near(name, names, 'it has')}"
                    )
        chosen_names = [name for name in self._select or names if name not in self._drop]
        if not chosen_names:
            raise OptionError(f"{self._path}: select and drop leave no variable; drop fewer")
        return [names.index(name) for name in chosen_names]

    def _check_chunks(
        self, data: ChunkedVariable, dates: NDArray[np.datetime64], numbers: Sequence[int]
    ) -> None:
        file = range_file(self._path)
        absent = missing_keys([index_box(file, data, 0, number) for number in numbers])
        lost = [(n, key) for n, key in zip(numbers, absent, strict=True) if key is not None]
        if lost:
            number, key = lost[0]
            raise _absent_chunk(self._path, key, dates[number], n_more=len(lost) - 1)

    def read(self, where: tuple[int, ...]) -> Raw:
        """Return the bytes of a date's chunks."""
        if not self._files:
            raise TypeError("read takes samples that samples() found")
        raw = super().read(where)
        if raw.is_absent:
            data = self._files[0].variables["data"]
            key = missing_keys([index_box(range_file(self._path), data, 0, where[1])])[0]
            raise _absent_chunk(self._path, key or "in a shard", f"number {where[1]}")
        return raw

    def preprocess(self, arrays: Arrays, where: tuple[int, ...]) -> Sample:
        """Return the chosen variables, normalised if asked for."""
        values = arrays["data"]
        if self._columns is not None:
            values = values[self._columns]
        if self._scaling is not None:
            factor, offset = self._scaling
            values = values * factor
            values += offset
        return {"data": values}


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _near(name: str, names: Sequence[str], else_said: str) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"{else_said} {', '.join(names)}"


def _absent_chunk(path: Path, key: str, date: Any, n_more: int = 0) -> FileFormatError:
    more = f" ({n_more} more dates like this)" if n_more else ""
    return FileFormatError(
        f"{path}: chunk {key} of array 'data', date {date}, is not there, and the date is not "
        f"listed in missing_dates{more}; copy the store again, or choose others with --option "
        "start=DATE or end=DATE"
    )
