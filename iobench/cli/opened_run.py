"""A run directory opened and analysed once, for all that is printed, written and told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.profiles.contents import Profile
    from iobench.report.document import Document
    from iobench.report.run_report import RunReport
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["OpenedRun", "write_text"]


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

    def print(self, renderer: str = "", *, file: TextIO | None = None) -> None:
        """Print the report, by default to stdout.

        Parameters
        ----------
        renderer : str
            As what: ``"markdown"``, ``"json"`` or whatever is installed; by default for a terminal.
        file : text file, optional

        Raises
        ------
        UnknownNameError
            If there is no such renderer.
        """
        import sys

        from iobench.registry import find_renderer
        from iobench.report.renderers.terminal import TerminalRenderer

        found = find_renderer(renderer) if renderer else TerminalRenderer(file)
        write_text(found.render(self.document()), sys.stdout if file is None else file)

    def document(self) -> Document:
        """Return all that is said of the run."""
        from iobench.report.report_document import report_document

        return report_document(self.profiles, self.traces, self.reports)


def write_text(text: str, file: TextIO) -> None:
    """Write text that ends in a line break; what the file's encoding lacks is spelled out."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    whole = text if text.endswith("\n") else f"{text}\n"
    file.write(whole.encode(encoding, "backslashreplace").decode(encoding))


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
