"""Logs of tracers that belong to a run: found, and passed on only where that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from iobench.errors import StorageError
from iobench.storage.traces.of_run import LOGS_FOLDER

__all__ = ["find_logs", "read_logs"]


def find_logs(runs: Iterable[tuple[Path, Mapping[str, Any]]]) -> list[Path]:
    """Return the logs in runs' directories, and those that their ``run.json`` name, each once.

    Parameters
    ----------
    runs : iterable of (Path, mapping)
        Run directories, with what their ``run.json`` says.
    """
    files: dict[Path, None] = {}
    for run, config in runs:
        told = config.get("darshan")
        logs = told.get("logs") if isinstance(told, Mapping) else None
        named = [logs] if isinstance(logs, str) else logs if isinstance(logs, list) else []
        for place in [*(run / text for text in named if isinstance(text, str)), run / LOGS_FOLDER]:
            try:
                found = sorted(place.rglob("*")) if place.is_dir() else [place]
                files |= dict.fromkeys(file.resolve() for file in found if file.is_file())
            except OSError:  # in a folder that may not be looked into, as reports have it
                continue
    return list(files)


def read_logs(files: Iterable[Path]) -> dict[str, bytes]:
    """Return logs as they are; their own names, which hold the user's, are numbers here.

    Raises
    ------
    StorageError
        If one cannot be read.
    """
    found = {}
    for number, file in enumerate(files):
        suffixes = "".join(file.suffixes[-2:])
        try:
            found[f"{LOGS_FOLDER}/log-{number:04d}{suffixes}"] = file.read_bytes()
        except OSError as error:
            raise StorageError(
                f"{file}: cannot be read ({error.strerror or error}); expected the run's log"
            ) from error
    return found
