"""What iobench times of third_party_records."""

from __future__ import annotations

from typing import Any

from iobench.adapters import TimedCall


def note_record(span: Any, result: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the bytes that came back, and the file they are of."""
    span.nbytes = len(result)
    span.detail = args[0].path


def note_values(span: Any, result: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the bytes of the values."""
    span.nbytes = len(result)


ROWS = (
    TimedCall("RecordFile.fetch", "read", note_record),
    TimedCall("unpack", "decode", note_values, with_cpu=True),
)
