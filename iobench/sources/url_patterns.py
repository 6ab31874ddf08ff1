"""URLs with patterns in them (``s3://bucket/dir/*.grib``): no shell spells them out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from iobench.errors import MissingFileError, OptionError
from iobench.remote import is_url, open_filesystem, remote_errors, shown_url

__all__ = ["expand_sources"]


def expand_sources(targets: Sequence[Any]) -> tuple[Any, ...]:
    """Return the targets with URLs that are patterns (``s3://bucket/dir/*.grib``) spelled out.

    Paths are left to the shell, and what is no text to others.

    Raises
    ------
    MissingFileError
        If nothing matches a pattern.
    OptionError
        If a URL names no file.
    """
    found: list[Any] = []
    for target in targets:
        if isinstance(target, str) and is_url(target) and _is_pattern(target):
            found += _matching(target)
        else:
            found.append(target)
    return tuple(found)


def _is_pattern(url: str) -> bool:
    # A question mark begins the query of a web page's address.
    marks = "*[" if url.startswith("http") else "*[?"
    return any(mark in url for mark in marks)


def _matching(pattern: str) -> list[str]:
    rest = pattern.partition("://")[2]
    if not rest.strip("/*"):
        raise OptionError(f"{shown_url(pattern)}: name the bucket or folder whose files are meant")
    filesystem, inside = open_filesystem(pattern)
    names: list[str] = []
    # There is no such bucket, which is nothing that matches.
    with suppress(FileNotFoundError), remote_errors(pattern):
        names = sorted(filesystem.glob(inside))
    if not names:
        raise MissingFileError(
            f"{shown_url(pattern)}: no file matches; quote it, so that the shell leaves it alone, "
            "and check the spelling"
        )
    return [str(filesystem.unstrip_protocol(name)) for name in names]
