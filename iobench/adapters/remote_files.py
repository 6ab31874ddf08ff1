"""Adapter to fsspec: files and objects of any of its file systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.notes import note_bytes, note_name
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

FETCHERS: Final = frozenset(
    {"_cat", "_cat_file", "_cat_ranges", "_get", "_get_file", "_read", "_fetch_range"}
)
"""Coroutines that bring bytes; others ask for names and sizes."""


def adapt(patches: Patches, fsspec: Any) -> None:
    """Time ``open``, ``cat_file`` and ``cat_ranges`` of file systems, and reads of their files."""
    system = fsspec.spec.AbstractFileSystem
    patches.time(
        system,
        "open",
        Kind.OPEN,
        by_threads=True,
        only_if=_opens_to_read,
        note=note_name(1, "path"),
    )
    patches.time(system, "cat_file", Kind.READ, by_threads=True, note=_note_object)
    patches.time(system, "cat_ranges", Kind.READ, by_threads=True, note=_note_ranges)
    patches.time(
        fsspec.spec.AbstractBufferedFile, "read", Kind.READ, by_threads=True, note=_note_read
    )


def adapt_loops(patches: Patches, asyn: Any) -> None:
    """Time what a thread waits for while fsspec's event loop fetches it."""
    patches.time(asyn, "sync", Kind.READ, by_threads=True, only_if=_fetches, note=_note_fetched)


def _opens_to_read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = args[2] if len(args) > 2 else kwargs.get("mode", "rb")
    return mode in {"r", "rb", "rt"}


def _fetches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return getattr(args[1], "__name__", "") in FETCHERS


def _note_object(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    span.detail = str(args[1] if len(args) > 1 else kwargs["path"])
    note_bytes(span, result, args, kwargs)


def _note_ranges(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    span.nbytes = sum(len(part) for part in result if isinstance(part, bytes))


def _note_read(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    span.detail = str(getattr(args[0], "path", ""))
    note_bytes(span, result, args, kwargs)


def _note_fetched(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Note the bytes of an object, several by name, or several in a row."""
    if len(args) > 2 and isinstance(args[2], str):
        span.detail = args[2]
    if isinstance(result, bytes):
        span.nbytes = len(result)
    elif isinstance(result, dict):
        _note_ranges(span, result.values(), args, kwargs)
    elif isinstance(result, list):
        _note_ranges(span, result, args, kwargs)
