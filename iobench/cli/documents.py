"""Documents printed as a command was asked to, and written as pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.report.document import Block, Document, Section


def shown_as(*, json: bool, markdown: bool, renderer: str = "") -> str:
    """Return the renderer that is asked for, ``""`` for that of terminals."""
    from iobench.errors import OptionError

    named = [*["json"] * json, *["markdown"] * markdown, *[renderer] * bool(renderer)]
    if len(named) > 1:
        raise OptionError("--json, --markdown and --as all write to stdout; give one of them")
    return "".join(named)


def print_document(document: Document, renderer: str = "", *, file: TextIO | None = None) -> None:
    """Print a document, by default to stdout."""
    from iobench.registry import find_renderer
    from iobench.report.renderers.terminal import TerminalRenderer

    result = find_renderer(renderer) if renderer else TerminalRenderer(file)
    write_text(result.render(document), sys.stdout if file is None else file)


def print_answer(
    title: str,
    *parts: Section | Block,
    figures: Mapping[str, Any],
    json: bool,
) -> None:
    """Print what a command found: a title with blocks and sections below, or its figures."""
    from iobench.report.document import Document, Section

    first = tuple(each for each in parts if not isinstance(each, Section))
    sections = (each for each in parts if isinstance(each, Section))
    shown = (*([Section("answer", "", first)] if first else []), *sections)
    document = Document(title, shown, figures=lambda: figures)
    print_document(document, "json" if json else "")


def write_text(text: str, file: TextIO) -> None:
    """Write text that ends in a line break; what the file's encoding lacks is spelled out."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    whole = text if text.endswith("\n") else f"{text}\n"
    file.write(whole.encode(encoding, "backslashreplace").decode(encoding))


def write_document(document: Document, path: Path) -> None:
    """Write a document as a page that opens offline, and say where."""
    from iobench.files.atomic import write_atomically
    from iobench.registry import find_renderer

    write_atomically(path, find_renderer("html").render(document))
    say_written(path, "open it in a browser")


def say_written(path: Path, then: str = "") -> None:
    """Say on stderr that a file is there, how large it is, and what to do with it."""
    from iobench.cli.screen import TerminalScreen
    from iobench.report.units import nbytes
    from iobench.report.wrapping import plain

    size = f" ({nbytes(path.stat().st_size)})" if path.is_file() else ""
    TerminalScreen().note(f"wrote {plain(str(path))}{size}{': ' if then else ''}{then}")
