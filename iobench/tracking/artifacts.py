"""The page and the trace of a run, as files to be kept beside its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import MissingExtraError

if TYPE_CHECKING:
    from iobench.profiles.contents import Profile
    from iobench.report.run_report import RunReport
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["make_artifacts"]


def make_artifacts(
    profiles: Sequence[Profile],
    folder: Path,
    traces: Mapping[Path, StorageTrace] | None = None,
    reports: Sequence[RunReport] | None = None,
) -> tuple[list[Path], list[str]]:
    """Write what can be written of a run's page and trace.

    Parameters
    ----------
    profiles : sequence of Profile
    folder : Path
        Where to.
    traces : mapping, optional
        What a tracer saw.
    reports : sequence of RunReport, optional
        From `make_reports` of these profiles and traces, where that was done before.

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
    from iobench.report.timeline.trace_file import write_trace
    from iobench.report.written import write_whole

    files, left_out = [], []
    page = folder / "iobench.html"
    try:
        text = HtmlRenderer().render(report_document(profiles, traces, reports))
        write_whole(page, text)
        files.append(page)
    except MissingExtraError as error:
        left_out.append(f"the page is not among the artifacts: {error}")
    trace = folder / "iobench-trace.json.gz"
    write_trace(trace, profiles, traces)
    files.append(trace)
    return files, left_out
