"""Adapter to webdataset: samples of tar archives decoded, and joined to batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import note_arrays
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches


def adapt_decoding(patches: Patches, autodecode: Any) -> None:
    """Time the decoding of a sample: of arrays, images, text, whatever handler does it."""
    patches.time(autodecode.Decoder, "decode", Kind.DECODE, with_cpu=True, note=note_arrays)


def adapt_batches(patches: Patches, filters: Any) -> None:
    """Time the joining of each field of a batch, as ``.batched()`` does it by default."""
    patches.time(filters, "combine_values", Kind.COLLATE, "batched", note=note_arrays)
