"""Adapter to tarfile: members found and read, of archives that come from wherever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.adapters.counted_files import CountedFile
from iobench.adapters.notes import file_name, in_memory
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan


def adapt(patches: Patches, tarfile: Any) -> None:
    """Time the search for the next member, and its reading.

    Of an archive that ``open`` opened while recording, reads of the file are spans of their own;
    of others (a pipe, a response, a file opened by something else) the member's is all there is.
    """
    streams = (tarfile._Stream, tarfile._StreamProxy)

    def find_source(archive: Any) -> tuple[Any, bool]:
        """Return the file below an archive, and whether that file has to be inflated."""
        inflates = False
        while isinstance(archive, streams):
            inflates = inflates or getattr(archive, "comptype", "tar") != "tar"
            archive = archive.fileobj
        for name in ("fileobj", "_fp"):  # of gzip's files, of bz2's and lzma's
            if hasattr(archive, name):
                return getattr(archive, name), True
        return archive, inflates

    def note_next(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        source, _ = find_source(args[0].fileobj)
        span.detail = file_name(source)

    def note_member(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        source, inflates = find_source(args[0].fileobj)
        span.detail = file_name(source)
        if not result:  # whoever reads to the end asks once more
            span.kind = 0
        elif in_memory(source):
            span.kind = Kind.DECODE
        elif isinstance(getattr(source, "raw", source), CountedFile):
            # Reads and their bytes have spans; this one is of joining them, or of inflating.
            span.kind = Kind.DECODE if inflates else 0
            span.nbytes = len(result) if inflates else -1
            return
        elif inflates:
            span.kind, span.label = Kind.FUSED, "read+decode"
        span.nbytes = len(result)

    patches.time(tarfile.TarFile, "next", Kind.OPEN, hiding=False, note=note_next)
    patches.time(tarfile._FileInFile, "read", Kind.READ, hiding=False, note=note_member)
