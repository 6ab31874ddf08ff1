"""Rows of one thread that nobody is handed: what batches are made of in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.loaders.ring.buffers import BatchLayout, BatchMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import SampleSpec

__all__ = ["ScratchRows"]


class ScratchRows:
    """Memory for samples of one spec, used again, and larger when more are wanted.

    Parameters
    ----------
    spec : SampleSpec
        Of one sample.
    """

    def __init__(self, spec: SampleSpec) -> None:
        self._spec = spec
        self._n_samples = 0
        self._layout = BatchLayout(spec, 0)
        self._memory: BatchMemory | None = None

    def arrays(self, n_samples: int, *, at_least: int = 0) -> dict[str, NDArray[Any]]:
        """Return rows for so many samples, valid until the next call.

        ``at_least`` samples are made room for, where more will be wanted soon.
        """
        if self._memory is None or n_samples > self._n_samples:
            self._n_samples = max(n_samples, at_least)
            self._layout = BatchLayout(self._spec, self._n_samples)
            self._memory = BatchMemory(self._layout.nbytes)
        return self._layout.arrays(self._memory.pages, n_samples)
