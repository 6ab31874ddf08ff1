"""All the logs that were named or lie in a folder, as one trace."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from iobench.errors import FileFormatError
from iobench.storage.darshan.logs import LogContents, read_log
from iobench.storage.darshan.names import is_log_name, parse_log_name
from iobench.storage.traces import ProcessTrace, StorageTrace

__all__ = ["read_darshan_logs"]


def read_darshan_logs(paths: Sequence[Path]) -> StorageTrace:
    """Read Darshan logs: files, or all that lie in folders."""
    traces: list[ProcessTrace] = []
    refused: list[str] = []
    for path in paths:
        found = (
            sorted(p for p in path.rglob("*") if is_log_name(p.name)) if path.is_dir() else [path]
        )
        for each in found:
            try:
                traces += _read(each).traces
            except FileFormatError as error:
                refused.append(f"{each}: {error}")
    return StorageTrace(tuple(traces), tuple(refused))


def _read(path: Path) -> LogContents:
    name = parse_log_name(path.name)
    if path.suffix != ".gz":
        return read_log(path, path, name)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "log.darshan"
        with gzip.open(path) as packed, plain.open("wb") as out:
            shutil.copyfileobj(packed, out)
        return read_log(plain, path, name)
