"""Sources made of another source's samples: some of them, or the same ones changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iobench.loaders.ring.contract import (
    PatchFiller,
    PlannedSource,
    is_planned,
    refuse_own_memory,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.loaders.ring.contract import BatchSource, Filler, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import SampleSpec

Corners = NDArray[np.int64] | None
"""Where each patch begins, as `PatchFiller` is told; None of whole samples."""


class WrappedSource:
    """Samples that are made of those of another source; a subclass has the fillers."""

    def __init__(self, source: BatchSource, spec: SampleSpec, what: str, choice: str = "") -> None:
        refuse_own_memory(source, what)
        self.source = source
        self.spec = spec
        self.choice = choice

    def __len__(self) -> int:
        return len(self.source)

    @property
    def is_planned(self) -> bool:
        """Whether knowing the order of a pass helps."""
        return is_planned(self.source)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order."""
        if isinstance(self.source, PlannedSource):
            self.source.expect(self.made_of(samples).ravel(), follows=follows)

    def made_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which sample of the other source each of these is made of; of windows several."""
        return samples


class WrappedFiller:
    """A filler that has that of another source fill rows, of samples and of patches alike."""

    def __init__(self, source: BatchSource) -> None:
        self._filler = source.filler()

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill rows; see `Filler`."""
        self.make(samples, None, rows, log)

    def fill_at(
        self,
        samples: NDArray[np.int64],
        corners: NDArray[np.int64],
        rows: Rows,
        log: BatchLog,
    ) -> None:
        """Fill rows with patches; see `PatchFiller`."""
        self.make(samples, corners, rows, log)

    def make(self, samples: NDArray[np.int64], corners: Corners, rows: Rows, log: BatchLog) -> None:
        """Fill rows with samples, or patches where there are corners, made by `fill_beneath`."""
        raise NotImplementedError

    def fill_beneath(
        self, samples: NDArray[np.int64], corners: Corners, rows: Rows, log: BatchLog
    ) -> None:
        """Fill rows with samples, or patches of them, of the other source."""
        filler = self._filler
        if corners is None:
            filler.fill(samples, rows, log)
        else:
            assert isinstance(filler, PatchFiller)
            filler.fill_at(samples, corners, rows, log)

    def close(self) -> None:
        """Close the other source's filler."""
        self._filler.close()


class SelectedSamples(WrappedSource):
    """Some samples of another source, in their order: those of a split."""

    def __init__(self, source: BatchSource, numbers: Sequence[int] | NDArray[np.int64]) -> None:
        super().__init__(source, source.spec, "a split")
        self._numbers = np.asarray(numbers, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def made_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which sample of all each of these is."""
        found: NDArray[np.int64] = self._numbers[samples]
        return found

    def filler(self) -> Filler:
        """Return a filler for one more thread."""
        return _SelectedFiller(self)


class _SelectedFiller(WrappedFiller):
    def __init__(self, source: SelectedSamples) -> None:
        super().__init__(source.source)
        self._made_of = source.made_of

    def make(self, samples: NDArray[np.int64], corners: Corners, rows: Rows, log: BatchLog) -> None:
        """Fill rows with these of the selected samples."""
        self.fill_beneath(self._made_of(samples), corners, rows, log)
