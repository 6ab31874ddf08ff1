"""A store as a script opens it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.stores.finished_store import open_store as open_finished
from iobench.stores.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    import os

    from iobench.stores.contract import Store


def open_store(path: str | os.PathLike[str]) -> Store:
    """Return the store at ``path``, for random access and for `iobench.loader`.

    Parameters
    ----------
    path : path or str
        A store that ``iobench convert`` made, of any format, or its address (``s3://...``).

    Raises
    ------
    StoreError
        If it is unfinished or damaged, or holds no store of iobench's.
    """
    place = path if isinstance(path, str) and "://" in path else Path(path)
    try:
        return open_finished(place)
    except StoreError as error:
        if isinstance(place, str) or not place.exists() or (place / MANIFEST_NAME).exists():
            raise
        raise StoreError(
            f"{error}; iobench.open_dataset loads other GRIB, NetCDF and Zarr files as they are, "
            f"'iobench convert {shlex.quote(str(place.absolute()))} OUT --to zarr' makes a store"
        ) from error
