"""What epochs over all samples read of their files: the one model that all commands ask."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

PLACES: Final = 64
"""Places of an epoch at which it is looked whether the training waits for loading."""


class LoadRates(msgspec.Struct, frozen=True):
    """Seconds that loading takes, all workers together."""

    first_s: float  # for each byte, read and decoded for the first time
    again_s: float  # and later
    sample_s: float = 0.0  # for each sample of which all is decoded


class EpochReads(msgspec.Struct, frozen=True):
    """What an epoch over all samples, in random order, reads; bytes as stored."""

    n_samples: int
    first_nbytes: int  # read in the first epoch,
    later_nbytes: int  # and in each later one: nothing of chunks that stay decoded in memory
    chunks_nbytes: int = 0  # of all chunks, decoded
    cache_nbytes: int = 0  # what may stay of these in memory
    samples_per_chunk: float = 1.0

    @property
    def fits_cache(self) -> bool:
        """Whether all decoded chunks stay in memory."""
        return self.chunks_nbytes <= self.cache_nbytes

    def epochs_s(self, rates: LoadRates, step_s: float) -> tuple[float, float]:
        """Return the seconds of the first epoch and of a later one, with a training step.

        Training waits until a sample is loaded: for the place where that costs most, loading up to
        there and computing from there on. Chunks that stay are read where they are first needed.
        """
        place = np.linspace(0.0, 1.0, PLACES + 1)
        read = 1 - (1 - place) ** self.samples_per_chunk if self.fits_cache else place
        rest_s = self.n_samples * (rates.sample_s * place + step_s * (1 - place))
        first_s = self.first_nbytes * rates.first_s * read + rest_s
        later_s = self.later_nbytes * rates.again_s * place + rest_s
        return float(first_s.max()), float(later_s.max())
