"""The files of a run directory that iobench knows, read once and written again without names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.bundling.digest_copy import rewritten_digests
from iobench.bundling.path_scrubber import is_file_name
from iobench.bundling.span_copy import rewritten_spans, texts_of_spans
from iobench.errors import ProfileError, StorageError
from iobench.recording import span_file as layout
from iobench.recording.folding import fold_name, unpacked_fold
from iobench.recording.machine_counters import MONITOR_FOLDER
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_head
from iobench.storage.run_traces import LOGS_FOLDER

if TYPE_CHECKING:
    from iobench.bundling.scrubbing import Scrubber

KNOWN: Final = {
    "spans": "*.spans",
    "processes": "*.json",
    "digests": "*.bin",
    "energy": "*.jsonl",
    MONITOR_FOLDER: "*.samples",
}
"""Folders of a run directory, and what is in them; nothing else is passed on."""
NO_JSON: Final = b"{"
WHOLE_PATH: Final = re.compile(r"(?:[/\\~]|[A-Za-z]:[/\\]|[A-Za-z][A-Za-z0-9+.-]*://).*", re.DOTALL)


@dataclass(slots=True)
class RunFiles:
    """What was read of a run directory.

    Parameters
    ----------
    config : dict
        Of its ``run.json``.
    files : dict of str to bytes
        By their names below the directory.
    unclosed : list of str
        Span files that their process did not close: killed, or still running.
    unreadable : list of str
        Files that are left out, since nobody can tell what is in them.
    n_unknown : int
        Files that are no part of a run, and left out.
    spool : str
        Where span files may still be that are on another machine; else ``""``.
    has_logs : bool
        Whether a tracer made logs of it, which are left out.
    """

    path: Path
    config: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    unclosed: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    n_unknown: int = 0
    spool: str = ""
    has_logs: bool = False


def read_run_files(path: Path) -> RunFiles:
    """Read what a run directory holds; what is in its spool on this machine is brought first.

    Raises
    ------
    ProfileError
        If it is no run directory, or one of another version.
    StorageError
        If a file cannot be read.
    """
    run = RunDirectory.open(path)
    run.gather()
    traced = run.config.get("darshan")
    found = RunFiles(
        run.path, run.config, has_logs=isinstance(traced, dict) and bool(traced.get("logs"))
    )
    if run.spool is not None and not run.spool.is_dir():
        found.spool = str(run.spool)
    for file in sorted(run.path.rglob("*")):
        inside = file.relative_to(run.path)
        if not file.is_file() or inside.parts == ("run.json",):
            continue
        if len(inside.parts) != 2 or not inside.match(KNOWN.get(inside.parts[0], "no")):
            is_log = inside.parts[0] == LOGS_FOLDER
            found.has_logs |= is_log
            found.n_unknown += not is_log
            continue
        try:
            found.files[inside.as_posix()] = file.read_bytes()
        except OSError as error:
            raise StorageError(
                f"{file}: cannot be read ({error.strerror or error}); expected the run's file"
            ) from error
        if inside.parts[0] == "spans":
            _note_state(file, inside.as_posix(), found)
    return found


def _note_state(file: Path, name: str, found: RunFiles) -> None:
    try:
        if read_head(file).end is None:
            found.unclosed.append(name)
    except ProfileError:
        del found.files[name]
        found.unreadable.append(name)


def texts_of_run(run: RunFiles) -> Iterator[str]:
    """Yield every text of a run, its names of files included."""
    yield str(run.path)
    yield json.dumps(run.config, ensure_ascii=False)
    for name, data in run.files.items():
        yield name
        if name.startswith("spans/"):
            yield from texts_of_spans(data)
        elif not name.startswith("digests/"):
            data = data.partition(b"\n")[0] if name.startswith(MONITOR_FOLDER) else data
            yield data.decode("utf-8", "replace")


def scrubbed_run(run: RunFiles, scrubber: Scrubber) -> dict[str, bytes]:
    """Return the files of a run directory that tells the same, and no names.

    Span files are named by the host's pseudonym and their process, and the others by number.
    """
    config = {**run.config, "spool": None}
    told = config.get("darshan")
    document = scrubber.document(config)
    if isinstance(told, dict) and told.get("logs"):
        document["darshan"] = {**document["darshan"], "logs": None}
    found = {"run.json": _json(document)}
    folds = [
        unpacked_fold(data[: layout.HEADER_NBYTES])
        for name, data in run.files.items()
        if name.startswith("spans/")
    ]
    in_sums = {fold.pending for fold in folds if fold is not None}
    for number, (name, data) in enumerate(sorted(run.files.items())):
        folder, _, rest = name.partition("/")
        match folder:
            case "spans" if fold_name(rest) in in_sums:
                pass  # the process was killed before it could remove it
            case "spans":
                span_name, written = _spans(data, rest, scrubber)
                found[f"spans/{span_name}"] = written
            case "processes":
                found[f"processes/process-{number:05d}.json"] = _whole(data, scrubber)
            case "energy":
                found[f"energy/energy-{number:05d}.jsonl"] = _lines(data, scrubber)
            case folder if folder == MONITOR_FOLDER:
                head, _, readings = data.partition(b"\n")
                told = _lines(head + b"\n", scrubber) + readings
                found[f"{MONITOR_FOLDER}/machine-{number:05d}.samples"] = told
            case _:
                found[f"digests/digests-{number:05d}.bin"] = rewritten_digests(data)
    return found


def _spans(data: bytes, name: str, scrubber: Scrubber) -> tuple[str, bytes]:
    def boot(text: str) -> str:
        return scrubber.names.give("boot", text)

    def text(told: str) -> str:
        if WHOLE_PATH.fullmatch(told) or is_file_name(told):
            return scrubber.place(told)
        return scrubber.text(told)

    _, host, _ = list(texts_of_spans(data))[:3]
    numbers = "-".join(name.removesuffix(".spans").rsplit("-", 2)[1:])
    written = rewritten_spans(data, text, scrubber.paths.host, boot)
    return f"{scrubber.paths.host(host)}-{numbers}.spans", written


def _whole(data: bytes, scrubber: Scrubber) -> bytes:
    """Return a file of JSON, scrubbed; one that is none stays one that is none."""
    try:
        return _json(scrubber.document(json.loads(data)))
    except (ValueError, RecursionError):
        return NO_JSON


def _lines(data: bytes, scrubber: Scrubber) -> bytes:
    """Return lines of JSON, scrubbed; what is none stays so, and what was cut off is gone."""
    lines = []
    for line in data.split(b"\n")[:-1]:
        try:
            told = json.dumps(scrubber.document(json.loads(line)), ensure_ascii=False)
        except (ValueError, RecursionError):
            lines.append(NO_JSON)
            continue
        lines.append(told.encode("utf-8", "backslashreplace"))
    return b"".join(line + b"\n" for line in lines)


def _json(document: Any) -> bytes:
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "backslashreplace")
