"""What datasets of stored variables have in common: the decoded chunks that samples share."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from iobench.chunks.decoded_chunks import DecodedChunks, file_and_index, widest_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iobench.chunks.decoded_chunks import SharedChunks
    from iobench.chunks.manifest import ChunkManifest, StoredVariable

__all__ = ["ChunkedFields"]


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
        self._chunks.expect(*file_and_index(where), follows=follows)

    def chunking(self) -> SharedChunks | None:
        """Return the variable of whose chunks a sample takes least; None where all are its own."""
        return self._widest
