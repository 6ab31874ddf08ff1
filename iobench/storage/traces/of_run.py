"""The logs of tracers that belong to a run: those in its directory, and those its user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from iobench.errors import IobenchError, MissingFileError
from iobench.storage.traces.contents import StorageTrace
from iobench.storage.traces.parts import part_of_run

__all__ = ["LOGS_FOLDER", "read_run_traces"]

LOGS_FOLDER: Final = "darshan"
"""Where in a run directory ``--darshan auto`` has the logs put."""


def read_run_traces(
    run: Path, config: Mapping[str, Any], named: Sequence[Path] = ()
) -> StorageTrace | None:
    """Return what tracers saw of a run; None where there are no logs.

    Parameters
    ----------
    run : Path
        Its directory.
    config : mapping
        Its ``run.json``, which may name logs of the user's own.
    named : sequence of Path
        Further logs, or folders of them.

    Returns
    -------
    StorageTrace or None
        With nothing but a note where logs that nobody named now cannot be read.

    Raises
    ------
    MissingFileError
        If a log that was named is not there.
    StorageError, OptionError
        If it cannot be read, or what reads it is not installed.
    """
    for path in named:
        if not _is_there(path):
            raise MissingFileError(
                f"{path}: is not there; name a log of Darshan or DFTracer, or a folder of them"
            )
    told = config.get("darshan")
    told = told if isinstance(told, Mapping) else {}
    kept = _kept(run, told)
    found = [path for path in dict.fromkeys((*kept, run / LOGS_FOLDER)) if _is_there(path)]
    gone = [path for path in kept if path not in found]
    if not named and not found:
        return StorageTrace(notes=_gone(gone)) if gone else None
    from iobench.storage.traces.reading import read_traces

    if named:
        return part_of_run(read_traces([*named, *found]), told)
    try:
        trace = part_of_run(read_traces(found), told)
    except IobenchError as error:
        return StorageTrace(notes=(str(error), *_gone(gone)))
    return replace(trace, notes=(*trace.notes, *_gone(gone)))


def _kept(run: Path, told: Mapping[str, Any]) -> list[Path]:
    """Return the logs that ``run.json`` names, there or not."""
    logs = told.get("logs")
    texts = [logs] if isinstance(logs, str) else logs if isinstance(logs, list) else []
    return [run / text for text in texts if isinstance(text, str)]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a folder that may not be looked into
        return False


def _gone(paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(
        f"{path}: holds the run's logs by its run.json, and is not there; name them: --darshan LOG"
        for path in paths
    )
