"""Users' own files as most training scripts read them: a plain loop over an xarray dataset."""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets.zarr_arrays.store import check_for_library
from iobench.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import Arrays, Locator, PublishedStep, Raw, SampleIndex, Where
    from iobench.samples import Sample, SampleSpec

__all__ = ["PLAIN_LOOP", "XarrayLoop", "require_xarray"]

PLAIN_LOOP: Final = (
    "a plain loop over xarray.open_dataset(file): isel along the sample dimension, then .values, "
    "without dask, in the training loop. That is how scripts commonly read such files; yours may "
    "do otherwise: iobench run -- python train.py measures it."
)


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
        The sample dimension.
    spec : SampleSpec
        Of our own reader: the same variables, with the same dtypes.
    """

    title = ""
    published: PublishedStep | None = None
    fused: tuple[str, ...] = ("read", "decode")

    def __init__(self, paths: Sequence[Path], dim: str, spec: SampleSpec) -> None:
        self.name = "xarray loop"
        self._paths = tuple(map(str, paths))
        self._dim = dim
        self._variables = tuple((each.name, each.dtype) for each in spec)

    def files(self, locator: Locator) -> list[Path]:
        """Nothing is looked for: the files were found by our own reader."""
        raise TypeError("the samples were found by another dataset")

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Nothing is looked for: the samples were found by our own reader."""
        raise TypeError("the samples were found by another dataset")

    def read(self, where: Where) -> Any:
        """Return the arrays of a sample."""
        number, index = where
        opened = _opened(os.getpid(), self._paths[number])
        found = {}
        for name, dtype in self._variables:
            variable = opened[name]
            one = variable.isel({self._dim: index}) if self._dim in variable.dims else variable
            found[name] = np.asarray(one.values).astype(dtype, copy=False)
        return found

    def decode(self, raw: Raw) -> Arrays:
        """Nothing is left to decode: xarray reads and decodes at once."""
        raise TypeError("read and decode are one step")

    def preprocess(self, arrays: Arrays) -> Sample:
        """Return the arrays as they are."""
        return arrays


@lru_cache(maxsize=64)
def _opened(pid: int, path: str) -> Any:
    """Open a file, once per process: handles of HDF5 do not survive a fork."""
    import xarray

    options = {}
    if Path(path).is_dir():
        check_for_library(Path(path))
        options = {"engine": "zarr"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata: it says nothing about the numbers
            return xarray.open_dataset(path, decode_times=False, **options)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise FileFormatError(
            f"{path}: xarray cannot open it: {reason}; leave --pipeline upstream out"
        ) from error
