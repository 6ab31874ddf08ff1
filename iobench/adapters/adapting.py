"""Which module, once imported, gets which adapter. Adapters load with their library only."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches

ALWAYS: Final = {"io": "counted_files:adapt_open", "os": "counted_files:adapt_descriptors"}
"""Modules that are there before us."""
ADAPTERS: Final = {
    "PIL.Image": "images:adapt_opening",
    "PIL.ImageFile": "images:adapt_loading",
    "dask.local": "dask_tasks:adapt_schedulers",
    "dask.multiprocessing": "dask_tasks:adapt_schedulers",
    "dask.threaded": "dask_tasks:adapt_schedulers",
    "distributed": "dask_tasks:adapt_cluster",
    "eccodes": "grib_messages:adapt_eccodes",
    "fsspec": "remote_files:adapt",
    "fsspec.asyn": "remote_files:adapt_loops",
    "gribapi": "grib_messages:adapt_gribapi",
    "h5py": "hdf5:adapt",
    "litdata.streaming.compression": "stream_shards:adapt_inflating",
    "litdata.streaming.item_loader": "stream_shards:adapt_items",
    "netCDF4": "netcdf_variables:adapt",
    "numpy": "numpy_files:adapt",
    "pandas": "tables:adapt_pandas",
    "pyarrow.parquet": "tables:adapt_parquet",
    "streaming.base.format.json.reader": "stream_shards:adapt_samples",
    "streaming.base.format.mds.reader": "stream_shards:adapt_samples",
    "streaming.base.format.xsv.reader": "stream_shards:adapt_samples",
    "streaming.base.stream": "stream_shards:adapt_chunks",
    "tarfile": "tar_archives:adapt",
    "torch": "checkpoints:adapt",
    "webdataset.autodecode": "web_samples:adapt_decoding",
    "webdataset.filters": "web_samples:adapt_batches",
    "xarray": "lazy_arrays:adapt",
    "xbatcher.generators": "lazy_arrays:adapt_batches",
    "zarr": "zarr_arrays:adapt",
}
"""Module: the function, in a module beside this one, that puts the timed functions in place."""


def adapt(target: str, patches: Patches, module: Any) -> None:
    """Load an adapter and let it put its functions in place."""
    name, _, function = target.partition(":")
    getattr(import_module(f"iobench.adapters.{name}"), function)(patches, module)
