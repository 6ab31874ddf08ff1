"""What commands say of the files they have written."""

from __future__ import annotations

from pathlib import Path

from iobench.cli.screen import TerminalScreen

__all__ = ["say_written"]


def say_written(path: Path, then: str = "") -> None:
    """Say on stderr that a file is there, how large it is, and what to do with it."""
    from iobench.report.units import nbytes
    from iobench.report.wrapping import plain

    size = f" ({nbytes(path.stat().st_size)})" if path.is_file() else ""
    TerminalScreen().note(f"wrote {plain(str(path))}{size}{': ' if then else ''}{then}")
