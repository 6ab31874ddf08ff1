"""Means and deviations of variables over NetCDF files: the moments of each file, kept.

A further file costs its own bytes alone: what was learnt of the others is merged.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.netcdf.file import inspect_netcdf
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.source_files import whole_variable
from iobench.errors import FileFormatError
from iobench.stores.value_statistics import merge_means

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.source_file import SourceFile
    from iobench.datasets.contract import Locator

    Moments = tuple[Any, Any, Any]  # count, mean and sum of squared deviations

Normalisation = Mapping[str, "tuple[NDArray[np.float64], NDArray[np.float64]]"]
"""By variable what is subtracted and divided by, scalars or of a field's shape; a deviation of 0
divides by 1."""


def checksum_of(normalisation: Normalisation) -> str:
    """Return a digest of the values, for the provenance of stores."""
    digest = hashlib.sha256()
    for name, (mean, divisor) in normalisation.items():
        digest.update(name.encode() + mean.tobytes() + divisor.tobytes())
    return digest.hexdigest()


def normalisation_of(
    files: Sequence[SourceFile],
    names: Sequence[str],
    locator: Locator,
    *,
    per_point: Sequence[str] = (),
) -> Normalisation:
    """Return the normalisation over files."""
    what = json.dumps(["moments 3", sorted(per_point), sorted(names)])
    inspect = functools.partial(_file_moments, tuple(names), tuple(per_point))
    moments = catalogued(
        [file.path for file in files],
        Inspection(what, inspect, ()),
        cache_dir=locator.cache_dir,
        progress=locator.progress,
    )
    normalisation = {}
    for name in names:
        count, mean, squares = functools.reduce(merge_means, (each[name] for each in moments))
        deviation = np.sqrt(squares / count)
        normalisation[name] = np.asarray(mean), np.where(deviation > 0, deviation, 1.0)
    return normalisation


def _file_moments(
    names: tuple[str, ...], per_point: tuple[str, ...], path: Path
) -> dict[str, Moments]:
    """Return the moments of each variable of a file."""
    file, moments = inspect_netcdf(path), dict[str, Any]()
    for name in names:
        values = whole_variable(file, name).astype(np.float64, copy=False)
        axis = 0 if name in per_point else None
        mean = values.mean(axis=axis)
        if not np.isfinite(mean).all():
            raise FileFormatError(
                f"{path}: variable {name!r} has missing values, expected none; fetch the file again"
            )
        values = values - mean
        np.square(values, out=values)
        count = len(values) if axis == 0 else values.size
        moments[name] = count, np.asarray(mean), np.asarray(values.sum(axis=axis))
    return moments
