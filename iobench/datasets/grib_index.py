"""The index of GRIB files, found out once per file and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.chunks.grib.decoding import load_eccodes
from iobench.chunks.grib.message_index import GribIndex, inspect_messages, joined_index
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.contract import Progress, no_progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


INDEX_VERSION = 4


def index_grib(
    files: Sequence[Path], *, cache_dir: Path, progress: Progress = no_progress
) -> GribIndex:
    """Index GRIB files; an index is built once per file and kept.

    Parameters
    ----------
    files : sequence of Path
        GRIB1 or GRIB2 files, one field per message.
    cache_dir : Path
        Where indexes are kept. One holds as long as the file's path, size and modification time
        do; if nothing can be written there it serves this call.
    progress : callable
        Called with bytes done and in all.

    Raises
    ------
    FileFormatError
        If a file is empty, not GRIB, cut short or damaged: one error, with the offset of the
        message. There is no way to go on with fewer messages.
    MissingFileError, StorageError
        If a file is missing or cannot be read.
    MissingExtraError
        If ecCodes is not installed.
    """
    codes = load_eccodes()
    inspection = Inspection(
        f"grib {INDEX_VERSION}, ecCodes {codes.codes_get_api_version()}",
        inspect_messages,
        (GribIndex,),
    )
    found, _ = catalogued(files, inspection, cache_dir=cache_dir, progress=progress)
    return joined_index(found)
