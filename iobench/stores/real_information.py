"""How many bits of a number tell something of its neighbour: the real information in bits.

Source: Klower, Razinger, Dominguez, Duben and Palmer (2021), Nature Computational Science 1, 713
(doi 10.1038/s43588-021-00156-2): bits that neighbouring grid points have in common more often than
chance would have it are information, the others noise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.stores.rounding import MANTISSA_BITS
from iobench.stores.spectra import grid_of, one_field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.coordinates import Meteorology
    from iobench.samples import Sample, SampleSpec

INFORMATION_KEPT: Final = 0.99
"""Share of the real information that a suggested number of bits keeps."""
QUANTILE: Final = 2.5758293035489004
"""Of the normal distribution at 0.995: two-sided confidence of 99 %."""
LEAST_BITS: Final = 0.02
MOST_VALUES: Final = 1 << 20
FEWEST_PAIRS: Final = 1 << 12
"""Below this chance alone looks like information."""


class BitPairs:
    """Counts, for each bit of floating-point numbers, how it goes with that of the next point.

    Parameters
    ----------
    dtype : str
        ``"<f2"``, ``"<f4"`` or ``"<f8"``.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._whole = np.dtype(f"<u{self._dtype.itemsize}")
        self._n_bits = 8 * self._dtype.itemsize
        self._ones = np.zeros((self._n_bits, 3), dtype=np.int64)  # in the first, second, both
        self._n_pairs = 0

    def add(self, field: NDArray[Any]) -> None:
        """Take the pairs of neighbours along rows of a field, of finite numbers.

        Of a large field rows are left out evenly.
        """
        field = field[:: -(-field.size // MOST_VALUES)]
        bits = np.ascontiguousarray(field, dtype=self._dtype).view(self._whole)
        there = np.isfinite(field)
        pairs = there[..., :-1] & there[..., 1:]
        first, second = bits[..., :-1][pairs], bits[..., 1:][pairs]
        both = first & second
        for bit in range(self._n_bits):
            mask = self._whole.type(1 << (self._n_bits - 1 - bit))
            counts = [np.count_nonzero(each & mask) for each in (first, second, both)]
            self._ones[bit] += counts
        self._n_pairs += first.size

    def information(self) -> NDArray[np.float64]:
        """Return the real information of each bit, sign first: mutual information, in bits.

        What lies within what 99 % of random bits would show is set to 0.
        """
        n = max(1, self._n_pairs)
        one, two, both = self._ones.T / n
        joint = np.array([[1 - one - two + both, two - both], [one - both, both]])
        apart = np.array([[(1 - one) * (1 - two), (1 - one) * two], [one * (1 - two), one * two]])
        some = joint > 0
        terms = joint * np.log2(np.where(some, joint, 1) / np.where(apart > 0, apart, 1))
        found: NDArray[np.float64] = terms.sum(axis=(0, 1))
        chance = min(1.0, 0.5 + QUANTILE / (2 * math.sqrt(n)))
        entropy = sum(-p * math.log2(p) for p in (chance, 1 - chance) if p > 0)
        found[found <= 1 - entropy] = 0.0
        return found

    def bits_to_keep(self) -> int | None:
        """Return the bits of the mantissa that keep 99 % of the information; None if unknown.

        Unknown where there are few pairs, or little that neighbours have in common: of 32 random
        bits one may pass for information.
        """
        information = self.information()
        total = float(information.sum())
        if self._n_pairs < FEWEST_PAIRS or total < LEAST_BITS:
            return None
        n_mantissa = MANTISSA_BITS[self._dtype.str]
        kept = np.cumsum(information) / total
        n_needed = int(np.argmax(kept >= INFORMATION_KEPT - 1e-12)) + 1
        return max(0, n_needed - (self._n_bits - n_mantissa))


def bits_worth_keeping(
    spec: SampleSpec, samples: Sequence[Sample], meteorology: Meteorology
) -> dict[str, int]:
    """Return for each variable on a grid how many bits of its mantissa tell 99 % of what all do.

    Of one field of each of a few samples, along rows. Of numbers that were packed before, some
    bits come of the packing and count as information: then it is more than needed. Variables are
    left out where it is unknown, and where it is all the bits they have.
    """
    found = {}
    for variable in spec:
        grid = grid_of(variable, meteorology)
        if variable.dtype not in MANTISSA_BITS or variable.packed is not None:
            continue
        if isinstance(grid, str) or not math.prod(variable.shape):
            continue
        pairs = BitPairs(variable.dtype)
        for turn, sample in enumerate(samples):
            pairs.add(one_field(sample[variable.name], grid, turn, len(samples)))
        bits = pairs.bits_to_keep()
        if bits is not None and bits < MANTISSA_BITS[variable.dtype]:
            found[variable.name] = bits
    return found
