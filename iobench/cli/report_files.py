"""Files that ``iobench report`` writes beside the report it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.cli.written_files import say_written

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.analysis.run import Run

__all__ = [
    "check_libraries",
    "check_trace_options",
    "draw_lanes_file",
    "write_parquet_file",
    "write_trace_file",
]


def check_trace_options(trace: Path | None, torch_traces: Sequence[Path] | None) -> None:
    """Refuse what could not be written before anything is read.

    Raises
    ------
    OptionError
        If the file's name does not tell its sort, or there is none to merge into.
    """
    from iobench.errors import OptionError
    from iobench.report.timeline.trace_file import check_trace_name

    if trace is not None:
        check_trace_name(trace)
    elif torch_traces:
        raise OptionError("--torch-trace: is merged into what --trace writes; expected both")


def check_libraries(html: Path | None, parquet: Path | None) -> None:
    """Refuse files that no library here can make, before anything is read.

    Raises
    ------
    MissingExtraError
        If Jinja2 or pyarrow is not installed.
    """
    if html is not None:
        from iobench.report.renderers.html_page import HtmlRenderer

        HtmlRenderer()
    if parquet is not None:
        from iobench.report.timeline.arrow_table import check_parquet

        check_parquet()


def draw_lanes_file(
    runs: Sequence[Run], path: Path, stretch: tuple[float, float] | None = None
) -> None:
    """Draw the lanes of a run; errors as `iobench.report.timeline.lanes_picture.draw_lanes`.

    Raises
    ------
    OptionError
        If there are several runs, too.
    """
    from iobench.errors import OptionError
    from iobench.report.timeline.lanes_picture import draw_lanes

    if len(runs) > 1:
        names = ", ".join(sorted(str(each.path) for each in runs))
        raise OptionError(f"--lanes: there are several runs; expected one of {names}")
    draw_lanes(runs[0], path, between_s=stretch)


def write_trace_file(runs: Sequence[Run], path: Path, torch_traces: Sequence[Path] = ()) -> None:
    """Write runs as a trace; errors as `iobench.report.timeline.trace_file.write_trace`."""
    from iobench.report.timeline.trace_file import write_trace

    write_trace(path, runs, torch_traces)
    say_written(path, "open it in ui.perfetto.dev or chrome://tracing")


def write_parquet_file(runs: Sequence[Run], path: Path) -> None:
    """Write the spans of runs as a table; errors as `arrow_table.write_parquet`."""
    from iobench.report.timeline.arrow_table import write_parquet

    write_parquet(path, runs)
    say_written(path)
