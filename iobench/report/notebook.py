"""What Jupyter shows of a profile and of an exposure: their reports as fragments of HTML."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.errors import IobenchError
from iobench.masking import as_typed
from iobench.report.document import Command, Document, Section, Sentence
from iobench.report.renderers.notebook_fragment import NotebookRenderer
from iobench.report.report_document import exposure_document, report_document

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Exposure
    from iobench.runs.contents import RunData


def profile_fragment(profile: RunData) -> str:
    """Return what a run measured, as a fragment of HTML; or why that is unknown."""
    try:
        document = report_document([Run(profile)])
    except IobenchError as error:
        told = Section("verdict", "", (Sentence(str(error), "caution"),))
        document = Document("", (told,))
    else:
        command = shlex.join(["iobench", "report", str(as_typed(profile.path))])
        again = Section("verdict", "", (Command(command, "In a terminal"),))
        document = replace(document, sections=(*document.sections, again))
    return NotebookRenderer().render(document)


def exposure_fragment(exposure: Exposure) -> str:
    """Return who was waited for, as a fragment of HTML."""
    return NotebookRenderer().render(exposure_document(exposure))
