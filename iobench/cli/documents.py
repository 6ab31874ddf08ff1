"""Documents printed as a command was asked to, and written as pages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iobench.cli.opened_run import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.report.document import Document

__all__ = ["print_document", "write_document"]


def print_document(document: Document, renderer: str = "") -> None:
    """Print a document to stdout by a renderer of that name, by default as for a terminal."""
    from iobench.registry import find_renderer

    write_text(find_renderer(renderer or "terminal").render(document), sys.stdout)


def write_document(document: Document, path: Path) -> None:
    """Write a document as a page that opens offline, and say where.

    Raises
    ------
    MissingExtraError
        If Jinja2 is not installed.
    StorageError
        If the file cannot be written.
    """
    from iobench.cli.written_files import say_written
    from iobench.registry import find_renderer
    from iobench.report.written import write_whole

    write_whole(path, find_renderer("html").render(document))
    say_written(path, "open it in a browser")
