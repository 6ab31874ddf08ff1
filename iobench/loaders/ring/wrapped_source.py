"""Sources made of another source's samples: some of them, or the same ones changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from iobench.loaders.ring.contract import (
    PatchFiller,
    PlannedSource,
    is_planned,
    refuse_own_memory,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource, Filler, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import SampleSpec

__all__ = ["Fill", "SelectedSamples", "WrappedFiller", "WrappedSource"]

Fill = Callable[["NDArray[np.int64]", "Rows", "BatchLog"], None]
"""Fills rows with samples, as `Filler.fill`."""


class WrappedSource:
    """Samples that are made of those of another source; a subclass has the fillers.

    Parameters
    ----------
    source : BatchSource
        The other one.
    spec : SampleSpec
        What is made of its samples.
    what : str
        What these are, for errors.
    choice : str
        What was decided about them, in words.
    """

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
        self.fill_by(self._filler.fill, samples, rows, log)

    def fill_at(
        self,
        samples: NDArray[np.int64],
        corners: NDArray[np.int64],
        rows: Rows,
        log: BatchLog,
    ) -> None:
        """Fill rows with patches; see `PatchFiller`."""
        filler = self._filler
        assert isinstance(filler, PatchFiller)

        def fill(made_of: NDArray[np.int64], beneath: Rows, log: BatchLog) -> None:
            filler.fill_at(made_of, corners, beneath, log)

        self.fill_by(fill, samples, rows, log)

    def fill_by(self, fill: Fill, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill rows; ``fill`` does so with samples of the other source, at the same corners."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the other source's filler."""
        self._filler.close()


class SelectedSamples(WrappedSource):
    """Some samples of another source, in their order: those of a split.

    Parameters
    ----------
    source : BatchSource
        Of all samples.
    numbers : sequence or array of int
        Which.
    """

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

    def fill_by(self, fill: Fill, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill rows with these of the selected samples."""
        fill(self._made_of(samples), rows, log)
