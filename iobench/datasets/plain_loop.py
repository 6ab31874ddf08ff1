"""Samples as most training scripts read them: a plain loop over xarray datasets."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from iobench.chunks.grib.messages import GRIB
from iobench.chunks.netcdf.file import HDF5_MAGIC
from iobench.chunks.zarr_store import check_for_library
from iobench.datasets.contract import Baseline
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, MissingFileError

if TYPE_CHECKING:
    from iobench.datasets.contract import Arrays, PublishedStep, SampleIndex, Where
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
    """The steps of a dataset that xarray reads and decodes; another one finds the samples."""

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
        raise MissingExtraError("--pipeline upstream: a plain loop needs xarray", extra="netcdf")
    loop, where = XarrayLoop(select, preprocess, **options), index.where[0]
    try:
        sample = loop.preprocess(loop.read(where), where)
    finally:
        loop.close()
    for each in index.spec:
        if sample[each.name].shape != each.shape:
            shape = " x ".join(map(str, sample[each.name].shape))
            raise _not_read(select(where)[0].source, f"{each.name}: it makes {shape} of a sample")
    made: Any = loop  # another dataset found files and samples
    return Baseline(made, PLAIN_LOOP)


def open_plainly(path: str, **options: Any) -> Any:
    """Return a file or Zarr store as ``xarray.open_dataset`` opens it."""
    import xarray

    try:
        if Path(path).is_dir():
            check_for_library(Path(path))
            # To look for what is not there leaves an error, which zarr keeps, and a batch with it.
            options = {"engine": "zarr", "consolidated": False, **options}
        else:
            with Path(path).open("rb") as file:
                magic = file.read(8)
            if magic == HDF5_MAGIC and "engine" not in options:
                import h5py

                with h5py.File(path, "r") as file:
                    if halves := [n for n, x in file.items() if getattr(x, "dtype", "") == "f2"]:
                        raise _not_read(path, f"{halves[0]}: netCDF's library dies of half floats")
            if magic[:4] == GRIB:
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


def _not_read(path: str, why: str) -> FileFormatError:
    reason = why.partition("\n")[0]
    return FileFormatError(f"{path}: xarray cannot read it: {reason}; use --pipeline own")
