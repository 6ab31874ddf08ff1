"""``anemoi:PATH``: a Zarr store that anemoi-datasets made, one sample for each date."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.anemoi_layout import (
    gridded_data,
    missing_dates,
    scaling,
    stored_dates,
    variable_names,
)
from iobench.chunks.assembler import read_boxes
from iobench.chunks.boxes import Box, index_box
from iobench.chunks.chunk_reading import read_stored_box
from iobench.chunks.chunked_fields import widest_chunks
from iobench.chunks.decoded_chunks import DecodedChunks
from iobench.chunks.packing import Packing, unpack
from iobench.chunks.zarr_arrays.chunks import missing_keys
from iobench.chunks.zarr_arrays.store import inspect_zarr, metadata_fingerprint
from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, Meteorology, json_attributes
from iobench.datasets.contract import SampleIndex
from iobench.datasets.dates import parse_period
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.files.urls import range_file
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_fields import SharedChunks
    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.zarr_arrays.array_metadata import ZarrStore
    from iobench.datasets.contract import Arrays, Locator, PublishedStep, Raw
    from iobench.samples import Sample

OPTIONS = ("start", "end", "select", "drop", "normalise")
NORMALISATIONS = ("none", "mean-std")
TIME = {"standard_name": "time", "units": TIME_UNITS}
PLACES = {
    "latitudes": {"standard_name": "latitude", "units": "degrees_north"},
    "longitudes": {"standard_name": "longitude", "units": "degrees_east"},
}
ATTRIBUTES = ("attribution", "description", "field_shape", "frequency", "licence", "resolution")
"""Those of the store that are true of its samples, too."""


class _Choice(msgspec.Struct, frozen=True):
    """The options, parsed as far as they can be without the store."""

    start: str
    end: str
    select: tuple[str, ...]
    drop: tuple[str, ...]
    normalise: str


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
    choice = _Choice(
        start=options.get("start", ""),
        end=options.get("end", ""),
        select=_names(options.get("select", "")),
        drop=_names(options.get("drop", "")),
        normalise=normalise,
    )
    for name in ("start", "end"):
        if value := getattr(choice, name):
            parse_period(name, value)
    return AnemoiDataset(Path(path), choice)


class AnemoiDataset:
    """Dates of an anemoi-datasets store as samples; made by `anemoi_dataset`.

    One sample is the array ``data`` (channel, ensemble, cell) of one date. Reading takes the bytes
    of the date's chunks, decoding undoes their codec, preprocessing takes the chosen variables and
    normalises them.
    """

    title = ""
    fused: tuple[str, ...] = ()
    published: PublishedStep | None = None
    thread_safe = True
    has_chunks = True

    def __init__(self, path: Path, choice: _Choice) -> None:
        self.name = f"anemoi:{path.name}"
        self._path = path
        self._choice = choice
        self._chunks = DecodedChunks()
        self._data: ChunkedVariable | None = None
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
        self._data = data = gridded_data(store)
        names = variable_names(store, data)
        dates = stored_dates(store, data)
        columns = self._chosen_columns(names)
        self._columns = None if columns == list(range(len(names))) else columns
        channels = tuple(names[column] for column in columns)
        if self._choice.normalise == "mean-std":
            self._scaling = scaling(store, data, channels, columns)
        chosen = self._chosen_dates(dates)
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
            where=left,
            coordinate=[str(dates[number]) for number in left],
            positions=[float(dates[number].astype(np.int64)) for number in left],
            position_units="seconds",
            provenance=self._provenance(store, [str(dates[number]) for number in missing]),
            meteorology=self._meteorology(store, data, dates[left]),
        )

    def _meteorology(
        self, store: ZarrStore, data: ChunkedVariable, dates: NDArray[np.datetime64]
    ) -> Meteorology:
        """Return the dates, the places of cells and what the store says of itself."""
        seconds = dates.astype("datetime64[s]").astype(np.int64)
        found = [Coordinate("time", (SAMPLE_DIM,), seconds, TIME)]
        left_out = {}
        for name, attributes in PLACES.items():
            variable = store.variables.get(name)
            if variable is None or variable.shape != data.shape[-1:]:
                continue
            if variable.only_library:
                left_out[name] = variable.only_library
                continue
            values = read_stored_box(index_box(range_file(store.path), variable))
            found.append(Coordinate(attributes["standard_name"], ("cell",), values, attributes))
        told = json_attributes({k: v for k, v in store.attributes.items() if k in ATTRIBUTES})
        return Meteorology(("time",), tuple(found), {}, told, left_out)

    def _provenance(self, store: ZarrStore, missing: list[str]) -> dict[str, Any]:
        choice = self._choice
        return {
            "schema": "anemoi-1",
            "store": {"name": self._path.name, "fingerprint": metadata_fingerprint(store)},
            "options": {name: getattr(choice, name) or None for name in OPTIONS},
            "missing_dates": missing,
            "field_shape": store.attributes.get("field_shape"),
            "frequency": store.attributes.get("frequency"),
        }

    def _chosen_columns(self, names: Sequence[str]) -> list[int]:
        for option, chosen in (("select", self._choice.select), ("drop", self._choice.drop)):
            for name in chosen:
                if name not in names:
                    raise OptionError(
                        f"{option}={name}: {self._path} has no such variable: "
                        f"{_near(name, names, 'it has')}"
                    )
        kept = [name for name in self._choice.select or names if name not in self._choice.drop]
        if not kept:
            raise OptionError(f"{self._path}: select and drop leave no variable; drop fewer")
        return [names.index(name) for name in kept]

    def _chosen_dates(self, dates: NDArray[np.datetime64]) -> list[int]:
        first, last = dates[0], dates[-1]
        if self._choice.start:
            first = parse_period("start", self._choice.start).first(dates)
        if self._choice.end:
            last = parse_period("end", self._choice.end).last(dates)
        return [int(number) for number in np.flatnonzero((dates >= first) & (dates <= last))]

    def _check_chunks(
        self, data: ChunkedVariable, dates: NDArray[np.datetime64], numbers: Sequence[int]
    ) -> None:
        absent = missing_keys([self._box(data, number) for number in numbers])
        lost = [(n, key) for n, key in zip(numbers, absent, strict=True) if key is not None]
        if lost:
            number, key = lost[0]
            raise _absent_chunk(self._path, key, dates[number], n_more=len(lost) - 1)

    def _box(self, data: ChunkedVariable, number: int) -> Box:
        return index_box(range_file(self._path), data, 0, number)

    def read(self, where: int) -> Raw:
        """Return the bytes of a date's chunks."""
        if self._data is None:
            raise TypeError("read takes samples that samples() found")
        box = self._box(self._data, where)
        raw = read_boxes(self._chunks, [box], (0, where))
        if raw.is_absent:
            raise _absent_chunk(
                self._path, missing_keys([box])[0] or "in a shard", f"number {where}"
            )
        return raw

    def chunking(self) -> SharedChunks | None:
        """Return how the data are cut, where dates share chunks."""
        data = self._data
        if data is None:
            return None
        dims = ("time", *(f"dim_{axis}" for axis in range(1, len(data.shape))))
        return widest_chunks("time", [(data.name, dims, data.shape, data.chunk)])

    def expect(self, where: Sequence[int], *, follows: bool) -> None:
        """Say which dates will be asked for, in order; see `DecodedChunks.expect`."""
        dates = np.array(where, dtype=np.int64)
        self._chunks.expect(np.zeros_like(dates), dates, follows=follows)

    def decode(self, raw: Raw, where: int, out: Mapping[str, NDArray[Any]] | None = None) -> Arrays:
        """Return all variables of the date, as stored; made in ``out`` where all are wanted."""
        row = None if out is None else out["data"]
        (stored,) = raw.arrays([row])
        native = stored.dtype.newbyteorder("=")
        return {"data": unpack(stored, Packing(stored.dtype.str, native.str), row)}

    def preprocess(self, arrays: Arrays, where: int) -> Sample:
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
        f"listed in missing_dates{more}; copy the store again, or leave it out with --option "
        "start=DATE or end=DATE"
    )
