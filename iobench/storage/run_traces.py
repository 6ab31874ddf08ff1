"""Darshan's logs that belong to a run."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.errors import IobenchError, MissingExtraError, MissingFileError, StorageError
from iobench.storage.darshan_files import is_log_name
from iobench.storage.storage_trace import StorageTrace

if TYPE_CHECKING:
    from iobench.storage.storage_trace import ProcessTrace


LOGS_FOLDER: Final = "darshan"
"""Where in a run directory ``--darshan auto`` has the logs put."""


def read_run_traces(
    run: Path, config: Mapping[str, Any], named: Sequence[Path] = ()
) -> StorageTrace | None:
    """Return what Darshan saw of a run; None where there are no logs.

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
                f"{path}: no such file or folder; name a log of Darshan, or a folder of them"
            )
    told = config.get("darshan")
    told = told if isinstance(told, Mapping) else {}
    kept = _kept(run, told)
    found = [path for path in dict.fromkeys((*kept, run / LOGS_FOLDER)) if _is_there(path)]
    gone = [path for path in kept if path not in found]
    if not named and not found:
        return StorageTrace(notes=_gone(gone)) if gone else None
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
        f"{path}: should hold the run's logs according to its run.json, but does not exist; name "
        "them with --darshan LOG"
        for path in paths
    )


def part_of_run(trace: StorageTrace, told: Mapping[str, Any]) -> StorageTrace:
    """Return what is of the run whose ``run.json`` tells this of Darshan.

    A profile of several formats has one log of its main process: files of the others are left
    out.
    """
    folders = told.get("folders")
    if not isinstance(folders, Mapping):
        return trace
    own, others = (
        [PurePath(text) for text in folders.get(name, ()) if isinstance(text, str)]
        for name in ("own", "others")
    )
    return replace(trace, processes=tuple(_without(each, own, others) for each in trace.processes))


def _without(
    process: ProcessTrace, own: Sequence[PurePath], others: Sequence[PurePath]
) -> ProcessTrace:
    """Return a process without the files of other runs: those below one of their folders.

    The folder nearest to a file decides.
    """
    keep = np.array([_is_kept(PurePath(name), own, others) for name in process.files], dtype=bool)
    if keep.all():
        return process
    number = np.cumsum(keep, dtype=np.int32) - 1

    def kept(table: Any) -> Any:
        rows = table[keep[table["file"]]].copy()
        rows["file"] = number[rows["file"]]
        return rows

    return replace(
        process,
        files=tuple(name for name, is_kept in zip(process.files, keep, strict=True) if is_kept),
        segments=kept(process.segments),
        counters=kept(process.counters),
    )


def _is_kept(file: PurePath, own: Sequence[PurePath], others: Sequence[PurePath]) -> bool:
    def depth(folders: Sequence[PurePath]) -> int:
        return max((len(each.parts) for each in folders if file.is_relative_to(each)), default=0)

    return depth(own) >= depth(others)


def read_traces(paths: Sequence[Path]) -> StorageTrace:
    """Read Darshan's logs of a run.

    Parameters
    ----------
    paths : sequence of Path
        Files, whatever they are called; or folders, of which files with Darshan's suffix are read,
        those in folders within as well.

    Returns
    -------
    StorageTrace
        What could not be read, and why, is in ``refused``, a line each; also that PyDarshan is
        not installed.
    """
    logs: list[Path] = []
    refused: list[str] = []
    read: set[Path] = set()
    for path in paths:
        found = _files_in(path)
        if not found:
            refused.append(f"{path}: no log of Darshan in this folder")
        for each in found:
            # A run's own logs may be named as well.
            place = Path(os.path.realpath(each))
            if place in read:
                continue
            read.add(place)
            try:
                if not stat.S_ISREG(each.stat().st_mode):  # a pipe would be waited for
                    refused.append(f"{each}: is no regular file; expected a log")
                    continue
            except OSError as error:
                refused.append(f"{each}: cannot be read: {error.strerror or error}")
                continue
            logs.append(each)
    if not logs:
        return StorageTrace(refused=tuple(refused))
    # What runs the reader is loaded where there are logs to read.
    from iobench.storage.darshan_reader import read_darshan_logs

    try:
        trace = read_darshan_logs(logs)
    except (MissingExtraError, StorageError) as error:
        trace = StorageTrace(refused=(f"{len(logs)} Darshan logs are not read: {error}",))
    return replace(trace, refused=(*refused, *trace.refused))


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.rglob("*") if is_log_name(each.name) and not each.is_dir())
