"""The functions of other libraries that are timed: one table of module, attribute, kind and note.

A package adds rows for its own library, or another one, by an entry point of the group
``iobench.adapters``: its name is the module whose import brings the functions, its value a
sequence of `TimedCall`.
"""

from __future__ import annotations

import operator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters import counted_files, notes
from iobench.adapters.patches import TimedCall
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.adapters.patches import Condition, Note, Patches


def _fused(attribute: str, note: Note | None = None) -> TimedCall:
    return TimedCall(attribute, Kind.FUSED, note, notes.READ_AND_DECODE, with_cpu=True)


_FILE_OF_DATASET: Final = notes.note_file(0, "filename_or_obj")
_GRIB_READERS: Final = ("grib_new_from_file", "bufr_new_from_file", "any_new_from_file")
_GRIB_DECODERS: Final = ("get_values", "get_array", "get_double_array", "get_float_array")


def _messages(prefix: str, decoder: str) -> tuple[TimedCall, ...]:
    """Return rows of ecCodes by the names of ``eccodes`` or of the bindings below it."""
    readers = ["codes_new_from_file", *(f"{prefix}{name}" for name in _GRIB_READERS)]
    return (
        *(TimedCall(name, Kind.READ, notes.note_message) for name in readers),
        *(
            TimedCall(f"{decoder}{name}", Kind.DECODE, notes.note_bytes, optional=True)
            for name in _GRIB_DECODERS
        ),
    )


def _lazy(name: str) -> TimedCall:
    return TimedCall(
        f"{name}.get_duck_array", Kind.READ, notes.note_lazy_load,
        only_if=notes.is_on_disk, with_cpu=True, encloses=True,
    )  # fmt: skip


def _brought(name: str, note: Note, only_if: Condition | None = None) -> TimedCall:
    return TimedCall(name, Kind.READ, note, only_if=only_if, by_threads=True)


def _lock(name: str) -> TimedCall:
    return TimedCall(f"{name}.__enter__", Kind.LOCK, only_if=notes.is_locked, with_cpu=True)


TABLE: Final[Mapping[str, tuple[TimedCall, ...]]] = {
    "os": (
        TimedCall(
            "open", Kind.OPEN, counted_files.note_descriptor,
            only_if=counted_files.opens_descriptor,
        ),
        TimedCall("read", Kind.READ, notes.note_bytes, only_if=counted_files.is_regular),
        TimedCall("pread", Kind.READ, notes.note_bytes, optional=True),
        TimedCall("preadv", Kind.READ, notes.note_bytes, optional=True),
    ),
    "distributed": (TimedCall("Client.get", Kind.OPAQUE, label="dask.distributed"),),
    "eccodes": _messages("codes_", "codes_"),
    "fsspec": (
        TimedCall(
            "spec.AbstractFileSystem.open", Kind.OPEN, notes.note_file(1, "path"),
            only_if=notes.opens_to_read(2, "rb", "r", "rb", "rt"), by_threads=True,
        ),
        _brought("spec.AbstractFileSystem.cat_file", notes.note_file(1, "path")),
        _brought("spec.AbstractFileSystem.cat_ranges", notes.note_bytes),
        _brought("spec.AbstractBufferedFile.read", notes.note_file(0, "self")),
    ),
    # What a thread waits for while fsspec's event loop fetches it.
    "fsspec.asyn": (_brought("sync", notes.note_file(2, "path"), notes.fetches),),
    "gribapi": _messages("", "grib_"),
    # Held by one process at a time: waiting for it is no work, and more processes share one time.
    "fcntl": tuple(TimedCall(name, Kind.LOCK, label="file") for name in ("flock", "lockf")),
    "h5py": (
        TimedCall("File.__init__", Kind.OPEN, notes.note_file(1, "name"), only_if=notes.opens_hdf5),
        # CPU time tells a read that waited from one that computed.
        TimedCall("Dataset.__getitem__", Kind.READ, notes.note_hdf5_item, with_cpu=True),
        TimedCall("Dataset.read_direct", Kind.READ, notes.note_hdf5_direct, with_cpu=True),
        TimedCall("Dataset.__array__", Kind.READ, notes.note_hdf5_array, with_cpu=True),
    ),
    "multiprocessing.synchronize": (
        TimedCall(
            "SemLock.__enter__", Kind.LOCK, label="multiprocessing", only_if=notes.is_own_lock
        ),
    ),
    "netCDF4": (
        TimedCall(
            "Dataset.__init__", Kind.OPEN, notes.note_netcdf_file,
            only_if=notes.opens_to_read(2, "r", "r", "rs", "r+", "a", "r+s", "as"),
        ),
        TimedCall("Variable.__getitem__", Kind.READ, notes.note_netcdf_item, with_cpu=True),
    ),
    "numpy": (
        TimedCall("load", Kind.READ, notes.note_numpy_load),
        TimedCall("fromfile", Kind.READ, notes.note_file(0, "file")),
        # The class stays what it is: arrays are asked whether they are instances of it.
        TimedCall("memmap.__new__", Kind.OPEN, notes.note_file(1, "filename")),
        TimedCall("lib.npyio.NpzFile.__getitem__", Kind.READ, notes.note_archive_member),
        _fused("loadtxt", notes.note_bytes),
        _fused("genfromtxt", notes.note_bytes),
    ),
    "pandas": (
        *(_fused(name, notes.note_path(0, "filepath_or_buffer"))
          for name in ("read_csv", "read_table", "read_pickle")),
        *(_fused(name, notes.note_path(0, "path")) for name in ("read_parquet", "read_feather")),
        *(_fused(name, notes.note_path(0, "path_or_buf")) for name in ("read_hdf", "read_json")),
        _fused("read_excel", notes.note_path(0, "io")),
        _fused("io.parsers.TextFileReader.read"),
    ),
    "pyarrow.parquet": (
        _fused("read_table", notes.note_path(0, "source")),
        _fused("ParquetFile.read"),
        _fused("ParquetFile.read_row_group"),
        _fused("ParquetFile.read_row_groups"),
    ),
    "torch": (_fused("load", notes.note_path(0, "f")),),
    "xarray": (
        *(
            TimedCall(name, Kind.OPEN, _FILE_OF_DATASET, by_threads=True)
            for name in ("open_dataset", "open_dataarray", "open_mfdataset", "open_zarr")
        ),
        *(
            TimedCall(name, Kind.OPEN, _FILE_OF_DATASET, encloses=True)
            for name in ("load_dataset", "load_dataarray")
        ),
        _lazy("core.indexing.LazilyIndexedArray"),
        _lazy("core.indexing.LazilyVectorizedIndexedArray"),
        # Scale, offset and masks.
        TimedCall(
            "coding.common._ElementwiseFunctionArray.get_duck_array", Kind.DECODE,
            notes.note_bytes, encloses=True,
        ),
        _lock("backends.locks.CombinedLock"),
        _lock("backends.locks.SerializableLock"),
    ),
    "xbatcher.generators": (
        TimedCall("BatchGenerator.__getitem__", Kind.PREPROCESS, label="xbatcher", with_cpu=True,
              encloses=True),
    ),
    "zarr": tuple(
        TimedCall(name, Kind.OPEN, notes.note_file(0, "store"), by_threads=True)
        for name in ("open", "open_array", "open_group", "open_consolidated")
    ),
}  # fmt: skip
"""Module that is imported: what of it is timed."""
SPECIAL: Final[Mapping[str, str]] = {
    "concurrent.futures._base": "handed_batches",
    "io": "counted_files",
    "dask.local": "dask_tasks",
    "dask.multiprocessing": "dask_tasks",
    "dask.threaded": "dask_tasks",
    "lightning.pytorch.loops.evaluation_loop": "loaders_of_torch",
    "multiprocessing.connection": "handed_batches",
    "physicsnemo.datapipes.dataloader": "loaders_of_torch",
    "pytorch_lightning.loops.evaluation_loop": "loaders_of_torch",
    "queue": "handed_batches",
    "selectors": "handed_batches",
    "threading": "handed_batches",
    "torchdata.nodes.loader": "loaders_of_torch",
    "torchdata.stateful_dataloader.stateful_dataloader": "loaders_of_torch",
    "zarr": "zarr_arrays",
}
"""Module: the module here whose ``adapt`` does what a row cannot say."""
# What a library that is not as we know it answers; it goes on untimed, and is named.
MISFITS: Final = (AttributeError, ImportError, LookupError, TypeError, ValueError)
PRESENT: Final = ("io", "os")
"""Modules that are imported before any of ours."""


def time_module(
    patches: Patches, name: str, module: Any, others: Mapping[str, str]
) -> Iterator[str]:
    """Time the functions of a module that was imported; yield what could not be timed, and why."""
    if name in SPECIAL:
        try:
            import_module(f"iobench.adapters.{SPECIAL[name]}").adapt(patches, module)
        except MISFITS as error:
            yield f"{type(error).__name__}: {error}"
    rows: Sequence[TimedCall] = TABLE.get(name, ())
    if name in others:
        try:
            place, _, rows_name = others[name].partition(":")
            rows = (*rows, *getattr(import_module(place), rows_name))
        except Exception as error:  # noqa: BLE001 - what another package raises ends no training
            yield f"{others[name]}: {type(error).__name__}: {error}"
    for row in rows:
        try:
            owner, _, attribute = row.attribute.rpartition(".")
            holder = operator.attrgetter(owner)(module) if owner else module
            if attribute in vars(holder) or not row.optional:
                patches.time(holder, attribute, row)
        except MISFITS as error:
            yield f"{type(error).__name__}: {error}"
