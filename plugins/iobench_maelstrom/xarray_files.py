"""Opens files with xarray as the applications do; what cannot be opened is named in one line."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from iobench.errors import FileFormatError, MissingExtraError, MissingFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def require_xarray(dataset: str, *others: str) -> None:
    """Check that xarray, netCDF4 and other libraries are installed, importing none.

    Raises
    ------
    MissingExtraError
        Naming what is missing, and what installs it.
    """
    needed = ("xarray", "netCDF4", *others)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{dataset}, --pipeline upstream: needs {', '.join(missing)}: "
            "pip install 'iobench[netcdf,convert]'"
        )


def open_file(path: Path, **how: Any) -> Any:
    """Return a file as ``xarray.open_dataset`` opens it.

    Raises
    ------
    MissingFileError, FileFormatError
        If it is gone, or cannot be opened.
    """
    import xarray

    try:
        return xarray.open_dataset(path, engine="netcdf4", **how)
    except (OSError, ValueError) as error:
        raise _unreadable(error, [path]) from error


def open_joined(paths: Sequence[Path], dim: str, **how: Any) -> Any:
    """Return files joined along a dimension, lazily, as ``xarray.open_mfdataset`` opens them.

    Raises
    ------
    MissingFileError, FileFormatError
        If one is gone, or cannot be opened.
    """
    import xarray

    try:
        return xarray.open_mfdataset(
            paths,
            engine="netcdf4",
            combine="nested",
            concat_dim=dim,
            data_vars="minimal",
            coords="minimal",
            compat="override",
            **how,
        )
    except (OSError, ValueError) as error:
        raise _unreadable(error, paths) from error


@contextlib.contextmanager
def loading_threads() -> Iterator[None]:
    """Let dask use threads that end with this, as many as it would take.

    Its own stay, and a process forked later believes to have them, too, and waits for them.
    """
    import dask.system

    with ThreadPoolExecutor(dask.system.CPU_COUNT) as pool, dask.config.set(pool=pool):
        yield


def _unreadable(error: Exception, paths: Sequence[Path]) -> FileFormatError | MissingFileError:
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        return MissingFileError(
            f"{', '.join(missing)}: is gone since it was indexed; fetch it again"
        )
    reason = " ".join(str(error).split())
    at_fault = next((path for path in paths if str(path) in reason), paths[0])
    return FileFormatError(f"{at_fault}: cannot be opened with xarray: {reason}; fetch it again")
