"""Opening stores: our own, and those of others that are laid out as well."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.loaders.foreign_numpy import is_numpy, open_numpy
from iobench.loaders.opened_store import OpenedStore
from iobench.stores.extents import ExtentStore
from iobench.stores.finished_store import open_store as open_own
from iobench.stores.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    import os

    from iobench.stores.contract import Store


def open_store(path: str | os.PathLike[str]) -> Store:
    """Return the store at ``path``, for random access and for `iobench.loader`.

    Parameters
    ----------
    path : path or str
        A store that ``iobench convert`` made, of any format, or its address (``s3://...``). Or
        what others wrote, if each sample is one uncompressed range of a file for each array: a
        Zarr array or group of version 2 or 3 whose first dimension counts samples, an ``.npy``
        file, a folder of them. Arrays of a group without that dimension are left out.

    Raises
    ------
    StoreError
        If it is unfinished, damaged, or laid out otherwise; with the reason, and with the line that
        converts it.
    """
    # Workers that are forked for each epoch would import it in each to read their first sample.
    import iobench.loaders.ring  # noqa: F401

    if isinstance(path, str) and "://" in path:
        return _opened(open_own(path))
    place = Path(path)
    if (place / MANIFEST_NAME).exists() or not place.exists():
        return _opened(open_own(place))
    from iobench.loaders import foreign_zarr

    place = place.absolute()
    if foreign_zarr.is_zarr(place):
        return foreign_zarr.open_zarr(place)
    if is_numpy(place):
        return open_numpy(place)
    try:
        return _opened(open_own(place))
    except StoreError as error:
        raise StoreError(
            f"{error}; nor are there Zarr or .npy files: iobench convert "
            f"{shlex.quote(str(place))} OUT --to zarr makes a store of others"
        ) from error


def _opened(store: Store) -> Store:
    # A class of a format's own is left as it is.
    return OpenedStore.of(store) if type(store) is ExtentStore else store
