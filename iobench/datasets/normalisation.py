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

MOMENTS_VERSION = 1

Columns = Mapping[str, "NDArray[Any]"]


class FileMoments(msgspec.Struct, frozen=True, eq=False):
    """Count, mean and sum of squared deviations of each variable of a file."""

    columns: Columns


class Scale(msgspec.Struct, frozen=True, eq=False):
    """What is subtracted and divided by: float64, scalars or of a field's shape."""

    mean: NDArray[np.float64]
    divisor: NDArray[np.float64]


class Normalisation(msgspec.Struct, frozen=True, eq=False):
    """The z-score of each variable; a deviation of 0 divides by 1."""

    scales: Mapping[str, Scale]

    def checksum(self) -> str:
        """Return a digest of the values, for the provenance of stores."""
        digest = hashlib.sha256()
        for name, scale in self.scales.items():
            digest.update(name.encode() + scale.mean.tobytes() + scale.divisor.tobytes())
        return digest.hexdigest()


def normalisation_of(
    files: Sequence[NetcdfFile],
    names: Sequence[str],
    locator: Locator,
    *,
    per_point: Sequence[str] = (),
) -> Normalisation:
    """Return the normalisation over files."""
    inspection = Inspection(
        json.dumps(["moments", MOMENTS_VERSION, sorted(per_point), sorted(names)]),
        functools.partial(_file_moments, tuple(names), tuple(per_point)),
        (FileMoments,),
    )
    paths = [file.path for file in files]
    moments = catalogued(paths, inspection, cache_dir=locator.cache_dir, progress=locator.progress)
    parts = [each.columns for each in moments]
    return Normalisation({name: _scale(parts, name) for name in names})


def _file_moments(
    names: tuple[str, ...], per_point: tuple[str, ...], path: Path, advance: Advance
) -> FileMoments:
    """Return count, mean and sum of squared deviations of each variable of a file."""
    file = inspect_netcdf(path)
    columns: dict[str, NDArray[Any]] = {}
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
        columns[f"{name}.count"] = np.array(len(values) if axis == 0 else values.size)
        columns[f"{name}.mean"] = np.asarray(mean)
        columns[f"{name}.squares"] = np.asarray(values.sum(axis=axis))
    return FileMoments(columns)


def _scale(parts: Sequence[Columns], name: str) -> Scale:
    """Merge the moments of files in their order."""
    zero = np.zeros_like(parts[0][f"{name}.mean"])
    moments: tuple[Any, Any, Any] = (0, zero, zero)
    for part in parts:
        added = int(part[f"{name}.count"]), part[f"{name}.mean"], part[f"{name}.squares"]
        moments = merge_means(moments, added)
    count, mean, squares = moments
    deviation = np.sqrt(squares / count)
    return Scale(np.asarray(mean), np.where(deviation > 0, deviation, 1.0))
