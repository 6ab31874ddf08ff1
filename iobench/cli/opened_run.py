"""A run directory opened and analysed once, for all that is printed, written and told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.profiles.contents import Profile
    from iobench.report.run_report import RunReport
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["OpenedRun"]


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """What every output of ``iobench report`` is made of.

    Parameters
    ----------
    path : Path
    profiles : sequence of Profile
        Of `open_profiles`: of several training processes, each read when it is asked for.
    traces : mapping of Path to StorageTrace
        What a tracer saw, by run directory.
    reports : tuple of RunReport
    """

    path: Path
    profiles: Sequence[Profile]
    traces: Mapping[Path, StorageTrace]
    reports: tuple[RunReport, ...]

    @classmethod
    def of(cls, path: Path, darshan: Sequence[Path] = ()) -> OpenedRun:
        """Open a run directory, or one that holds a run per format.

        Parameters
        ----------
        path : Path
        darshan : sequence of Path
            Logs of a tracer beside those in the run directory.

        Raises
        ------
        ProfileError
            If it is none, or cannot be analysed.
        StorageError, OptionError
            If a log that was named cannot be read, or what reads it is not installed.
        """
        from iobench.profiles.reading import open_profiles
        from iobench.report.run_report import make_reports

        profiles, traces = open_profiles(path), _traces(path, darshan)
        return cls(path, profiles, traces, make_reports(profiles, traces))

    def print(
        self, *, json: bool = False, markdown: bool = False, file: TextIO | None = None
    ) -> None:
        """Print the report, by default to stdout.

        Parameters
        ----------
        json, markdown : bool
            Whether as JSON, or as GitHub's Markdown.
        file : text file, optional
        """
        from iobench.report.text_report import render_markdown, render_terminal

        if json:
            typer.echo(self.as_json(), file=file)
            return
        render = render_markdown if markdown else render_terminal
        render(self.profiles, traces=self.traces, reports=self.reports, file=file)

    def as_json(self) -> str:
        """Return the report as text of JSON."""
        import json

        from iobench.report.json_report import reports_to_json

        return json.dumps(reports_to_json(self.reports), indent=1, allow_nan=False)


def _traces(run: Path, named: Sequence[Path]) -> dict[Path, StorageTrace]:
    """Return what a tracer saw, by run directory: of logs named, and of those a run has itself."""
    from iobench.profiles.folders import run_paths
    from iobench.recording.run_directory import RunDirectory
    from iobench.storage.traces.of_run import read_run_traces

    found = {}
    for path in run_paths(run):
        directory = RunDirectory.open(path)
        trace = read_run_traces(directory.path, directory.config, named)
        if trace is not None:
            found[directory.path] = trace
    return found
