"""Adapter to NumPy's files: ``load``, ``fromfile``, ``memmap``, and text."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import file_name, in_memory, note_array, note_name
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan


def adapt(patches: Patches, numpy: Any) -> None:
    """Time what numpy loads. An archive and a mapping are opened; a member is read."""
    archive = numpy.lib.npyio.NpzFile
    left_on_disk = (numpy.memmap, archive)

    def note_load(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        file = args[0] if args else kwargs.get("file")
        span.detail = file_name(file)
        if isinstance(result, left_on_disk):
            span.kind = Kind.OPEN
        else:
            span.nbytes = result.nbytes
            if in_memory(file):
                span.kind = Kind.DECODE

    def note_fromfile(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.detail = file_name(args[0] if args else kwargs.get("file"))
        span.nbytes = result.nbytes

    def note_member(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.nbytes = len(result) if isinstance(result, bytes) else result.nbytes
        opened = args[0].zip
        span.detail = file_name(opened.filename)
        names = opened.NameToInfo
        member = names.get(f"{args[1]}.npy") or names[args[1]]
        if in_memory(opened.fp):
            span.kind = Kind.DECODE
        elif member.compress_type != zipfile.ZIP_STORED:
            span.kind, span.label = Kind.FUSED, "read+decode"

    patches.time(numpy, "load", Kind.READ, note=note_load)
    patches.time(numpy, "fromfile", Kind.READ, note=note_fromfile)
    # The class stays what it is: arrays are asked whether they are instances of it.
    patches.time(numpy.memmap, "__new__", Kind.OPEN, note=note_name(1, "filename"))
    patches.time(archive, "__getitem__", Kind.READ, note=note_member)
    for name in ("loadtxt", "genfromtxt"):
        patches.time(numpy, name, Kind.FUSED, "read+decode", with_cpu=True, note=note_array)
