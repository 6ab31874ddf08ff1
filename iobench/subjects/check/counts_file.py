"""The file of expected counts: a few hundred bytes of JSON for each run, to be committed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.json_files import parse_json, read_small_file
from iobench.subjects.check.count_differences import BOUNDS, ExpectedCounts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["read_counts", "write_counts"]

VERSION: Final = 1
ABOUT: Final = "what a run does, exactly; made by iobench check --update"


def read_counts(path: Path) -> dict[str, ExpectedCounts]:
    """Return what is expected of each run, by its name.

    Raises
    ------
    MissingFileError
        If there is no such file.
    FileFormatError
        If it is no file of counts, or one of another version.
    """
    try:
        data = read_small_file(path)
    except FileNotFoundError:
        raise MissingFileError(
            f"{path}: is not there; make it from a run that is right, with --update"
        ) from None
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error}); expected a JSON file") from error
    try:
        document = parse_json(data)
        if document["iobench_counts"] != VERSION:
            raise FileFormatError(
                f"{path}: counts of version {document['iobench_counts']}, expected {VERSION}; "
                "make it again with --update"
            )
        return {str(name): _expected(each) for name, each in document["runs"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"{path}: holds no counts of iobench ({error}); make it again with --update"
        ) from error


def write_counts(path: Path, runs: Mapping[str, ExpectedCounts]) -> None:
    """Write what is expected of each run; the file is whole at every instant.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    document = {
        "iobench_counts": VERSION,
        "about": ABOUT,
        "runs": {
            name: {"exact": dict(each.exact), "at_most": dict(each.at_most)}
            for name, each in runs.items()
        },
    }
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}); name another file"
        ) from error


def _expected(document: Mapping[str, Any]) -> ExpectedCounts:
    exact, at_most = dict(document["exact"]), dict(document["at_most"])
    if all(value is None for value in exact.values()):
        raise ValueError("nothing is expected")
    if unheard := at_most.keys() - {*BOUNDS}:
        raise ValueError(f"no bound: {unheard}")
    for value in exact.values():
        if isinstance(value, bool) or not isinstance(value, (int, str, type(None))):
            raise ValueError(f"no count: {value!r}")
    for value in at_most.values():
        if isinstance(value, bool) or not isinstance(value, (int, type(None))):
            raise ValueError(f"no bound: {value!r}")
    return ExpectedCounts(exact, at_most)
