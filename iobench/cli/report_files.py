"""Files that ``iobench report`` writes beside the report it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.cli.written_files import say_written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.storage.traces.contents import StorageTrace

__all__ = ["check_trace_options", "write_parquet_file", "write_trace_file"]


def check_trace_options(trace: Path | None, torch_traces: Sequence[Path] | None) -> None:
    """Refuse what could not be written before anything is read.

    Raises
    ------
    OptionError
        If the file's name does not tell its sort, or there is none to merge into.
    """
    from iobench.errors import OptionError
    from iobench.report.trace_file import check_trace_name

    if trace is not None:
        check_trace_name(trace)
    elif torch_traces:
        raise OptionError("--torch-trace: is merged into what --trace writes; expected both")


def write_trace_file(
    run: Path,
    path: Path,
    traces: Mapping[Path, StorageTrace],
    torch_traces: Sequence[Path] = (),
) -> None:
    """Write a run as a trace; errors as `iobench.report.trace_file.write_trace`."""
    from iobench.profiles import open_profiles
    from iobench.report.trace_file import write_trace

    write_trace(path, open_profiles(run), traces, torch_traces)
    say_written(path, "open it in ui.perfetto.dev or chrome://tracing")


def write_parquet_file(run: Path, path: Path) -> None:
    """Write a run's spans as a table; errors as `iobench.report.arrow_table.write_parquet`."""
    from iobench.profiles import open_profiles
    from iobench.report.arrow_table import write_parquet

    write_parquet(path, open_profiles(run))
    say_written(path)
