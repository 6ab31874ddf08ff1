"""What Jupyter shows of a run: its report as a fragment of HTML."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.errors import IobenchError
from iobench.masking import as_typed
from iobench.report.document import Command, Document, Section, Sentence
from iobench.report.renderers.notebook_fragment import NotebookRenderer
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.runs.contents import RunData


class NotebookReport(msgspec.Struct, frozen=True):
    """A report that Jupyter shows where it is the value of a cell."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def show(run: Path | str | RunData) -> NotebookReport:
    """Return what a run measured, for the last line of a cell; or why that is unknown.

    Parameters
    ----------
    run : Path, str or RunData
        The run directory, or what `iobench.open_profile` read of it.
    """
    try:
        opened = Run(run)
        document = report_document([opened])
    except IobenchError as error:
        refusal = Section("verdict", "", (Sentence(str(error), "caution"),))
        document = Document("", (refusal,))
    else:
        command = shlex.join(["iobench", "report", str(as_typed(opened.path))])
        again = Section("verdict", "", (Command(command, "In a terminal"),))
        document = replace(document, sections=(*document.sections, again))
    return NotebookReport(NotebookRenderer().render(document))
