"""Means and deviations of the grouped inputs, as published beside the radiation files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import inspect_files, whole_variable
from iobench.errors import FileFormatError
from iobench_maelstrom.radiation.grouping import GROUPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

Norms = Mapping[str, "tuple[NDArray[Any], NDArray[Any]]"]
"""Mean and deviation of each group of inputs, along its last axis."""


def read_norms(files: Sequence[Path], names: Sequence[str], cache_dir: Path) -> Norms:
    """Return the norms in the files of these groups; what they hold is kept."""
    norms = {}
    found = inspect_files(files, cache_dir=cache_dir)
    for path, file, name in zip(files, found, names, strict=True):
        mean, deviation = (
            whole_variable(file, f"{name}_{kind}").astype(np.float32) for kind in ("mean", "std")
        )
        expected = GROUPS[name][1][-1:]
        for kind, values in (("mean", mean), ("std", deviation)):
            if values.shape != expected:
                raise FileFormatError(
                    f"{path}: variable '{name}_{kind}' is {values.shape}, expected {expected}"
                )
        if not (deviation > 0).all():
            raise FileFormatError(
                f"{path}: variable '{name}_std' is not above 0 at "
                f"{np.flatnonzero(~(deviation > 0)).tolist()}: samples would not be numbers; "
                "use norm=false"
            )
        norms[name] = mean, deviation
    return norms
