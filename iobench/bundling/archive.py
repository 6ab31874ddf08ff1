"""A bundle as one file: the same files make the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["packed"]


def packed(folder: str, files: Mapping[str, bytes]) -> bytes:
    """Return a ``.tar.gz`` of files in one folder, sorted, without times and owners."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    found = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=found, mtime=0) as zipped:
        zipped.write(raw.getvalue())
    return found.getvalue()
