"""What one run of a suite measured, in a small file beside it that never changes afterwards.

``NAME.result.json`` lies beside the run directory, and holds all that later questions need: the
run directory may be gone by then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from iobench.errors import ProfileError
from iobench.files.atomic import write_atomically
from iobench.json_files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULT_SUFFIX: Final = ".result.json"
RESULT_KIND: Final = "iobench suite result"
RESULT_VERSION: Final = 1
Status = Literal["measured", "failed", "not available"]
MEASURED: Final = "measured"
FAILED: Final = "failed"
NOT_AVAILABLE: Final = "not available"
MAX_NBYTES: Final = 1 << 20


class Result(msgspec.Struct, frozen=True):
    """One run of one cell; what is unknown is missing, or None.

    ``cell`` and ``options`` are texts by option: what varies, and all. ``started`` is of its
    process, in UTC as ISO 8601 has it, ``took_s`` with start and preparations. ``figures`` are in
    the units that their names end in. ``machine`` has ``host``, ``cpu_model``, ``cores``,
    ``memory_bytes``, ``kernel``, ``file_system`` and ``accelerator``; ``versions`` also ``commit``
    of iobench. ``run`` is the run directory beside the file.
    """

    suite: str
    recipe_digest: str
    cell: Mapping[str, str]
    round: int
    status: Status
    started: str
    reason: str | None = None
    figures: Mapping[str, float] = msgspec.field(default_factory=dict)
    machine: Mapping[str, Any] = msgspec.field(default_factory=dict)
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    samples_digest: str | None = None
    stand_in: bool | None = None
    run: str | None = None
    took_s: float = 0.0
    options: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What tells its cell from others."""
        return tuple(sorted(self.cell.items()))

    @property
    def started_ns(self) -> int:
        """When its process started, since 1970; 0 where that cannot be read."""
        try:
            moment = datetime.fromisoformat(self.started)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
            return int(moment.timestamp()) * 10**9
        except (ValueError, OverflowError):
            return 0


class SkippedFile(msgspec.Struct, frozen=True):
    """A file, or folder of them, that is in no figure, and why."""

    file: str
    why: str


class SuiteResults(msgspec.Struct, frozen=True):
    """The results of the suite of a folder, and how many repeats its recipe drops at either end."""

    name: str
    results: tuple[Result, ...]
    drop: int = 0


def write_result(path: Path, result: Result) -> Path:
    """Write a result whole, and return its file.

    ``path`` is the folder of the run directory, or a file whose name ends in `RESULT_SUFFIX`.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    if not path.name.endswith(RESULT_SUFFIX):
        path = path / f"round-{result.round}{RESULT_SUFFIX}"
    head = {"kind": RESULT_KIND, "version": RESULT_VERSION}
    text = json.dumps(head | msgspec.structs.asdict(result), indent=1, sort_keys=True)
    write_atomically(path, f"{text}\n".encode())
    return path


def read_result(path: Path) -> Result:
    """Read one result.

    Raises
    ------
    ProfileError
        If it cannot be read, is damaged or of another version.
    """
    try:
        document = read_json(path, limit=MAX_NBYTES, finite=True)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}; measure its cell again") from error
    except ValueError as error:
        raise ProfileError(f"{path}: is damaged ({error}); remove it to measure again") from error
    if not isinstance(document, dict) or document.get("kind") != RESULT_KIND:
        raise ProfileError(f"{path}: is no result of a suite; remove it, or name another folder")
    if document.get("version") != RESULT_VERSION:
        raise ProfileError(
            f"{path}: is of version {document.get('version')}, expected {RESULT_VERSION}; use the "
            "iobench that wrote it"
        )
    try:
        return msgspec.convert(document, Result)
    except msgspec.ValidationError as error:
        raise ProfileError(f"{path}: is damaged ({error}); remove it to measure again") from error


def find_results(folder: Path) -> Iterator[Path]:
    """Yield the files of results below a folder, by name; run directories are not looked into."""
    for parent, folders, names in os.walk(folder):
        if "run.json" in names:
            folders.clear()
            continue
        folders.sort()
        yield from (Path(parent) / name for name in sorted(names) if name.endswith(RESULT_SUFFIX))


def read_results(folder: Path, skipped: list[SkippedFile] | None = None) -> tuple[Result, ...]:
    """Read all results below a folder, however deep.

    ``skipped`` takes those that cannot be read; without it the first one is refused.

    Raises
    ------
    ProfileError
        If there is no such folder; or if a result cannot be read and there is no ``skipped``.
    """
    if not folder.is_dir():
        raise ProfileError(f"{folder}: is no folder; expected one of 'iobench suite --out'")
    results = []
    for path in find_results(folder):
        try:
            results.append(read_result(path))
        except ProfileError as error:
            if skipped is None:
                raise
            skipped.append(SkippedFile(str(path), str(error).removeprefix(f"{path}: ")))
    return tuple(results)


def measured_runs(folder: Path) -> Iterator[tuple[Path, Result, Path]]:
    """Yield the runs that a folder of results has: file, result and run directory."""
    for path in find_results(folder):
        result = read_result(path)
        if result.run is not None and result.status == MEASURED:
            yield path, result, path.parent / result.run
