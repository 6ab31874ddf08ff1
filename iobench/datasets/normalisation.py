"""Means and deviations of variables over NetCDF files: the moments of each file, kept.

A further file costs its own bytes alone: what was learnt of the others is merged.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.netcdf.file import inspect_netcdf
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.inspected_netcdf import whole_variable
from iobench.errors import FileFormatError
from iobench.stores.value_statistics import merge_means

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.netcdf.file import NetcdfFile
    from iobench.datasets.contract import Locator
    from iobench.datasets.setup_processes import Advance

Normalisation = Mapping[str, "tuple[NDArray[np.float64], NDArray[np.float64]]"]
"""By variable what is subtracted and divided by, scalars or of a field's shape; a deviation of 0
divides by 1."""


class FileMoments(msgspec.Struct, frozen=True, eq=False):
    """Count, mean and sum of squared deviations of each variable of a file."""

    by_name: Mapping[str, NDArray[Any]]


def checksum_of(normalisation: Normalisation) -> str:
    """Return a digest of the values, for the provenance of stores."""
    digest = hashlib.sha256()
    for name, (mean, divisor) in normalisation.items():
        digest.update(name.encode() + mean.tobytes() + divisor.tobytes())
    return digest.hexdigest()


def normalisation_of(
    files: Sequence[NetcdfFile],
    names: Sequence[str],
    locator: Locator,
    *,
    per_point: Sequence[str] = (),
) -> Normalisation:
    """Return the normalisation over files, of which moments are merged in their order."""
    inspection = Inspection(
        json.dumps(["moments 2", sorted(per_point), sorted(names)]),
        functools.partial(_file_moments, tuple(names), tuple(per_point)),
        (FileMoments,),
    )
    paths = [file.path for file in files]
    every = catalogued(paths, inspection, cache_dir=locator.cache_dir, progress=locator.progress)
    merged = {}
    for name in names:
        first = every[0].by_name[f"{name}.mean"]
        moments: tuple[Any, Any, Any] = 0, np.zeros_like(first), np.zeros_like(first)
        for each in every:
            count, mean, squares = (
                each.by_name[f"{name}.{what}"] for what in ("count", "mean", "squares")
            )
            moments = merge_means(moments, (int(count), mean, squares))
        deviation = np.sqrt(moments[2] / moments[0])
        merged[name] = np.asarray(moments[1]), np.where(deviation > 0, deviation, 1.0)
    return merged


def _file_moments(
    names: tuple[str, ...], per_point: tuple[str, ...], path: Path, advance: Advance
) -> FileMoments:
    """Return count, mean and sum of squared deviations of each variable of a file."""
    file = inspect_netcdf(path)
    moments: dict[str, NDArray[Any]] = {}
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
        moments[f"{name}.count"] = np.array(len(values) if axis == 0 else values.size)
        moments[f"{name}.mean"] = np.asarray(mean)
        moments[f"{name}.squares"] = np.asarray(values.sum(axis=axis))
    return FileMoments(moments)
