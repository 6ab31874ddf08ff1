"""How application A6 merges weather files: through xarray, into one data set along the time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from iobench.errors import MissingExtraError

__all__ = ["loading_threads", "merged", "xarray_library"]


def merged(paths: Sequence[Path], n_steps: int | None) -> Any:
    """Return weather files as one ``xarray.Dataset`` along the time, lazily; a context manager.

    The plugin opens the files in several threads, in which netCDF4 fails; here they are opened one
    after the other.
    """
    xarray = xarray_library()

    def first_steps(data: Any) -> Any:
        return data.isel(time=slice(n_steps))

    return xarray.open_mfdataset(
        paths,
        engine="netcdf4",
        combine="nested",
        concat_dim="time",
        coords="minimal",
        data_vars="minimal",
        compat="override",
        preprocess=first_steps,
    )


@contextlib.contextmanager
def loading_threads() -> Iterator[ThreadPoolExecutor]:
    """Let dask use threads that end with this, as many as it would take.

    Its own stay, and a process forked later believes to have them, too, and waits for them.
    """
    import dask.system

    with (
        ThreadPoolExecutor(dask.system.CPU_COUNT) as pool,
        dask.config.set(pool=pool),
    ):
        yield pool


def xarray_library() -> Any:
    """Return xarray, with what it needs to merge files.

    Raises
    ------
    MissingExtraError
        If one of them, netCDF4 or dask is not installed.
    """
    try:
        import dask.array  # noqa: F401
        import netCDF4  # noqa: F401
        import xarray
    except ImportError as error:
        raise MissingExtraError(
            f"--pipeline upstream of A6 needs {error.name}: pip install 'iobench[netcdf,convert]'"
        ) from error
    return xarray
