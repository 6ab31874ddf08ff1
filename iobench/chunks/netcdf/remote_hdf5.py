"""HDF5 files behind a URL, as h5py opens them: metadata in small pages, and no numbers."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iobench.files.open_files import OpenFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.files.ranges import RemoteBytes


@contextmanager
def hdf5_source(opened: OpenFile | RemoteBytes) -> Iterator[Any]:
    """Yield what `h5py.File` opens: the path of a local file, a file object for a remote one.

    Until it is done no garbage is collected. h5py holds its lock while it reads, and reading waits
    for the thread of requests: were that thread to collect an object of h5py's, it would wait for
    the lock for ever.
    """
    if isinstance(opened, OpenFile):
        yield opened.path
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        yield opened.reader()
    finally:
        if collects:
            gc.enable()
