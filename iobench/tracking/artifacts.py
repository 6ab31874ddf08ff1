"""The page and the trace of a run, as files to be kept beside its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import MissingExtraError

if TYPE_CHECKING:
    from iobench.analysis.run import Run
    from iobench.report.document import Document


def make_artifacts(
    runs: Sequence[Run],
    folder: Path,
    document: Document | None = None,
    trace: Path | None = None,
) -> tuple[list[Path], list[str]]:
    """Write what can be written of a run's page and trace.

    Parameters
    ----------
    folder : Path
        Where to.
    document : Document, optional
        From `report_document` of these runs, where that was done before.
    trace : Path, optional
        What `write_trace` made of these runs and nothing else, where that was done before.

    Returns
    -------
    files : list of Path
    left_out : list of str
        What is not among them and why, a line each.

    Raises
    ------
    StorageError
        If a file cannot be written.
    """
    from iobench.report.renderers.html_page import HtmlRenderer
    from iobench.report.report_document import report_document
    from iobench.report.timeline.trace_file import pack_trace, write_trace
    from iobench.report.written import write_whole

    files, left_out = [], []
    page = folder / "iobench.html"
    try:
        write_whole(page, HtmlRenderer().render(document or report_document(runs)))
        files.append(page)
    except MissingExtraError as error:
        left_out.append(f"the page is not among the artifacts: {error}")
    packed = folder / "iobench-trace.json.gz"
    if trace is None:
        write_trace(packed, runs)
    else:
        pack_trace(trace, packed)
    files.append(packed)
    return files, left_out
