"""The logs of tracers that belong to a run: those in its directory, and those its user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from iobench.errors import IobenchError
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
    StorageError, OptionError
        If a log that was named cannot be read, or what reads it is not installed.
    """
    found = [path for path in _kept(run, config) if path.exists()]
    if not named and not found:
        return None
    from iobench.storage.traces.reading import read_traces

    told = config.get("darshan")
    told = told if isinstance(told, Mapping) else {}
    if named:
        return part_of_run(read_traces([*named, *found]), told)
    try:
        return part_of_run(read_traces(found), told)
    except IobenchError as error:
        return StorageTrace(notes=(str(error),))


def _kept(run: Path, config: Mapping[str, Any]) -> list[Path]:
    told = config.get("darshan")
    logs = told.get("logs") if isinstance(told, Mapping) else None
    texts = [logs] if isinstance(logs, str) else logs if isinstance(logs, list) else []
    paths = [run / text for text in texts if isinstance(text, str)]
    own = run / LOGS_FOLDER
    return [*paths, *(() if own in paths else (own,))]
