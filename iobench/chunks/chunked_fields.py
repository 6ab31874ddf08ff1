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

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable


def _file_and_indexes(
    where: Sequence[tuple[int, ...]], n_dims: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return of each sample the number of its file, and its indexes there; more may follow."""
    numbers = np.array([each[: 1 + n_dims] for each in where], dtype=np.int64)
    numbers = numbers.reshape(-1, 1 + n_dims)
    return numbers[:, 0], numbers[:, 1] if n_dims == 1 else numbers[:, 1:]


class SharedChunks(msgspec.Struct, frozen=True):
    """How a variable is cut into chunks that several samples share; dims and shape as in a file.

    ``sample_dim`` has commas between several.
    """

    variable: str
    sample_dim: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]


def widest_chunks(
    sample_dim: str,
    variables: Iterable[tuple[str, tuple[str, ...], tuple[int, ...], tuple[int, ...]]],
) -> SharedChunks | None:
    """Return the variable of whose chunks a sample takes least; None where all are its own."""
    sample_dims = sample_dim.split(",")
    shared_by = []
    for name, dims, shape, chunk in variables:
        lengths = zip(dims, chunk, strict=True)
        n_samples = math.prod(length for dim, length in lengths if dim in sample_dims)
        if n_samples > 1:
            shared = SharedChunks(name, sample_dim, dims, shape, chunk)
            shared_by.append((n_samples, shared))
    return max(shared_by, key=lambda each: each[0], default=(0, None))[1]


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
        self._n_sample_dims = sample_dim.count(",") + 1
        self._widest = widest_chunks(
            sample_dim, ((each.name, each.dims, each.shape, each.chunk) for each in in_chunks)
        )

    def expect(self, where: Sequence[Any], *, follows: bool) -> None:
        """Say which samples will be asked for, in order; see `DecodedChunks.expect`."""
        files, indexes = _file_and_indexes(where, self._n_sample_dims)
        self._chunks.expect(files, indexes, follows=follows)

    def chunking(self) -> SharedChunks | None:
        """Return the variable of whose chunks a sample takes least; None where all are its own."""
        return self._widest
