"""URLs with patterns in them (``s3://bucket/dir/*.grib``): no shell spells them out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from iobench.errors import MissingFileError, OptionError
from iobench.files.filesystems import open_filesystem, remote_errors
from iobench.files.urls import URL, as_path

__all__ = ["expand_sources"]


def expand_sources(targets: Sequence[Any]) -> tuple[Any, ...]:
    """Return the targets with `URL`s for texts that are URLs, and patterns of them spelled out.

    Paths (``*.grib``) are left to the shell, and what is no text to others.

    Raises
    ------
    MissingFileError
        If nothing matches a pattern.
    OptionError
        If a URL names no file.
    """
    found: list[Any] = []
    for target in targets:
        url = as_path(target) if isinstance(target, str) else None
        if isinstance(url, URL):
            found += _matching(url) if url.is_pattern() else [url]
        else:
            found.append(target)
    return tuple(found)


def _matching(pattern: URL) -> list[URL]:
    if not str(pattern).partition("://")[2].strip("/*"):
        raise OptionError(f"{pattern}: name the bucket or folder whose files are meant")
    filesystem, inside = open_filesystem(pattern)
    names: list[str] = []
    # There is no such bucket, which is nothing that matches.
    with suppress(FileNotFoundError), remote_errors(pattern):
        names = sorted(filesystem.glob(inside))
    if not names:
        raise MissingFileError(
            f"{pattern}: no file matches; quote it, so that the shell leaves it alone, and check "
            "the spelling"
        )
    return [URL(str(filesystem.unstrip_protocol(name))) for name in names]
