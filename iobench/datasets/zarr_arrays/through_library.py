"""Arrays that only zarr can read: codecs, grids and layouts that are not undone here."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.packing import unpack
from iobench.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.zarr_arrays.arrays import ZarrVariable

__all__ = ["check_through_zarr", "read_through_zarr"]

ZARR_ERRORS = (ValueError, KeyError, TypeError, NotImplementedError, OSError, RuntimeError)


def check_through_zarr(variable: ZarrVariable) -> None:
    """Open an array through zarr, or say why neither can read it.

    Raises
    ------
    FileFormatError
        If zarr cannot open it: names store, array and codec.
    MissingExtraError
        If zarr is missing.
    """
    _opened(os.getpid(), variable.folder, _said(variable))


def read_through_zarr(variable: ZarrVariable, *, axis: int, index: int) -> NDArray[Any]:
    """Return one index along ``axis`` (-1: all) through zarr, unpacked."""
    opened = _opened(os.getpid(), variable.folder, _said(variable))
    place: list[Any] = [slice(None)] * len(variable.shape)
    if axis >= 0:
        place[axis] = index
    try:
        stored = np.asarray(opened[tuple(place)])
    except ZARR_ERRORS as error:
        reason = " ".join(str(error).split())
        raise FileFormatError(
            f"{_said(variable)} cannot be read: {reason}; fetch the store again"
        ) from error
    as_packed = np.dtype(variable.packing.stored).newbyteorder(stored.dtype.byteorder)
    return unpack(stored.view(as_packed), variable.packing)


def _said(variable: ZarrVariable) -> str:
    return f"{variable.store}: array {variable.name!r} ({variable.only_zarr})"


@lru_cache(maxsize=64)
def _opened(pid: int, folder: str, said: str) -> Any:
    """Open an array, once per process: zarr's threads do not survive a fork."""
    try:
        import zarr
    except ImportError as error:
        raise MissingExtraError(f"{said} needs zarr: pip install 'iobench[zarr]'") from error
    try:
        return zarr.open_array(folder, mode="r")
    except ZARR_ERRORS as error:
        reason = " ".join(str(error).split())
        raise FileFormatError(
            f"{said} can be read neither by iobench nor by zarr {zarr.__version__}: {reason}; "
            "leave the array out with --variables, or write it with another codec"
        ) from error
