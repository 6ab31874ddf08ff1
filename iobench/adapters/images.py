"""Adapter to Pillow: images opened, and decoded when their pixels are first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.notes import file_name, in_memory
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

PIXEL_NBYTES: Final = {"1": 1, "I;16": 2, "I": 4, "F": 4}
"""Of modes that do not take a byte for each band."""


def adapt_opening(patches: Patches, image: Any) -> None:
    """Time ``Image.open``: the header is read, and of an image in memory decoded."""
    patches.time(image, "open", Kind.OPEN, note=_note_header)


def adapt_loading(patches: Patches, image_file: Any) -> None:
    """Time the decoding; what it reads from a file that was opened while recording is `read`."""
    patches.time(
        image_file.ImageFile,
        "load",
        Kind.DECODE,
        hiding=False,
        only_if=_has_to_decode,
        note=_note_pixels,
    )


def _note_header(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    file = args[0] if args else kwargs["fp"]
    if in_memory(file):
        span.kind, span.nbytes = Kind.DECODE, 0  # its pixels come later
    else:
        span.detail = file_name(file)


def _has_to_decode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[0].tile)


def _note_pixels(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    picture = args[0]
    width, height = picture.size
    pixel = PIXEL_NBYTES.get(picture.mode) or len(picture.getbands())
    span.nbytes = width * height * pixel
    span.detail = file_name(picture.filename)
