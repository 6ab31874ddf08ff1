"""Adapter to table readers of pandas and pyarrow: reading and parsing are one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.adapters.notes import note_path
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

PANDAS_READERS = {
    "read_csv": "filepath_or_buffer",
    "read_table": "filepath_or_buffer",
    "read_parquet": "path",
    "read_feather": "path",
    "read_pickle": "filepath_or_buffer",
    "read_hdf": "path_or_buf",
    "read_json": "path_or_buf",
    "read_excel": "io",
}
"""Function: its argument that names the file, the first one."""


def adapt_pandas(patches: Patches, pandas: Any) -> None:
    """Time pandas' readers, and the parts of a file that is read in parts."""
    parts = pandas.io.parsers.TextFileReader

    def note_table(keyword: str) -> Callable[[OutsideSpan, Any, Any, Any], None]:
        note = note_path(0, keyword)

        def note_either(span: OutsideSpan, result: Any, args: Any, kwargs: Any) -> None:
            if isinstance(result, parts):
                span.kind, span.label = Kind.OPEN, ""
            note(span, result, args, kwargs)

        return note_either

    for name, keyword in PANDAS_READERS.items():
        _put(patches, pandas, name, note_table(keyword))
    _put(patches, parts, "read", None)


def adapt_parquet(patches: Patches, parquet: Any) -> None:
    """Time pyarrow's reading of Parquet files, whole or by row group."""
    _put(patches, parquet, "read_table", note_path(0, "source"))
    for name in ("read", "read_row_group", "read_row_groups"):
        _put(patches, parquet.ParquetFile, name, None)


def _put(
    patches: Patches,
    owner: Any,
    name: str,
    note: Callable[[OutsideSpan, Any, Any, Any], None] | None,
) -> None:
    patches.time(owner, name, Kind.FUSED, "read+decode", with_cpu=True, note=note)
