"""Adapter to xarray: files opened, and the loads of arrays that were left on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import note_array, note_name
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

__all__ = ["adapt"]

OPENERS = ("open_dataset", "open_dataarray", "open_mfdataset", "open_zarr")
LOADERS = ("load_dataset", "load_dataarray")


def adapt(patches: Patches, xarray: Any) -> None:
    """Time opening, loading, and the decoding that xarray does itself (scale, offset, masks).

    A load is a ``read``; what the library below (netCDF4, h5py, zarr, ecCodes) is seen to do in
    it has spans of its own inside.
    """
    indexing = xarray.core.indexing
    on_disk = xarray.backends.BackendArray

    def is_on_disk(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return isinstance(args[0].array, on_disk)

    def note_load(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        if span.holds_bytes:
            span.nbytes = 0  # they have the bytes, which would count twice
        elif not span.holds_spans:
            note_array(span, result, args, kwargs)
        source = args[0].array
        name = getattr(source, "variable_name", "")
        file = getattr(getattr(source, "datastore", None), "_filename", "")
        if isinstance(name, str) and isinstance(file, str):
            span.detail = f"{file}:{name}" if file else name

    for name in OPENERS:
        patches.time(xarray, name, Kind.OPEN, by_threads=True, note=note_name(0, "filename_or_obj"))
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
