"""What indexing learns of application A1's files, and what all of its readers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from iobench_maelstrom.yr.files import FIELDS, YrFiles
from iobench_maelstrom.yr.patches import Patch, PatchGrid
from iobench_maelstrom.yr.schema import PREDICTORS, STATIC_PREDICTORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench_maelstrom.yr.options import YrOptions

__all__ = ["SampleNames", "YrPrepared", "patch_ranges", "prepared_of"]


@dataclass(frozen=True, slots=True, eq=False)
class YrPrepared:
    """The files, their patches, and mean and deviation of each channel.

    Parameters
    ----------
    files : YrFiles
        Where their variables lie.
    grid : PatchGrid
        The patches that samples are.
    mean, std : ndarray of float32, one for each of `CHANNELS`
        What channels are normalised by.
    """

    files: YrFiles
    grid: PatchGrid
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    def coordinates(self, patch: Patch) -> dict[str, NDArray[np.float32]]:
        """Return ``leadtime`` in seconds, ``y`` and ``x`` as places in the grid; float32."""
        grid = self.grid
        first_y, first_x = patch.y - grid.y_range[0], patch.x - grid.x_range[0]
        return {
            "leadtime": np.array(self.files.leadtimes[patch.lead], dtype=np.float32),
            "y": np.arange(first_y, first_y + grid.shape[0], dtype=np.float32),
            "x": np.arange(first_x, first_x + grid.shape[1], dtype=np.float32),
        }


def prepared_of(files: YrFiles, options: YrOptions) -> YrPrepared:
    """Return what the options make of the files.

    Channels are normalised by the plugin's table; lead time, x and y by their own moments.

    Raises
    ------
    OptionError
        If the patches or ranges asked for do not fit the grid.
    """
    grid = PatchGrid.of(
        len(files.files),
        files.shape,
        patch=options.patch,
        y_range=options.y_range,
        x_range=options.x_range,
    )
    features = (files.leadtimes, range(grid.n_columns), range(grid.n_rows))
    known = (*PREDICTORS, *STATIC_PREDICTORS)
    mean = [each.mean for each in known] + [float(np.mean(values)) for values in features]
    std = [each.std for each in known] + [float(np.std(values)) or 1.0 for values in features]
    return YrPrepared(
        files, grid, np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32)
    )


def patch_ranges(
    patch: Patch, shape: tuple[int, int]
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the range of a patch along each dimension of each of `FIELDS`, as start and stop."""
    ends = {
        "leadtime": (patch.lead, patch.lead + 1),
        "y": (patch.y, patch.y + shape[0]),
        "x": (patch.x, patch.x + shape[1]),
        "predictor": (0, len(PREDICTORS)),
        "static_predictor": (0, len(STATIC_PREDICTORS)),
    }
    return {
        name: (tuple(ends[dim][0] for dim in dims), tuple(ends[dim][1] for dim in dims))
        for name, dims in FIELDS.items()
    }


@dataclass(frozen=True, slots=True)
class SampleNames:
    """Names samples for messages."""

    grid: PatchGrid
    starts: tuple[str, ...]
    leadtimes: tuple[float, ...]

    def __call__(self, number: int) -> str:
        """Return start, lead time and place of sample ``number``."""
        patch = self.grid.patch(number)
        hours = self.leadtimes[patch.lead] / 3600
        return f"{self.starts[patch.file]} +{hours:g}h y={patch.y} x={patch.x}"
