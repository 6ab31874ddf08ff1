"""What deep clustering cuts out of the grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["CROPS", "CROP_FRACTION", "CropSize"]

CROPS = ("moving", "centre", "none")
CROP_FRACTION = 0.8
"""Of the grid, along both of its dimensions."""
CROP_SEED = 6


@dataclass(frozen=True, slots=True)
class CropSize:
    """How much of a grid is cut out, and from where.

    Parameters
    ----------
    kind : str
        ``moving``: each time has a place of its own, which follows from it; ``centre``; ``none``.
    grid : tuple of int
        Latitudes and longitudes.
    """

    kind: str
    grid: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """Latitudes and longitudes of a crop: 0.8 of the grid's, rounded down as upstream."""
        if self.kind == "none":
            return self.grid
        rows, columns = (max(1, int(CROP_FRACTION * length)) for length in self.grid)
        return rows, columns

    def corner(self, time: np.datetime64) -> tuple[int, int]:
        """Return the first row and column of the crop of a time."""
        spare = [whole - part for whole, part in zip(self.grid, self.shape, strict=True)]
        if self.kind != "moving":
            return spare[0] // 2, spare[1] // 2
        seconds = int(time.astype("datetime64[s]").astype(np.int64))
        random = np.random.default_rng([CROP_SEED, seconds % (1 << 63)])
        row, column = random.integers(0, [length + 1 for length in spare]).tolist()
        return row, column
