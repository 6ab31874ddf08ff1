"""What epochs over the samples of a dataset read, with the chunks that stay decoded in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.decoded_chunks import ChunkRow, DecodedChunks, chunk_cache_nbytes
from iobench.datasets.contract import ChunkedDataset, PlannedDataset
from iobench.datasets.sample_windows import SampledFiles
from iobench.recording.epoch_reads import EpochReads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import Where

MOST_SIMULATED: Final = 4096
"""Samples of an epoch that are drawn where not all chunks stay in memory: 10 us each."""


def expected_reads(dataset: Any, where: Sequence[Where], n_processes: int = 1) -> EpochReads | None:
    """Return what epochs over samples read; None where the dataset does not tell.

    Each of several loading processes keeps chunks of its own.
    """
    files = SampledFiles(dataset, where) if isinstance(dataset, ChunkedDataset) else None
    if not files:
        return None
    n, kept = len(where), chunk_cache_nbytes() // n_processes
    (once, decoded), (alone, _) = files.nbytes(), SampledFiles(dataset, where[:1]).nbytes()
    if not (isinstance(dataset, PlannedDataset) and dataset.has_chunks):
        alone = files.sample_nbytes  # of numbers in one piece nothing else is read
        return EpochReads(n, n * alone, n * alone, decoded)
    per_chunk = max(1.0, n * alone / max(1, once))
    first, later = 1.0, 0.0
    if n_processes > 1 or decoded > kept:
        first, later = _passes(n, per_chunk, decoded, n_processes)
    return EpochReads(n, round(once * first), round(once * later), decoded, kept, per_chunk)


def _passes(n: int, per_chunk: float, decoded: int, n_processes: int) -> tuple[float, float]:
    """Return how often chunks are decoded in the first and second epoch, by one of processes.

    The cache itself decides, with chunks of no content.
    """
    drawn = min(n, MOST_SIMULATED)
    n_rows = min(drawn, max(1, round(n / per_chunk)))
    length = -(-drawn // n_rows)
    content = np.broadcast_to(np.uint8(0), (decoded * n_processes // n_rows,))
    cache, random, counts = DecodedChunks(), np.random.default_rng(0), [0, 0]
    for epoch in range(2):
        order = random.permutation(drawn)[: -(-drawn // n_processes)]
        cache.expect(np.zeros_like(order), order, follows=True)
        for sample in order.tolist():
            row = ChunkRow(0, "", (length,), (sample // length,))
            chunks, read = cache.take([(row, (0,))], (0, sample), _nothing)
            chunks[0].values(lambda *_: content)
            counts[epoch] += len(read)
    first, later = (n_processes * count * n / drawn / n_rows for count in counts)
    return first, later


def _nothing(keys: Sequence[Any]) -> list[list[memoryview]]:
    return [[memoryview(b"-")] for _ in keys]
