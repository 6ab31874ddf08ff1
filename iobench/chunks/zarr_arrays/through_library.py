"""Arrays that only zarr can read: codecs, grids and layouts of version 3 that are not undone here.

zarr makes whatever codec metadata name. So the file that it will read is looked at first, and zarr
is told its version: beside a ``zarr.json`` that is fine may lie a ``.zarray`` that is not.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.packing import unpack
from iobench.chunks.zarr_arrays.version3 import check_safe3
from iobench.errors import FileFormatError, MissingExtraError, StorageError
from iobench.files.object_requests import store_of
from iobench.files.urls import URL, as_path
from iobench.json_files import read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable

ZARR_ERRORS = (ValueError, KeyError, TypeError, NotImplementedError, OSError, RuntimeError)


def check_through_zarr(variable: ChunkedVariable) -> None:
    """Open an array through zarr, or say why neither can read it."""
    _opened(os.getpid(), variable.folder, _said(variable))


def read_through_zarr(variable: ChunkedVariable, *, axis: int, index: int) -> NDArray[Any]:
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


def _said(variable: ChunkedVariable) -> str:
    return f"{variable.folder}: array {variable.name!r} ({variable.only_library})"


def _unreadable(said: str, reason: str) -> FileFormatError:
    return FileFormatError(
        f"{said} can be read neither by iobench nor through zarr: {reason}; leave the array out "
        "with --variables, or write it with another codec"
    )


@lru_cache(maxsize=64)
def _opened(pid: int, folder: str, said: str) -> Any:
    """Open an array, once per process: zarr's threads do not survive a fork."""
    place = as_path(folder)
    try:
        check_safe3(read_json(place / "zarr.json"))
    except StorageError:
        raise
    except FileNotFoundError as error:  # version 2: zarr has no codecs that numcodecs lacks
        raise _unreadable(said, "only codecs that are known to be safe are made") from error
    except OSError as error:
        raise StorageError(f"{place / 'zarr.json'}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(said, str(error)) from error
    try:
        import zarr
    except ImportError as error:
        raise MissingExtraError(f"{said} needs zarr: pip install 'iobench[zarr]'") from error
    if not hasattr(zarr.storage, "ObjectStore"):
        raise _unreadable(said, f"zarr {zarr.__version__} knows no version 3, or no objects")
    # As a path to a folder, never as a text: in that zarr looks for addresses and archives.
    name = ""
    if isinstance(place, URL):
        objects, name = store_of(place)
        store = zarr.storage.ObjectStore(objects, read_only=True)
    else:
        store = zarr.storage.LocalStore(folder, read_only=True)
    try:
        return zarr.open_array(store, path=name, mode="r", zarr_format=3)
    except ZARR_ERRORS as error:
        reason = " ".join(str(error).split())
        raise _unreadable(said, f"zarr {zarr.__version__}: {reason}") from error
