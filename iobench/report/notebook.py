"""What Jupyter shows of a run: its report as Markdown."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.errors import IobenchError
from iobench.masking import as_typed
from iobench.report.document import Command, Document, Section, Sentence
from iobench.report.renderers.markdown import MarkdownRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.runs.contents import RunData

OPEN: Final = ("job", "compared", "verdict", "next", "stages", "waits")
"""The sections that are shown at once; the others unfold."""


class NotebookReport(msgspec.Struct, frozen=True):
    """A report that Jupyter shows where it is the value of a cell."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown


def show(run: Path | str | RunData) -> NotebookReport:
    """Return what a run measured, for the last line of a cell; or why that is unknown.

    Parameters
    ----------
    run : Path, str or RunData
        The run directory, or what `iobench.open_profile` read of it.
    """
    try:
        opened = Run(run)
        document = _folded(report_document([opened]))
    except IobenchError as error:
        refusal = Section("verdict", "", (Sentence(str(error), "caution"),))
        document = Document("", (refusal,))
    else:
        command = shlex.join(["iobench", "report", str(as_typed(opened.path))])
        again = Section("again", "", (Command(command, "In a terminal"),))
        document = replace(document, sections=(*document.sections, again))
    return NotebookReport(MarkdownRenderer().render(document))


def _folded(document: Document) -> Document:
    """Return a document that shows only what matters most."""
    sections = (replace(each, is_folded=each.key not in OPEN) for each in document.sections)
    parts = tuple(map(_folded, document.parts))
    return replace(document, sections=tuple(sections), parts=parts)
