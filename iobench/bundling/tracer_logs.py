"""Logs of tracers that belong to a run: found, and passed on only where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from iobench.errors import StorageError
from iobench.storage.traces.of_run import LOGS_FOLDER

__all__ = ["read_logs"]


def read_logs(run: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the logs in a run's directory, and those that its ``run.json`` names, as they are.

    Their own names, which hold the user's, are numbers here.

    Raises
    ------
    StorageError
        If one cannot be read.
    """
    told = config.get("darshan")
    logs = told.get("logs") if isinstance(told, Mapping) else None
    named = [logs] if isinstance(logs, str) else logs if isinstance(logs, list) else []
    places = [run / text for text in named if isinstance(text, str)]
    for place in dict.fromkeys([*(place.resolve() for place in places), run / LOGS_FOLDER]):
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        for number, file in enumerate(file for file in found if file.is_file()):
            suffixes = "".join(file.suffixes[-2:])
            try:
                yield f"{LOGS_FOLDER}/log-{number:04d}{suffixes}", file.read_bytes()
            except OSError as error:
                raise StorageError(
                    f"{file}: cannot be read ({error.strerror or error}); expected the run's log"
                ) from error
