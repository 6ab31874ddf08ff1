"""Single examples of TFRecord files: framed for a stand-in, their checksums compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.errors import FileFormatError
from iobench.stores import HEADER_NBYTES, crc32c, encode_example, frame_footer, frame_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.stores import FeatureKind

FETCH: Final = "fetch the file again"


def checked_frame(frame: memoryview, where: str) -> memoryview:
    """Return the data of a frame whose checksums are right."""
    data = frame[HEADER_NBYTES:-4]
    if frame[:HEADER_NBYTES] != frame_header(len(data)):
        raise FileFormatError(f"{where}: length or checksum of the length is wrong; {FETCH}")
    if frame[-4:] != frame_footer(crc32c(data)):
        raise FileFormatError(f"{where}: checksum of the example's data is wrong; {FETCH}")
    return data


def framed(features: list[tuple[str, FeatureKind, NDArray[Any]]]) -> list[Any]:
    """Return the buffers that, one after the other, are the example with its frame."""
    pieces = encode_example(features)
    crc, nbytes = 0, 0
    for piece in pieces:
        crc = crc32c(piece, crc)
        nbytes += len(piece)
    return [frame_header(nbytes), *pieces, frame_footer(crc)]
