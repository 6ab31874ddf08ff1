"""``iobench report``: the report of a run, again, from its run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from iobench.cli import report_files
from iobench.cli.tracking_options import check_tracking_options, tell_of_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.storage.traces.contents import StorageTrace

__all__ = ["print_report", "report", "write_json"]

SHORTEST_S: Final = 1e-9
LONGEST_S: Final = 1e9
"""What fits a clock that counts nanoseconds."""


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of a report.")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the report as GitHub's Markdown, for an issue."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report as one page with its timeline, for a browser."
        ),
    ] = None,
    darshan: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LOG",
            help="Darshan logs or DFTracer files of the run, or folders of them; may be repeated. "
            "Those that --darshan auto made are found without.",
        ),
    ] = None,
    lanes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw stages and storage on one axis: .svg, .pdf or .png."
        ),
    ] = None,
    between: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="With --lanes: only these seconds of the run."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it as a trace for Perfetto: .json or .json.gz."),
    ] = None,
    torch_trace: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="With --trace: show what torch.profiler wrote of the same run beside it; may be "
            "repeated.",
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write its spans as a table, one row each."),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Tell an MLflow server of the run: figures by epoch, page and trace; 'env' is the "
            "server of MLFLOW_TRACKING_URI.",
        ),
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT",
            help="Tell Weights & Biases of the run, likewise; WANDB_MODE=offline keeps it here.",
        ),
    ] = None,
) -> None:
    """Print what a run measured; works for runs that were killed, too."""
    from iobench.errors import OptionError

    stretch = None if between is None else _stretch(between)
    if stretch is not None and lanes is None:
        raise OptionError("--between: says what --lanes draws; expected both")
    if lanes is not None:
        from iobench.report.lanes_picture import check_picture_name

        check_picture_name(lanes)
    report_files.check_trace_options(trace, torch_trace)
    check_tracking_options(mlflow, wandb)
    if json and markdown:
        raise OptionError("--json and --markdown: both go to stdout; name one of them")
    print_report(run, json=json, darshan=darshan or (), markdown=markdown)
    if html is not None:
        _write_html(run, html, darshan or ())
    if lanes is not None:
        _draw(run, lanes, stretch, darshan or ())
    if trace is not None:
        traces = _traces(run, darshan or ())
        report_files.write_trace_file(run, trace, traces, torch_trace or ())
    if parquet is not None:
        report_files.write_parquet_file(run, parquet)
    if mlflow is not None or wandb is not None:
        tell_of_run(run, mlflow, wandb, _traces(run, darshan or ()))


def _stretch(text: str) -> tuple[float, float]:
    """Return the seconds that ``A:B`` names."""
    from iobench.errors import OptionError

    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low, high = 0.0, 0.0
    if not (0 <= low < high <= LONGEST_S and high - low >= SHORTEST_S):
        raise OptionError(f"--between {text}: expected seconds as FROM:TO, such as 1.5:2")
    return low, high


def print_report(
    run: Path,
    *,
    json: bool,
    file: TextIO | None = None,
    darshan: Sequence[Path] = (),
    markdown: bool = False,
) -> None:
    """Print the report of a run directory, by default to stdout.

    Parameters
    ----------
    run : Path
    json : bool
    file : text file, optional
    darshan : sequence of Path
        Logs of a tracer beside those in the run directory.
    markdown : bool
        Whether as GitHub's Markdown.

    Raises
    ------
    ProfileError
        If it is none.
    StorageError, OptionError
        If a log that was named cannot be read, or what reads it is not installed.
    """
    from iobench.profiles import open_profiles
    from iobench.report import render_markdown, render_terminal

    if json:
        typer.echo(_as_json(run, darshan), file=file)
        return
    render = render_markdown if markdown else render_terminal
    render(open_profiles(run), traces=_traces(run, darshan), file=file)


def write_json(run: Path, path: Path) -> None:
    """Write the result of a run directory to a file.

    Raises
    ------
    ProfileError
        If it is none.
    StorageError
        If the file cannot be written.
    """
    from iobench.report.written import write_whole

    write_whole(path, f"{_as_json(run)}\n")


def _as_json(run: Path, darshan: Sequence[Path] = ()) -> str:
    import json

    from iobench.profiles import open_profiles
    from iobench.report import to_json

    document = to_json(open_profiles(run), _traces(run, darshan))
    return json.dumps(document, indent=1, allow_nan=False)


def _traces(run: Path, named: Sequence[Path]) -> dict[Path, StorageTrace]:
    """Return what a tracer saw, by run directory: of logs named, and of those a run has itself."""
    from iobench.profiles import run_paths
    from iobench.recording import RunDirectory
    from iobench.storage.traces.of_run import read_run_traces

    found = {}
    for path in run_paths(run):
        directory = RunDirectory.open(path)
        trace = read_run_traces(directory.path, directory.config, named)
        if trace is not None:
            found[directory.path] = trace
    return found


def _write_html(run: Path, path: Path, darshan: Sequence[Path]) -> None:
    from iobench.cli.written_files import say_written
    from iobench.profiles import open_profiles
    from iobench.report.webpage import write_html

    write_html(path, open_profiles(run), _traces(run, darshan))
    say_written(path, "open it in a browser")


def _draw(
    run: Path, path: Path, stretch: tuple[float, float] | None, darshan: Sequence[Path]
) -> None:
    from iobench.errors import OptionError
    from iobench.profiles import open_profile, run_paths
    from iobench.report.lanes_picture import draw_lanes

    runs = run_paths(run)
    if len(runs) > 1:
        names = ", ".join(str(each) for each in runs)
        raise OptionError(f"--lanes: {run} holds several runs; expected one of {names}")
    profile = open_profile(runs[0])
    draw_lanes(profile, path, trace=_traces(run, darshan).get(profile.path), between_s=stretch)
