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
    """Index GRIB files; an index is built once per file and kept."""
    codes = load_eccodes()
    inspection = Inspection(
        f"grib {INDEX_VERSION}, ecCodes {codes.codes_get_api_version()}",
        inspect_messages,
        (GribIndex,),
    )
    found, _ = catalogued(files, inspection, cache_dir=cache_dir, progress=progress)
    return joined_index(found)
