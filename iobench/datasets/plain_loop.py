"""Samples as most training scripts read them: a plain loop over xarray datasets."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from iobench.chunks.grib.messages import GRIB
from iobench.chunks.netcdf.file import HDF5_MAGIC
from iobench.chunks.zarr_store import check_for_library
from iobench.datasets.baseline import Baseline
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, MissingFileError

if TYPE_CHECKING:
    from iobench.datasets.contract import Arrays, Locator, PublishedStep, Raw, SampleIndex, Where
    from iobench.samples import Sample

PLAIN_LOOP: Final = (
    "a plain loop over xarray.open_dataset(file): isel along the sample dimension, then .values, "
    "without dask, in the training loop or in as many processes as --workers says. That is how "
    "scripts commonly read such files; yours may do otherwise: iobench run -- python train.py "
    "measures it."
)
NOT_READ: Final = (OSError, ValueError, RuntimeError, KeyError, IndexError, ImportError)
"""What xarray and the libraries below it raise of files they cannot read."""
MOST_OPEN: Final = 64


class VariablePart(NamedTuple):
    """What a sample takes of one variable of an xarray dataset."""

    source: str  # the path of a file
    variable: str  # its name there
    positions: Mapping[str, Any]  # by dimension; those that the variable lacks do not count
    labels: Mapping[str, Any] = {}  # by dimension: a value of its coordinate
    name: str = ""  # of the array; by default the variable's


class XarrayLoop:
    """A dataset whose samples xarray reads and decodes; another one found files and samples."""

    name = "xarray loop"
    title = ""
    fused: tuple[str, ...] = ("read", "decode")
    published: PublishedStep | None = None

    def __init__(
        self,
        select: Callable[[Where], Sequence[VariablePart]],
        preprocess: Callable[[Arrays, Where], Sample],
        **options: Any,
    ) -> None:
        self._select, self._preprocess, self._options = select, preprocess, options
        self._opened: dict[str, Any] = {}
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def files(self, locator: Locator) -> list[Path]:
        """Return none: our own reader finds the files."""
        return []

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Refuse: our own reader finds the samples."""
        raise TypeError("the samples were found by another dataset")

    def read(self, where: Where) -> Any:
        """Return the arrays of a sample by name."""
        arrays = {}
        for each in self._select(where):
            try:
                one = self._dataset(each.source)[each.variable]
                one = one.isel(each.positions, missing_dims="ignore")
                if each.labels:
                    one = one.sel(each.labels)
                # In this thread alone: threads of dask do not survive a fork.
                values = one.variable.load(scheduler="synchronous").values
            except IobenchError:
                raise
            except NOT_READ as error:
                raise _not_read(each.source, f"{each.variable}: {error}") from error
            native = values.dtype.newbyteorder("=")
            arrays[each.name or each.variable] = values.astype(native, copy=False)
        return arrays

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Refuse: xarray reads and decodes at once."""
        raise TypeError("read and decode are one step")

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample."""
        return self._preprocess(arrays, where)

    def close(self) -> None:
        """Close all that this process has opened; it is opened again when it is needed."""
        while self._opened:
            self._opened.popitem()[1].close()

    def _dataset(self, source: str) -> Any:
        if self._pid != os.getpid():  # handles of HDF5 do not survive a fork
            self._opened, self._pid = {}, os.getpid()
        if source not in self._opened:
            if len(self._opened) >= MOST_OPEN:
                self._opened.pop(next(iter(self._opened))).close()
            self._opened[source] = open_plainly(source, **self._options)
        return self._opened[source]


def make_plain_loop(
    index: SampleIndex,
    select: Callable[[Where], Sequence[VariablePart]],
    preprocess: Callable[[Arrays, Where], Sample],
    **options: Any,
) -> Baseline:
    """Return a plain loop that makes the samples of an index; the first is made at once.

    Parameters
    ----------
    select : callable
        Returns what xarray has to read of a sample, by where it is.
    preprocess : callable
        That of our reader.
    options
        Of ``xarray.open_dataset``.
    """
    if find_spec("xarray") is None:
        raise MissingExtraError(
            "--pipeline upstream: a plain loop needs xarray: pip install 'iobench[netcdf]'"
        )
    loop, where = XarrayLoop(select, preprocess, **options), index.where[0]
    try:
        sample = loop.preprocess(loop.read(where), where)
    finally:
        loop.close()
    for each in index.spec:
        if sample[each.name].shape != each.shape:
            shape = " x ".join(map(str, sample[each.name].shape))
            raise _not_read(select(where)[0].source, f"{each.name}: it makes {shape} of a sample")
    return Baseline(loop, PLAIN_LOOP)


def open_plainly(path: str, **options: Any) -> Any:
    """Return a file or Zarr store as ``xarray.open_dataset`` opens it."""
    import xarray

    try:
        if Path(path).is_dir():
            options = {**_zarr_options(Path(path)), **options}
        else:
            with Path(path).open("rb") as file:
                magic = file.read(8)
            if magic == HDF5_MAGIC and "engine" not in options:
                _check_for_netcdf(path)
            if magic[:4] == GRIB:
                if find_spec("cfgrib") is None:
                    why = "it needs the cfgrib package: pip install 'iobench[grib]'"
                    raise _not_read(path, why)
                own = {"indexpath": "", "squeeze": False}
                options = {"engine": "cfgrib", "backend_kwargs": own}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata: it says nothing about the numbers
            return xarray.open_dataset(path, decode_times=False, **options)
    except IobenchError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: is gone since it was indexed; fetch it again") from error
    except NOT_READ as error:
        raise _not_read(path, str(error)) from error


def _zarr_options(folder: Path) -> dict[str, Any]:
    if find_spec("zarr") is None:
        raise _not_read(str(folder), "it needs the zarr package: pip install 'iobench[zarr]'")
    check_for_library(folder)
    is_consolidated = (folder / ".zmetadata").exists()
    with contextlib.suppress(OSError, ValueError):
        is_consolidated |= "consolidated_metadata" in json.loads(
            (folder / "zarr.json").read_bytes()
        )
    # zarr keeps the error of looking for what is not there, and with it the batch that is made.
    return {"engine": "zarr", **({} if is_consolidated else {"consolidated": False})}


def _check_for_netcdf(path: str) -> None:
    """Refuse half floats, of which netCDF's C library dies by a signal."""
    import h5py

    with h5py.File(path, "r") as file:
        for name, each in file.items():
            if getattr(each, "dtype", None) == "f2":
                raise _not_read(path, f"{name}: netCDF's library dies of half floats")


def _not_read(path: str, why: str) -> FileFormatError:
    reason = why.partition("\n")[0]
    return FileFormatError(f"{path}: xarray cannot read it: {reason}; use --pipeline own")
