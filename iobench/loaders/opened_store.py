"""A store opened by a script: one that also makes batches of itself."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.errors import StoreError
from iobench.files.atomic import is_local
from iobench.stores.chunked_store import ChunkedStore
from iobench.stores.extents import ExtentStore
from iobench.stores.finished_store import open_store as open_finished
from iobench.stores.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.loader import RingLoader
    from iobench.loaders.ring.sample_source import SourceSamples
    from iobench.stores.contract import Store


class _InLoader(ExtentStore):
    """A store whose samples are read side by side, and in a loader."""

    _rows: SourceSamples | None = None

    def __getitems__(self, indices: Sequence[int]) -> Sequence[dict[str, NDArray[Any]]]:
        if not is_local(self.path):
            return super().__getitems__(indices)
        from iobench.loaders.ring.sample_source import SourceSamples
        from iobench.loaders.ring.store_source import source_of_store

        if self._rows is None:
            self._rows = SourceSamples(source_of_store(self))
        return self._rows.__getitems__(indices)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rows": None}  # it refers back to the store

    def loader(self, batch_size: int, **options: Any) -> RingLoader:
        """Return ``iobench.loader(self, batch_size, ...)``."""
        from iobench.loaders.ring.options import loader

        return loader(self, batch_size, **options)

    def close(self) -> None:
        """Close the files; the store reopens them when used again."""
        super().close()
        self._rows = None


class OpenedStore(_InLoader):
    """What `iobench.open_store` returns."""


class OpenedChunkedStore(_InLoader, ChunkedStore):
    """What `iobench.open_store` returns of a store whose chunks hold several samples."""


def _opened(store: Store) -> Store:
    """Return the same store, as opened by a script; a class of a format's own is left as it is."""
    if not isinstance(store, ExtentStore):
        return store
    kind = {ExtentStore: OpenedStore, ChunkedStore: OpenedChunkedStore}.get(type(store))
    if kind is None:
        return store
    opened = kind(store.path, store.manifest, table=store.table, decode=store.decoder)
    opened.codec = store.codec
    return opened


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
    # Workers that are forked for each epoch would import it in each to read their first sample.
    import iobench.loaders.ring  # noqa: F401

    place = path if isinstance(path, str) and "://" in path else Path(path)
    try:
        store = open_finished(place)
    except StoreError as error:
        if isinstance(place, str) or not place.exists() or (place / MANIFEST_NAME).exists():
            raise
        raise StoreError(
            f"{error}; iobench.open_dataset loads other GRIB, NetCDF and Zarr files as they are, "
            f"'iobench convert {shlex.quote(str(place.absolute()))} OUT --to zarr' makes a store"
        ) from error
    return _opened(store)
