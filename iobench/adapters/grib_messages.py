"""Adapter to ecCodes, and so to cfgrib: messages are read, their values decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import file_name, note_array
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

READERS = ("grib_new_from_file", "bufr_new_from_file", "any_new_from_file")
DECODERS = ("get_values", "get_array", "get_double_array", "get_float_array")


def adapt_eccodes(patches: Patches, eccodes: Any) -> None:
    """Time the functions by the names of ``eccodes``."""
    readers = ["codes_new_from_file", *(f"codes_{name}" for name in READERS)]
    decoders = [f"codes_{name}" for name in DECODERS]
    _adapt(patches, eccodes, readers, decoders, eccodes.codes_get_message_size)


def adapt_gribapi(patches: Patches, gribapi: Any) -> None:
    """Time the functions by the names of ``gribapi``, the bindings below ``eccodes``."""
    decoders = [f"grib_{name}" for name in DECODERS]
    readers = ["codes_new_from_file", *READERS]
    _adapt(patches, gribapi, readers, decoders, gribapi.grib_get_message_size)


def _adapt(
    patches: Patches,
    module: Any,
    readers: Iterable[str],
    decoders: Iterable[str],
    message_nbytes: Any,
) -> None:
    def note_message(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.detail = file_name(args[0] if args else kwargs.get("fileobj"))
        if result is not None:  # None: the end of the file
            span.nbytes = message_nbytes(result)

    for name in readers:
        patches.time(module, name, Kind.READ, note=note_message)
    for name in decoders:
        if hasattr(module, name):
            patches.time(module, name, Kind.DECODE, note=note_array)
