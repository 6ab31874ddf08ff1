"""Arrays that the zarr library reads: codecs, shards and chunk grids that are not taken apart here.

Chunks next to each other are one selection, whose gets zarr sends together; `zarrs` decodes where
it is installed and the store is of this machine.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from iobench.chunks.zarr_store import check_folder
from iobench.errors import MissingExtraError, import_extra
from iobench.files.objects import renew_library, store_of
from iobench.files.urls import URL, as_path

if TYPE_CHECKING:
    from iobench.chunks.chunked_variable import ChunkedVariable, Place


def read_part(file: str, variable: ChunkedVariable, start: Place, stop: Place) -> Any:
    """Return numbers of the array that lies in the variable's folder."""
    array = _opened(variable.folder, os.getpid())
    return array[tuple(map(slice, start, stop))]


def load_zarr(what: str) -> Any:
    """Return zarr, of version 3 or newer."""
    zarr = import_extra("zarr", f"{what} needs zarr 3", extra="zarr")
    if int(zarr.__version__.partition(".")[0]) < 3:
        raise MissingExtraError(
            f"{what} needs zarr 3, {zarr.__version__} is installed: pip install 'zarr>=3'"
        )
    return zarr


@lru_cache(maxsize=256)
def _opened(folder: str, process: int) -> Any:
    """Return the array in a folder, opened by this process."""
    zarr, path = load_zarr(f"{folder}: how it is stored"), as_path(folder)
    check_folder(path)
    if isinstance(path, URL):
        store, key = store_of(path)
        return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), path=key, mode="r")
    with _fast_pipeline(zarr), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metadata: it says nothing about the numbers
        return zarr.open_array(str(path), mode="r")


def _fast_pipeline(zarr: Any) -> Any:
    """Let zarrs decode what is opened meanwhile, where it is installed."""
    if find_spec("zarrs") is None:
        return nullcontext()
    renew_library("zarrs._internal")
    zarr.registry.register_pipeline(import_module("zarrs").ZarrsCodecPipeline)
    return zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
