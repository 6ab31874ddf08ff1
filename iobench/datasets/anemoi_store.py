"""``anemoi:PATH``: a gridded Zarr store that anemoi-datasets made, one sample for each date.

Source: anemoi-datasets 0.5: ``data`` (dates, variables, ensemble, cells), ``dates``, and the
attributes ``variables``, ``missing_dates`` and ``layout``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.chunks.packing import Packing
from iobench.chunks.zarr_store import inspect_zarr
from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, SampleLabels, json_attributes
from iobench.datasets.chunked_samples import ChunkedSamples
from iobench.datasets.contract import SampleIndex
from iobench.datasets.positions import FileIndexes
from iobench.datasets.source_files import whole_variable
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.chunks.source_file import SourceFile
    from iobench.datasets.contract import Arrays, PublishedStep, Raw
    from iobench.datasets.locate import Locator
    from iobench.samples import Sample

DIMS = ("time", "variable", "ensemble", "cell")
PLACES = {
    "latitudes": {"standard_name": "latitude", "units": "degrees_north"},
    "longitudes": {"standard_name": "longitude", "units": "degrees_east"},
}
ATTRIBUTES = ("attribution", "description", "field_shape", "frequency", "licence", "resolution")
"""Those of the store that are true of its samples, too."""


class AnemoiDataset(ChunkedSamples):
    """Dates of an anemoi-datasets store: a sample is ``data`` (channel, ensemble, cell) of one."""

    title = ""
    published: PublishedStep | None = None
    thread_safe = True

    def __init__(self, path: str | Path, **options: str) -> None:
        super().__init__()
        self._path = Path(path)
        self.name = f"anemoi:{self._path.name}"
        if unknown := sorted(options.keys() - {"select"}):
            raise OptionError(
                f"anemoi:{path}: unknown option {unknown[0]}: there is select, names of variables; "
                "dates are chosen with --split-by time=FIRST/LAST"
            )
        parts = (part.strip() for part in options.get("select", "").split(","))
        self._select = tuple(dict.fromkeys(part for part in parts if part))
        self._columns: list[int] | None = None

    def files(self, locator: Locator) -> list[Path]:
        """Return the store; raise MissingFileError if it is not there."""
        if not self._path.is_dir():
            raise MissingFileError(
                f"{self._path}: there is no such folder, seen from {Path.cwd()}; name the Zarr "
                "store, a folder that ends in .zarr"
            )
        return [self._path]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample for each date that is asked for and not listed as missing."""
        store = inspect_zarr(self._path)
        own, data = store.attributes, store.variables.get("data")
        layout = own.get("layout", own.get("format", "gridded"))
        if layout != "gridded" or data is None or len(data.shape) != 4 or data.why_unread:
            stored = "none" if data is None else data.why_unread or f"shape {list(data.shape)}"
            raise FileFormatError(
                f"{self._path}: layout {layout}, array 'data': {stored}; expected gridded and "
                "(dates, variables, ensemble, cells) as anemoi-datasets makes it; profile other "
                "Zarr stores by their path alone"
            )
        dtype = np.dtype(data.packing.stored)
        packing = Packing(data.packing.stored, dtype.newbyteorder("=").str)
        self.keep_files(
            [replace(store, variables={"data": replace(data, dims=DIMS, packing=packing)})],
            DIMS[:1],
        )
        n_dates, n_names, *_, n_cells = data.shape
        by_index = own.get("name_to_index") or {}
        names = own.get("variables") or sorted(by_index, key=by_index.__getitem__)
        if len(names) != n_names:
            raise self._unfinished(
                f"attribute variables names {len(names)}, array 'data' has {n_names}"
            )
        dates = _read(store, "dates", n_dates)
        if dates is None or not (np.diff(dates.astype("M8[s]")) > np.timedelta64(0, "s")).all():
            raise self._unfinished("array 'dates' is missing, not as long as 'data' or unordered")
        dates = dates.astype("datetime64[s]")
        try:
            is_missing = np.isin(dates, np.array(own.get("missing_dates") or [], "datetime64[s]"))
        except ValueError as error:
            raise self._unfinished(f"attribute missing_dates: {error}") from error
        left = np.flatnonzero(~is_missing)
        if unknown := [name for name in self._select if name not in names]:
            raise OptionError(
                f"select={unknown[0]}: {self._path} has no such variable: it has {', '.join(names)}"
            )
        columns = [names.index(name) for name in self._select or names]
        self._columns = None if columns == list(range(len(names))) else columns
        locator.progress(len(left), len(left))
        spec = Variable(
            "data",
            (len(columns), *data.shape[2:]),
            dtype.newbyteorder("<").str,
            ("channel", "ensemble", "cell"),
            channels=tuple(names[column] for column in columns),
        )
        time = {"standard_name": "time", "units": TIME_UNITS}
        coordinates = [Coordinate("time", (SAMPLE_DIM,), dates[left].astype(np.int64), time)]
        for name, attributes in PLACES.items():
            if (values := _read(store, name, n_cells)) is not None:
                standard = attributes["standard_name"]
                coordinates.append(Coordinate(standard, ("cell",), values, attributes))
        kept = json_attributes({name: each for name, each in own.items() if name in ATTRIBUTES})
        return SampleIndex(
            spec=SampleSpec((spec,)),
            where=FileIndexes([(0, number) for number in left.tolist()]),
            coordinate=dates[left].astype(str).tolist(),
            positions=dates[left].astype(np.float64).tolist(),
            position_units="seconds",
            provenance={
                "schema": "anemoi-1",
                "store": {"name": self._path.name, "fingerprint": store.fingerprint},
                "options": {"select": self._select or None},
                "missing_dates": dates[is_missing].astype(str).tolist(),
            },
            meteorology=SampleLabels(("time",), tuple(coordinates), {}, kept),
        )

    def _unfinished(self, what: str) -> FileFormatError:
        return FileFormatError(f"{self._path}: {what}; finish the store with anemoi-datasets")

    def read(self, where: tuple[int, ...]) -> Raw:
        """Return the bytes of a date's chunks."""
        raw = super().read(where)
        if raw.is_absent:
            raise FileFormatError(
                f"{self._path}: a chunk of array 'data', date number {where[1]}, is not there, and "
                "the date is not listed in missing_dates; copy the store again"
            )
        return raw

    def preprocess(self, arrays: Arrays, where: tuple[int, ...]) -> Sample:
        """Return the chosen variables."""
        return dict(arrays) if self._columns is None else {"data": arrays["data"][self._columns]}


def _read(store: SourceFile, name: str, length: int) -> NDArray[Any] | None:
    """Return a whole array of a store; None where it is not there, or of another shape."""
    variable = store.numbers.get(name)
    if variable is None or variable.why_unread or variable.shape != (length,):
        return None
    return whole_variable(store, name)
