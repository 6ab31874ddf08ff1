"""Windows of items in the ring: an item is read once a batch, however many windows it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.ring.contract import PlannedSource, is_planned, refuse_own_memory
from iobench.loaders.ring.scratch import ScratchRows
from iobench.loaders.windows import stacking, windowed_spec
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from iobench.loaders.ring.contract import BatchSource, Filler, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import Window

__all__ = ["WindowSource"]


class WindowSource:
    """Windows over the items of another source; what one looks like is `windowed_spec`.

    Parameters
    ----------
    items : BatchSource
        Whose samples are the items.
    table : array_like of int, shape (windows, items)
        Numbers of each window's items, in the order of ``window.offsets``, as
        `iobench.windows.WindowPlacement` has them (``items``, or ``among`` for a store).
    window : Window
        The offsets.

    Raises
    ------
    OptionError
        If the items cannot be stacked, or the table has other items.
    """

    def __init__(self, items: BatchSource, table: ArrayLike, window: Window) -> None:
        refuse_own_memory(items, "windows")
        self.spec = windowed_spec(items.spec, window)
        self.items = items
        self._table = np.asarray(table, dtype=np.int64).reshape(-1, len(window.offsets))
        self._plan = stacking(items.spec, window)
        if self._table.size and not 0 <= self._table.min() <= self._table.max() < len(items):
            raise OptionError(
                f"window {window.spelled}: its items are {self._table.min()} to "
                f"{self._table.max()}, there are {len(items)}"
            )

    def __len__(self) -> int:
        return len(self._table)

    @property
    def is_planned(self) -> bool:
        """Whether knowing the order of a pass helps the items' source."""
        return is_planned(self.items)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which windows a pass will ask for, in order."""
        if isinstance(self.items, PlannedSource):
            self.items.expect(self._table[samples].ravel(), follows=follows)

    def filler(self) -> Filler:
        """Return a filler with memory for the items of one batch."""
        return _WindowFiller(self.items, self._table, self._plan)


class _WindowFiller:
    def __init__(
        self,
        items: BatchSource,
        table: NDArray[np.int64],
        plan: list[tuple[str, str, list[int]]],
    ) -> None:
        self._filler = items.filler()
        self._table = table
        self._plan = plan
        self._scratch = ScratchRows(items.spec)

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill the items once, then gather them into their windows."""
        wanted = self._table[samples]
        items, place = np.unique(wanted, return_inverse=True)
        place = place.reshape(wanted.shape)  # some versions of NumPy return it flat
        filled = self._scratch.arrays(len(items), at_least=wanted.size)
        self._filler.fill(items, filled, log)
        start_ns = log.now_ns()
        nbytes = 0
        for name, source, offsets in self._plan:
            # "clip": with "raise" NumPy gathers into a copy first.
            np.take(filled[source], place[:, offsets], axis=0, out=rows[name], mode="clip")
            nbytes += rows[name].nbytes
        log.add(Kind.TRANSFORM, start_ns, log.now_ns(), nbytes=nbytes, label="window")

    def close(self) -> None:
        """Close the items' filler."""
        self._filler.close()
