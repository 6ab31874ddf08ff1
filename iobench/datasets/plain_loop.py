"""Users' own files as most training scripts read them: a plain loop over an xarray dataset."""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.zarr_arrays.store import check_for_library
from iobench.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import Arrays, Locator, PublishedStep, Raw, SampleIndex, Where
    from iobench.samples import Sample, SampleSpec

PLAIN_LOOP: Final = (
    "a plain loop over xarray.open_dataset(file): isel along the sample dimension, then .values, "
    "without dask, in the training loop. That is how scripts commonly read such files; yours may "
    "do otherwise: iobench run -- python train.py measures it."
)


NOT_READ: Final = (OSError, ValueError, RuntimeError, KeyError, IndexError, ImportError)
"""What xarray and the libraries below it raise of files they cannot read."""


def require_xarray() -> None:
    """Raise MissingExtraError where xarray is not installed."""
    try:
        import xarray  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "--pipeline upstream: a plain loop needs xarray: pip install 'iobench[netcdf]'"
        ) from error


class XarrayLoop:
    """A dataset whose samples xarray reads and decodes.

    Parameters
    ----------
    paths : sequence of Path
        In the order that the samples of an index count them by.
    dim : str
        The sample dimension, or several with commas.
    spec : SampleSpec
        Of our own reader: the same variables, with the same dtypes.
    """

    title = ""
    published: PublishedStep | None = None
    fused: tuple[str, ...] = ("read", "decode")

    def __init__(self, paths: Sequence[Path], dim: str, spec: SampleSpec) -> None:
        self.name = "xarray loop"
        self._paths = tuple(map(str, paths))
        self._dims = dim.split(",")
        self._variables = tuple((each.name, each.dtype, each.shape) for each in spec)

    def files(self, locator: Locator) -> list[Path]:
        """Nothing is looked for: the files were found by our own reader."""
        raise TypeError("the samples were found by another dataset")

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Nothing is looked for: the samples were found by our own reader."""
        raise TypeError("the samples were found by another dataset")

    def read(self, where: Where) -> Any:
        """Return the arrays of a sample."""
        number, *indexes = where
        path = self._paths[number]
        opened = _opened(os.getpid(), path)
        found = {}
        for name, dtype, _ in self._variables:
            try:
                variable = opened[name]
                at = dict(zip(self._dims, indexes, strict=True))
                one = variable.isel(at, missing_dims="ignore")
                found[name] = np.asarray(one.values).astype(dtype, copy=False)
            except NOT_READ as error:
                raise _not_read(path, f"{name}: {error}") from error
        return found

    def check(self, where: Where) -> None:
        """Raise FileFormatError if xarray makes something else of a sample than our reader."""
        try:
            sample = self.read(where)
        finally:
            _opened.cache_clear()  # what it decoded goes, too; the run opens the files itself
        for name, _, shape in self._variables:
            if sample[name].shape != shape:
                found = " x ".join(map(str, sample[name].shape))
                raise _not_read(self._paths[where[0]], f"{name}: it makes {found} of a sample")

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Nothing is left to decode: xarray reads and decodes at once."""
        raise TypeError("read and decode are one step")

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the arrays as they are."""
        return arrays


@lru_cache(maxsize=64)
def _opened(pid: int, path: str) -> Any:
    """Open a file, once per process: handles of HDF5 do not survive a fork."""
    import xarray

    options = {}
    if Path(path).is_dir():
        if find_spec("zarr") is None:
            raise _not_read(path, "it needs the zarr package: pip install 'iobench[zarr]'")
        check_for_library(Path(path))
        options = {"engine": "zarr"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata: it says nothing about the numbers
            return xarray.open_dataset(path, decode_times=False, **options)
    except NOT_READ as error:
        raise _not_read(path, str(error)) from error


def _not_read(path: str, why: str) -> FileFormatError:
    reason = why.partition("\n")[0]
    return FileFormatError(
        f"{path}: a plain xarray loop cannot read it: {reason}; use --pipeline own"
    )
