"""Adapter to the readers of MosaicML's streaming and of LitData: samples of shards and chunks.

Files are seen as they are opened and read. What is theirs alone is here: samples decoded, shards
inflated or brought here as a whole, which both do in threads of their own, and items sliced from
mapped files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.notes import arrays_nbytes, note_arrays, note_bytes, note_path
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

INFLATED: Final = "inflated"
"""Label of what is decompressed as a whole: a shard, or a part of a chunk."""
READERS: Final = ("MDSReader", "JSONReader", "XSVReader")


def adapt_samples(patches: Patches, module: Any) -> None:
    """Time the decoding of MosaicML's samples, of one of its formats."""
    for name in READERS:
        if "decode_sample" in vars(vars(module).get(name, object)):
            patches.time(getattr(module, name), "decode_sample", Kind.DECODE, note=note_arrays)


def adapt_chunks(patches: Patches, stream: Any) -> None:
    """Time MosaicML's shards brought to this machine, and inflated."""
    patches.time(stream, "decompress", Kind.DECODE, INFLATED, with_cpu=True, note=note_bytes)
    patches.time(stream.Stream, "_download_file", Kind.READ, "download", note=_note_brought)


def adapt_inflating(patches: Patches, compression: Any) -> None:
    """Time LitData's chunks inflated."""
    zstd = compression.ZSTDCompressor
    note = note_path(2, "dst")
    patches.time(zstd, "decompress_file", Kind.DECODE, INFLATED, hiding=False, note=note)


def adapt_items(patches: Patches, loaders: Any) -> None:
    """Time LitData's items: sliced from a mapping, inflated, decoded one by one or in rows."""
    items = loaders.PyTreeLoader
    patches.time(items, "_slice_item_bytes", Kind.READ, note=note_bytes)
    for name in ("deserialize", "mds_deserialize"):
        patches.time(items, name, Kind.DECODE, note=note_arrays)
    patches.time(items, "_batch_deserialize_payload", Kind.DECODE, note=_note_rows)
    # The rows are still in a mapping: who decodes them reads them.
    patches.time(
        items, "_fill_decode_window_mmap", Kind.FUSED, "read+decode", with_cpu=True,
        note=_note_window,
    )  # fmt: skip
    patches.time(
        items, "_maybe_inflate_sample", Kind.DECODE, INFLATED, only_if=_inflates, note=note_bytes
    )
    patches.time(loaders, "inflate_frame", Kind.DECODE, INFLATED, with_cpu=True, note=note_bytes)


def _inflates(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[0]._sample_compression)


def _note_brought(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    note_path(0, "")(span, result, (result,), {})


def _note_rows(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    span.nbytes = sum(arrays_nbytes(row) for row in result)


def _note_window(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    loader = args[0]
    first = loader._win_start
    offsets = loader._offsets
    span.nbytes = offsets[first + len(loader._chunk_rows)] - offsets[first]
