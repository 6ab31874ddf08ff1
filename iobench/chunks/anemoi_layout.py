"""The layout of gridded stores that anemoi-datasets makes.

Source: anemoi-datasets 0.5: ``data`` (dates, variables, ensemble, cells), ``dates``, statistics by
variable, and the attributes ``variables``, ``missing_dates`` and ``layout``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.boxes import index_box
from iobench.chunks.chunk_reading import read_stored_box
from iobench.chunks.zarr_store import check_held
from iobench.errors import FileFormatError, OptionError
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.zarr_store import ZarrStore


def gridded_data(store: ZarrStore) -> ChunkedVariable:
    """Return the array of all fields; FileFormatError says how a store differs from the layout."""
    layout = store.attributes.get("layout", store.attributes.get("format", "gridded"))
    if layout != "gridded":
        raise FileFormatError(
            f"{store.path}: is an anemoi-datasets store of layout {layout}; only gridded ones have "
            "one field for each date and can be read here"
        )
    data = store.variables.get("data")
    if data is None or len(data.shape) != 4:
        stored = "none" if data is None else f"shape {list(data.shape)}"
        raise FileFormatError(
            f"{store.path}: array 'data': {stored}, expected (dates, variables, ensemble, cells) "
            "as anemoi-datasets makes it; profile other Zarr stores by their path alone"
        )
    if data.only_library:
        raise FileFormatError(
            f"{store.path}: array 'data': {data.only_library} cannot be read here; write it with "
            "another codec"
        )
    check_held(store.path, data)
    return data


def variable_names(store: ZarrStore, data: ChunkedVariable) -> list[str]:
    """Return the names along the second axis of ``data``."""
    by_index: Mapping[str, int] = store.attributes.get("name_to_index") or {}
    names = store.attributes.get("variables") or sorted(by_index, key=by_index.__getitem__)
    if len(names) != data.shape[1]:
        raise FileFormatError(
            f"{store.path}: attribute variables names {len(names)}, array 'data' has "
            f"{data.shape[1]}; finish the store with anemoi-datasets"
        )
    return list(names)


def stored_dates(store: ZarrStore, data: ChunkedVariable) -> NDArray[np.datetime64]:
    """Return the dates along the first axis of ``data``, to the second, ascending."""
    variable = store.dates.get("dates")
    if variable is None or variable.only_library or variable.shape != data.shape[:1]:
        raise FileFormatError(
            f"{store.path}: array 'dates' is missing or not as long as 'data'; finish the store "
            "with anemoi-datasets"
        )
    stored = read_stored_box(index_box(range_file(store.path), variable))
    dates = stored.astype("datetime64[s]")
    if not len(dates) or np.isnat(dates).any() or (np.diff(dates) <= np.timedelta64(0, "s")).any():
        raise FileFormatError(
            f"{store.path}: array 'dates' does not ascend; finish the store with anemoi-datasets"
        )
    return dates


def missing_dates(store: ZarrStore) -> set[np.datetime64]:
    """Return the dates that the store lists as missing: their fields are all NaN."""
    listed = store.attributes.get("missing_dates") or []
    try:
        return {np.datetime64(date, "s") for date in listed}
    except ValueError as error:
        raise FileFormatError(
            f"{store.path}: attribute missing_dates: {error}; expected ISO dates"
        ) from error


def scaling(
    store: ZarrStore, data: ChunkedVariable, channels: Sequence[str], columns: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return factor and offset of the chosen variables, each of shape (channels, 1, 1)."""
    statistics = []
    for name in ("mean", "stdev"):
        variable = store.variables.get(name)
        if variable is None or variable.only_library or variable.shape != data.shape[1:2]:
            raise FileFormatError(
                f"{store.path}: normalise=mean-std needs array {name!r} with one number for each "
                "variable; let anemoi-datasets compute the statistics"
            )
        values = read_stored_box(index_box(range_file(store.path), variable))
        statistics.append(values.astype(np.float64)[list(columns)])
    mean, stdev = statistics
    unusable = [
        name
        for name, usable in zip(channels, np.isfinite(mean) & (stdev > 0), strict=True)
        if not usable
    ]
    if unusable:
        raise OptionError(
            f"normalise=mean-std: {store.path} has no mean, or a stdev of 0, for "
            f"{', '.join(unusable)}; leave them out: --option drop={','.join(unusable)}"
        )
    dtype = np.dtype(data.packing.stored).newbyteorder("=")
    factor, offset = 1 / stdev, -mean / stdev
    return factor.astype(dtype)[:, None, None], offset.astype(dtype)[:, None, None]
