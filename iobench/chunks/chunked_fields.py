"""Variables in chunks that several samples share, and what datasets of such have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.decoded_chunks import DecodedChunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunk_manifest import ChunkManifest, StoredVariable

__all__ = ["ChunkedFields", "SharedChunks", "widest_chunks"]


def _file_and_index(
    where: Sequence[tuple[int, ...]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return of each sample the number of its file, and its index there; more may follow."""
    pairs = np.array([each[:2] for each in where], dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@dataclass(frozen=True, slots=True)
class SharedChunks:
    """How a variable is cut into chunks that several samples share; dims and shape as in a file."""

    variable: str
    sample_dim: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]


def widest_chunks(
    sample_dim: str,
    variables: Iterable[tuple[str, tuple[str, ...], tuple[int, ...], tuple[int, ...]]],
) -> SharedChunks | None:
    """Return the variable of whose chunks a sample takes least; None where all are its own.

    Parameters
    ----------
    sample_dim : str
    variables : iterable of (name, dims, shape, chunk)
        Those in chunks.
    """
    found = [
        SharedChunks(name, sample_dim, dims, shape, chunk)
        for name, dims, shape, chunk in variables
        if sample_dim in dims and chunk[dims.index(sample_dim)] > 1
    ]
    return max(found, key=lambda each: each.chunk[each.dims.index(sample_dim)], default=None)


class ChunkedFields:
    """What datasets of stored variables have in common: the decoded chunks that samples share.

    A sample is of one file and lies at one index along the sample dimension; ``where`` begins with
    both. Several may lie at the same.
    """

    has_chunks = False
    _widest: SharedChunks | None = None

    @cached_property
    def _chunks(self) -> DecodedChunks:
        return DecodedChunks()

    def _find_chunks(
        self, sample_dim: str, variables: Iterable[tuple[StoredVariable, ChunkManifest | None]]
    ) -> None:
        """Find out which of the variables of all files are in chunks that are read here."""
        every = list(variables)
        found = [(each, how) for each, how in every if how is not None and not how.is_contiguous]
        self.has_chunks = bool(found) and all(how is not None for _, how in every)
        self._widest = widest_chunks(
            sample_dim, ((each.name, each.dims, each.shape, how.chunk) for each, how in found)
        )

    def expect(self, where: Sequence[Any], *, follows: bool) -> None:
        """Say which samples will be asked for, in order; see `DecodedChunks.expect`."""
        self._chunks.expect(*_file_and_index(where), follows=follows)

    def chunking(self) -> SharedChunks | None:
        """Return the variable of whose chunks a sample takes least; None where all are its own."""
        return self._widest
