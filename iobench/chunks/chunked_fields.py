"""Variables in chunks that several samples share, and what datasets of such have in common."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.decoded_chunks import DecodedChunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iobench.chunks.chunked_variable import ChunkedVariable


class SharedChunks(msgspec.Struct, frozen=True):
    """How a variable is cut into chunks that several samples share; dims and shape as in a file.

    ``sample_dim`` has commas between several.
    """

    variable: str
    sample_dim: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]


class ChunkedFields:
    """What datasets of stored variables have in common: the decoded chunks that samples share.

    A sample is of one file and lies at one index along the sample dimension, or along each of
    several; ``where`` begins with both. Several may lie at the same.
    """

    has_chunks = False
    _n_sample_dims = 1
    _widest: SharedChunks | None = None

    @cached_property
    def _chunks(self) -> DecodedChunks:
        return DecodedChunks()

    def _find_chunks(self, sample_dim: str, variables: Iterable[ChunkedVariable]) -> None:
        """Find out which of the variables of all files are in chunks that are read here."""
        every = list(variables)
        in_chunks = [each for each in every if each.is_in_chunks]
        self.has_chunks = bool(in_chunks) and not any(each.only_library for each in every)
        sample_dims = sample_dim.split(",")
        self._n_sample_dims = len(sample_dims)
        most = 1
        for each in in_chunks:
            lengths = zip(each.dims, each.chunk, strict=True)
            n_samples = math.prod(length for dim, length in lengths if dim in sample_dims)
            if n_samples > most:
                most = n_samples
                self._widest = SharedChunks(
                    each.name, sample_dim, each.dims, each.shape, each.chunk
                )

    def expect(self, where: Sequence[Any], *, follows: bool) -> None:
        """Say which samples will be asked for, in order; see `DecodedChunks.expect`."""
        n_dims = self._n_sample_dims
        numbers = np.array([each[: 1 + n_dims] for each in where], dtype=np.int64)
        numbers = numbers.reshape(-1, 1 + n_dims)
        self._chunks.expect(numbers[:, 0], numbers[:, 1:], follows=follows)

    def chunking(self) -> SharedChunks | None:
        """Return the variable of whose chunks a sample takes least; None where all are its own."""
        return self._widest
