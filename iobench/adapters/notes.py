"""What adapters note of a call: bytes of what came back, names of what was read, its kind.

A note is called with the span, the result and the arguments of a call that went well. What it
raises makes the bytes unknown and goes no further. Libraries are looked up in the functions, so
that none is imported for its notes.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.chunk_counts import ChunkCounter
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Arguments, Condition, Note, Options
    from iobench.recording.outside import OutsideSpan

READ_AND_DECODE: Final = "read+decode"
"""Label of calls that read and decode in one."""


def fuse(span: OutsideSpan) -> None:
    """Make a span one of reading and decoding in one call."""
    span.kind, span.label = Kind.FUSED, READ_AND_DECODE


def argument(
    args: Arguments, kwargs: Options, position: int, name: str, default: Any = None
) -> Any:
    """Return an argument that may be given by position or by name."""
    return args[position] if len(args) > position else kwargs.get(name, default)


def is_in_memory(file: Any) -> bool:
    """Say whether what is to be read lies in memory: its reading was timed before, or never."""
    return isinstance(file, io.BytesIO | io.StringIO)


def file_name(file: Any) -> str:
    """Return the name of a file given as a path or as an open file; ``""`` if it has none."""
    if isinstance(file, str):
        return file
    if isinstance(file, bytes | os.PathLike):
        return os.fsdecode(file)
    name = getattr(file, "name", None) or getattr(file, "path", "")
    return name if isinstance(name, str) else ""


def note_bytes(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note the bytes that came back, in one piece or several, or that a call says it brought."""
    if isinstance(result, dict | list):
        parts = result.values() if isinstance(result, dict) else result
        span.nbytes = sum(len(part) for part in parts if isinstance(part, bytes))
        return
    nbytes = len(result) if isinstance(result, bytes) else getattr(result, "nbytes", result)
    span.nbytes = nbytes if isinstance(nbytes, int) else -1


def note_file(position: int, name: str) -> Note:
    """Return a note of the file that an argument names; but of opening, of the bytes of it, too."""

    def note(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
        span.detail = file_name(argument(args, kwargs, position, name))
        if span.kind != Kind.OPEN:
            note_bytes(span, result, args, kwargs)

    return note


def note_path(position: int, name: str) -> Note:
    """Return a note of the file that a call reads and decodes, and of its size."""

    def note(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
        file = argument(args, kwargs, position, name)
        span.detail = file_name(file)
        if is_in_memory(file):
            span.kind, span.label = Kind.DECODE, ""
        if span.detail:
            span.nbytes = os.stat(span.detail).st_size  # noqa: PTH116 - costs a tenth of a Path's

    return note


def opens_to_read(position: int, default: str, *modes: str | None) -> Condition:
    """Return whether the argument ``mode`` of a call is one of reading."""

    def condition(args: Arguments, kwargs: Options) -> bool:
        return argument(args, kwargs, position, "mode", default) in modes

    return condition


# -- NumPy --------------------------------------------------------------------------------


def note_numpy_load(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note an array that was read; an archive and a mapping are opened."""
    import numpy as np

    file = argument(args, kwargs, 0, "file")
    span.detail = file_name(file)
    if isinstance(result, np.memmap | np.lib.npyio.NpzFile):
        span.kind = Kind.OPEN
        return
    span.nbytes = result.nbytes
    if is_in_memory(file):
        span.kind = Kind.DECODE


def note_archive_member(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note a member of an ``npz`` archive, inflated where it is compressed."""
    note_bytes(span, result, args, kwargs)
    archive = args[0].zip
    span.detail = file_name(archive.filename)
    names = archive.NameToInfo
    member = names.get(f"{args[1]}.npy") or names[args[1]]
    if is_in_memory(archive.fp):
        span.kind = Kind.DECODE
    elif member.compress_type != zipfile.ZIP_STORED:
        fuse(span)


# -- h5py ---------------------------------------------------------------------------------

SOURCE_OF_DATASET: Final = "_iobench_source"
"""What a dataset object was found to be, stored with it."""


def opens_hdf5(args: Arguments, kwargs: Options) -> bool:
    """Say whether ``File`` opens a file to read it; ``dataset.file`` makes one of an open file."""
    import h5py

    name = argument(args, kwargs, 1, "name")
    mode = argument(args, kwargs, 2, "mode", "r")
    return mode in {None, "r", "r+"} and not isinstance(name, h5py._objects.ObjectID)


def note_hdf5_item(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note values that were read of a dataset, decoded in the same call where it has filters."""
    note_bytes(span, result, args, kwargs)
    _note_hdf5(span, args[0], argument(args, kwargs, 1, "args", ()))


def note_hdf5_array(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note a dataset that was read as a whole."""
    note_bytes(span, result, args, kwargs)
    _note_hdf5(span, args[0], ())


def note_hdf5_direct(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note values that were read into an array; of a part of one the bytes are unknown."""
    if argument(args, kwargs, 3, "dest_sel") is None:
        span.nbytes = int(argument(args, kwargs, 1, "dest").nbytes)
    _note_hdf5(span, args[0], argument(args, kwargs, 2, "source_sel") or ())


def _note_hdf5(span: OutsideSpan, dataset: Any, selection: Any) -> None:
    import h5py

    source: tuple[str, bool, ChunkCounter | None, tuple[str, ...]] | None
    source = vars(dataset).get(SOURCE_OF_DATASET)
    if source is None:  # to ask costs as much as a small read
        handle = dataset.id
        layout = handle.get_create_plist()
        name = h5py.h5f.get_name(handle) + b":" + (h5py.h5i.get_name(handle) or b"")
        # The sources of a virtual dataset may have filters.
        is_encoded = bool(layout.get_nfilters()) or layout.get_layout() == h5py.h5d.VIRTUAL
        counter, dims = None, tuple[str, ...]()
        if layout.get_nfilters() and layout.get_layout() == h5py.h5d.CHUNKED:
            cache_nbytes = handle.get_access_plist().get_chunk_cache()[1]
            counter = ChunkCounter(dataset, dataset.chunks, cache_nbytes, os.fsdecode(name))
            dims = tuple(map(_hdf5_dimension, range(dataset.ndim), dataset.dims))
        source = os.fsdecode(name), is_encoded, counter, dims
        vars(dataset)[SOURCE_OF_DATASET] = source
    span.detail, is_encoded, counter, dims = source
    if is_encoded:
        fuse(span)
    if counter is not None:
        counter.note(span, selection, dims)


def _hdf5_dimension(number: int, dimension: Any) -> str:
    """Return the name of a dimension: of its scale, as netCDF files have it, or by its number."""
    scale = dimension[0].name.rpartition("/")[2] if len(dimension) else ""
    return scale or dimension.label or f"phony_dim_{number}"


# -- netCDF4 ------------------------------------------------------------------------------

FILES_LIMIT: Final = 1024
_netcdf_counters: Final[dict[str, dict[str, ChunkCounter]]] = {}
"""By file and variable, which carry nothing themselves: of the time that the file was opened."""


def note_netcdf_file(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note the file that is opened, of which nothing is decoded yet."""
    note_file(1, "filename")(span, result, args, kwargs)
    if len(_netcdf_counters) >= FILES_LIMIT:
        _netcdf_counters.clear()
    _netcdf_counters.pop(span.detail, None)


def note_netcdf_item(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note values of a variable; masked values and scaling are decoded unless turned off."""
    variable = args[0]
    span.nbytes = int(result.nbytes)
    # Files of the classic format have no filters.
    filters = variable.filters() or {}
    is_encoded = any(on for name, on in filters.items() if name != "complevel")
    if variable.mask or variable.scale or is_encoded:
        fuse(span)
    span.detail = f"{variable.group().filepath()}:{variable.name}"
    chunks = variable.chunking() if is_encoded else None
    if isinstance(chunks, list):
        file, _, name = span.detail.rpartition(":")
        counters = _netcdf_counters.setdefault(file, {})
        counter = counters.get(name)
        if counter is None:
            cache_nbytes = variable.get_var_chunk_cache()[0]
            counter = counters[name] = ChunkCounter(variable, chunks, cache_nbytes, span.detail)
        counter.note(span, argument(args, kwargs, 1, "elem", ()), variable.dimensions)


# -- ecCodes ------------------------------------------------------------------------------


def note_message(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note the file and bytes of a GRIB or BUFR message; at the end of the file there is none."""
    import gribapi

    span.detail = file_name(argument(args, kwargs, 0, "fileobj"))
    if result is not None:
        span.nbytes = gribapi.grib_get_message_size(result)


# -- xarray -------------------------------------------------------------------------------


def is_on_disk(args: Arguments, kwargs: Options) -> bool:
    """Say whether a lazy array is one of a file."""
    from xarray.backends import BackendArray

    return isinstance(args[0].array, BackendArray)


def is_locked(args: Arguments, kwargs: Options) -> bool:
    """Say whether another thread holds a lock."""
    return bool(args[0].locked())


def is_own_lock(args: Arguments, kwargs: Options) -> bool:
    """Say whether a lock of processes is entered by other code than that of their events."""
    return sys._getframe(2).f_globals.get("__name__") != "multiprocessing.synchronize"


def note_lazy_load(span: OutsideSpan, result: Any, args: Arguments, kwargs: Options) -> None:
    """Note the load of a lazy array."""
    if span.holds_bytes:
        span.kind, span.label = Kind.PREPROCESS, "xarray"
    elif not span.holds_spans:
        note_bytes(span, result, args, kwargs)
    source = args[0].array
    name = getattr(source, "variable_name", "")
    file = getattr(getattr(source, "datastore", None), "_filename", "")
    if isinstance(name, str) and isinstance(file, str):
        span.detail = f"{file}:{name}" if file else name


# -- fsspec -------------------------------------------------------------------------------

FETCHES: Final = frozenset(
    {"_cat", "_cat_file", "_cat_ranges", "_get", "_get_file", "_read", "_fetch_range"}
)
"""Coroutines of fsspec that bring bytes; others ask for names and sizes."""


def fetches(args: Arguments, kwargs: Options) -> bool:
    """Say whether a coroutine that is waited for brings bytes."""
    return getattr(args[1], "__name__", "") in FETCHES
