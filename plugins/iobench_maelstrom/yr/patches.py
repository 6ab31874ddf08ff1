"""Which patch of which lead time of which file a sample of application A1 is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from iobench.datasets import Computed
from iobench.errors import OptionError

T = TypeVar("T")


class Patch(NamedTuple):
    """One sample: its file, lead time, and first row and column in the file's grid."""

    file: int
    lead: int
    y: int
    x: int


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Patches side by side, without overlap; what is left over at the far edges is not used."""

    n_files: int
    n_leads: int  # files, and lead times in each
    y_range: tuple[int, int]
    x_range: tuple[int, int]  # first row or column used and the one after the last
    shape: tuple[int, int]  # rows and columns of a patch

    @classmethod
    def of(
        cls,
        n_files: int,
        leads_y_x: tuple[int, int, int],
        *,
        patch: int | None,
        y_range: tuple[int, int] | None,
        x_range: tuple[int, int] | None,
    ) -> PatchGrid:
        """Return the patches of files of ``leads_y_x`` lead times, rows and columns."""
        n_leads, n_y, n_x = leads_y_x
        rows = _inside("y_range", y_range, n_y)
        columns = _inside("x_range", x_range, n_x)
        n_rows, n_columns = rows[1] - rows[0], columns[1] - columns[0]
        if patch is not None and patch > min(n_rows, n_columns):
            raise OptionError(
                f"patch {patch}: larger than the grid of {n_rows} rows and {n_columns} columns; "
                f"expected 1 to {min(n_rows, n_columns)}, or whole"
            )
        shape = (n_rows, n_columns) if patch is None else (patch, patch)
        return cls(n_files, n_leads, rows, columns, shape)

    @property
    def n_rows(self) -> int:
        """Rows of the grid that are used or left over."""
        return self.y_range[1] - self.y_range[0]

    @property
    def n_columns(self) -> int:
        """Columns of the grid that are used or left over."""
        return self.x_range[1] - self.x_range[0]

    @property
    def patches_per_file(self) -> int:
        """Samples in one file."""
        across = self.n_columns // self.shape[1]
        return self.n_leads * (self.n_rows // self.shape[0]) * across

    def __len__(self) -> int:
        return self.n_files * self.patches_per_file

    def all(self, compute: Callable[[int], T]) -> Computed[T]:
        """Return what follows from the number of each sample."""
        return Computed(len(self), compute)

    def of_files(self, files: Sequence[int]) -> Computed[int]:
        """Return the samples of some of the files."""
        per_file = self.patches_per_file
        return Computed(
            len(files) * per_file, functools.partial(_sample_in, tuple(files), per_file)
        )

    def patch(self, number: int) -> Patch:
        """Return sample ``number``: file after file, lead time after lead time, row after row."""
        file, within = divmod(number, self.patches_per_file)
        lead, within = divmod(within, self.patches_per_file // self.n_leads)
        row, column = divmod(within, self.n_columns // self.shape[1])
        y, x = self.y_range[0] + row * self.shape[0], self.x_range[0] + column * self.shape[1]
        return Patch(file, lead, y, x)

    def name(self, starts: Sequence[str], leadtimes: Sequence[float], number: int) -> str:
        """Return start, lead time (given in seconds) and place of a sample, for messages."""
        file, lead, y, x = self.patch(number)
        return f"{starts[file]} +{leadtimes[lead] / 3600:g}h y={y} x={x}"


def _sample_in(files: Sequence[int], per_file: int, number: int) -> int:
    file, within = divmod(number, per_file)
    return files[file] * per_file + within


def _inside(name: str, asked: tuple[int, int] | None, length: int) -> tuple[int, int]:
    start, stop = asked or (0, length)
    if not 0 <= start < stop <= length:
        raise OptionError(f"{name} {start},{stop}: expected a range inside 0,{length}")
    return start, stop
