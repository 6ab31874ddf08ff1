"""Adapter to xarray: files opened, and the loads of arrays that were left on the disk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import note_array, note_name
from iobench.recording.kinds import Kind
from iobench.recording.outside import DETAIL_LIMIT
from iobench.recording.span_file import Flag
from iobench.recording.task_spans import CHUNKS

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan
    from iobench.recording.recorder import Recorder

OPENERS = ("open_dataset", "open_dataarray", "open_mfdataset", "open_zarr")
LOADERS = ("load_dataset", "load_dataarray")


def adapt(patches: Patches, xarray: Any) -> None:
    """Time opening, loading, and the decoding that xarray does itself (scale, offset, masks).

    A load is a ``read``, unless the library below (netCDF4, h5py, zarr, ecCodes) is seen to read in
    it: then it is xarray's own work around that. Waiting for a lock that another thread holds has
    spans of its own inside.
    """
    indexing = xarray.core.indexing
    on_disk = xarray.backends.BackendArray

    def is_on_disk(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return isinstance(args[0].array, on_disk)

    def note_load(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        if span.holds_bytes:  # who reads is seen: what is left is xarray's own work around it
            span.kind, span.label = Kind.PREPROCESS, "xarray"
        elif not span.holds_spans:
            note_array(span, result, args, kwargs)
        source = args[0].array
        name = getattr(source, "variable_name", "")
        file = getattr(getattr(source, "datastore", None), "_filename", "")
        if isinstance(name, str) and isinstance(file, str):
            span.detail = f"{file}:{name}" if file else name

    note_file = note_name(0, "filename_or_obj")

    def note_chunked(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        note_file(span, result, args, kwargs)
        _tell_chunks(span.lane.recorder, result)

    for name in OPENERS:
        # Of many files at once, what was read of each is not held against all of them.
        note = note_file if name == "open_mfdataset" else note_chunked
        patches.time(xarray, name, Kind.OPEN, by_threads=True, note=note)
    for name in LOADERS:
        patches.time(xarray, name, Kind.OPEN, hiding=False, note=note_name(0, "filename_or_obj"))
    for array in (indexing.LazilyIndexedArray, indexing.LazilyVectorizedIndexedArray):
        patches.time(
            array,
            "get_duck_array",
            Kind.READ,
            with_cpu=True,
            hiding=False,
            only_if=is_on_disk,
            note=note_load,
        )
    home = getattr(xarray.coding, "common", xarray.coding.variables)  # common: since 2025.03
    patches.time(
        home._ElementwiseFunctionArray, "get_duck_array", Kind.DECODE, hiding=False, note=note_array
    )
    locks = xarray.backends.locks
    for lock in (locks.CombinedLock, locks.SerializableLock):
        patches.time(lock, "__enter__", Kind.LOCK, with_cpu=True, only_if=_is_held)


def _is_held(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[0].locked())


def _tell_chunks(recorder: Recorder, opened: Any) -> None:
    """Tell of each variable that dask cuts into chunks its bytes, and their number.

    Under the name that its reads have, and in no sum.
    """
    variables = getattr(opened, "variables", None) or {opened.name: opened.variable}
    now_ns, label = recorder.clock.now_ns(), recorder.string(CHUNKS)
    for name, variable in variables.items():
        if variable.chunks is not None:
            source = variable.encoding.get("source") or opened.encoding.get("source", "")
            detail = f"{source}:{name}"
            if len(recorder._strings) >= DETAIL_LIMIT and detail not in recorder._strings:
                return
            recorder.emit(
                Kind.OPEN, now_ns, now_ns, int(variable.nbytes), label=label,
                detail=recorder.string(detail), flags=Flag.DETAIL,
                pieces=math.prod(map(len, variable.chunks)),
            )  # fmt: skip


def adapt_batches(patches: Patches, generators: Any) -> None:
    """Time the batches that xbatcher cuts out of an array; of one that is lazy, nothing is read."""
    patches.time(
        generators.BatchGenerator,
        "__getitem__",
        Kind.PREPROCESS,
        "xbatcher",
        with_cpu=True,
        hiding=False,
    )
