"""Documents, and facts as JSON has them, printed as a command was asked to or written as pages."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from iobench.report.document import Document, Quantity, Section, Table, columns, properties
from iobench.report.units import UNKNOWN, byte_rate, duration, nanoseconds, nbytes, number

if TYPE_CHECKING:
    from iobench.report.document import Block, Cell

FEW: Final = 8
"""More of a kind (files, shards) are shortened."""
UNITS: Final = ("nbytes", "_ns", "_s", "seconds")
"""What keys of figures with a unit end in."""
EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
"""A value that says nothing."""


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
    from iobench.masking import printable

    size = f" ({nbytes(path.stat().st_size)})" if path.is_file() else ""
    TerminalScreen().note(f"wrote {printable(str(path))}{size}{': ' if then else ''}{then}")


def fact_table(facts: Mapping[str, Any], without: Collection[str] = ()) -> Table:
    """Return a table of facts; an object in it has a row for each of its keys."""
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if name not in without:
            texts = _texts(name, value)
            rows += zip([_label(name), *[""] * len(texts)], texts, strict=False)
    return properties(rows)


def object_tables(
    title: str, objects: Sequence[Mapping[str, Any]], without: Collection[str] = ()
) -> list[Table]:
    """Return a table with a row for each object and a column for each key that one has a value of.

    No objects are no table.
    """
    keys = dict.fromkeys(key for each in objects for key in each if key not in without)
    shown = [key for key in keys if any(each.get(key) not in EMPTY for each in objects)]
    cells = [
        tuple("-" if each.get(key) in EMPTY else _cell(each[key], key) for key in shown)
        for each in objects
    ]
    return [Table(title, columns(*map(_label, shown)), tuple(cells))] if objects else []


def shape_of(variable: Mapping[str, Any]) -> str:
    """Return an array's dimensions as words: ``"y 90, x 120"``."""
    lengths = zip(variable["dims"], variable["shape"], strict=True)
    return ", ".join(f"{dim} {length}" for dim, length in lengths)


def error_tables(lossy: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return a table of the errors of variables that are stored with fewer bits."""
    rows = [{"variable": name, **errors} for name, errors in lossy.items()]
    return object_tables("Errors of fewer bits", rows, {"before", "after"})


def _texts(name: str, value: Any) -> list[str]:
    """Return the lines of a fact."""
    if not isinstance(value, Mapping):
        return [_phrase(value, name)]
    units = {key: key if key.endswith(UNITS) else name for key in value}
    return [f"{_label(key)}: {_phrase(value[key], units[key])}" for key in value] or ["none"]


def _label(key: str) -> str:
    """Return a key as words: what says its unit is shown with the value."""
    key = re.sub("^n_|_ns$|(?<!_per)_s$", "", key)
    return key.replace("nbytes", "size").replace("_n_", "_").replace("_", " ")


def _phrase(value: Any, name: str = "") -> str:
    """Return a value of JSON as words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_label(key)} {_phrase(value[key], key)}" for key in value) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_shortened(map(_phrase, value))) or "none"
    if value is None:
        return UNKNOWN if name.endswith(UNITS) else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("nbytes"):
        return nbytes(value)
    if name.endswith("bytes_per_s"):
        return byte_rate(value)
    if name.endswith(UNITS) and "_per_" not in name:
        return duration(value if name.endswith("_ns") else nanoseconds(value))
    return number(value) if isinstance(value, float) else str(value)


def _cell(value: Any, name: str) -> Cell:
    """Return a value of JSON as a cell of a table, numbers as figures."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _phrase(value, name)
    return Quantity(value, "count" if isinstance(value, int) else "number")


def _shortened(texts: Iterable[str]) -> list[str]:
    """Return texts; of more than `FEW` the first and the last, and how many there are."""
    listed = list(texts)
    if len(listed) <= FEW:
        return listed
    return [*listed[: FEW - 2], "...", f"{listed[-1]} ({len(listed)} in all)"]
