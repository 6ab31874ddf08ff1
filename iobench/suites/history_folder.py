"""A folder of finished suites: plain files of results, and a table of all of them beside.

Each suite is a folder, ``<when it started>-<recipe>``, with its recipe and its result files as the
suite wrote them. These files are what counts. ``history.parquet`` has a row for each figure of each
run, for pandas, DuckDB and the like; it is made of the files, and again where they are others.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections import defaultdict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import MissingExtraError, ProfileError
from iobench.files.atomic import TEMPORARY_SUFFIX, new_file, storage_errors
from iobench.frozen import frozen
from iobench.subjects.history.suite_facts import SkippedFile, SuiteResults
from iobench.suites.results import find_results, read_result
from iobench.suites.suite_folder import RECIPE_FILE, read_folder_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iobench.suites.results import Result

TABLE: Final = "history.parquet"
STATE: Final = b"iobench.history"
VERSION: Final = 1
APPENDED: Final = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{8}")


@frozen
class HistoryFolder:
    """What lies in a folder of suites.

    Parameters
    ----------
    state : str
        Another one where a file is another one.
    """

    path: Path
    suites: tuple[SuiteResults, ...]
    skipped: tuple[SkippedFile, ...]
    state: str

    @property
    def is_history(self) -> bool:
        """Whether suites were appended here, and a table belongs beside them."""
        names = (each.name for each in self.suites)
        return (self.path / TABLE).exists() or any(map(APPENDED.fullmatch, names))


def read_history(path: Path, *, needed: bool = True) -> HistoryFolder:
    """Read all results below a folder, suite by suite; those that cannot be read are skipped.

    A suite is the folder with its recipe. Where none lies there, a folder whose results are of one
    configuration is a cell of the suite above it, and one with several is a suite itself.

    Parameters
    ----------
    needed : bool
        Whether it is an error that there is none.

    Raises
    ------
    ProfileError
        If there is no such folder, or no result in it and one is needed.
    """
    if not path.is_dir():
        raise ProfileError(f"{path}: is no folder; expected one of 'iobench suite --history'")
    folders: dict[Path, list[Result]] = defaultdict(list)
    skipped = []
    state = sha256(f"{VERSION}".encode())
    for file in find_results(path):
        if any(part.startswith(".") for part in file.relative_to(path).parts):
            continue  # a suite that is being appended, or was when that was killed
        try:
            folders[file.parent].append(read_result(file))
            told = file.stat()
            name = file.relative_to(path).as_posix()
            state.update(f"{name}\0{told.st_size}\0{told.st_mtime_ns}\0".encode(errors="replace"))
        except (OSError, ProfileError) as error:
            why = str(error).removeprefix(f"{file}: ")
            skipped.append(SkippedFile(file.relative_to(path).as_posix(), why))
    if needed and not folders and not skipped:
        raise ProfileError(
            f"{path}: no result of a suite in it, however deep; expected a folder of "
            "'iobench suite --out' or '--history'"
        )
    suites: dict[Path, list[Result]] = defaultdict(list)
    for folder, found in folders.items():
        suites[_suite_of(folder, path, found)] += found
    made = []
    for folder, found in suites.items():
        name, recipe = _name(folder, path), None
        if (folder / RECIPE_FILE).exists():
            try:
                recipe = read_folder_recipe(folder)
            except ProfileError as error:
                skipped.append(SkippedFile(f"{name}/{RECIPE_FILE}", str(error)))
        drop, metrics = (recipe.drop, recipe.metrics) if recipe is not None else (0, ())
        made.append(SuiteResults(name, tuple(found), drop, metrics))
    return HistoryFolder(path, tuple(made), tuple(skipped), state.hexdigest())


def _suite_of(folder: Path, within: Path, found: Sequence[Result]) -> Path:
    above = [folder, *folder.parents]
    for each in above[: above.index(within) + 1]:
        if (each / RECIPE_FILE).exists():
            return each
    cells = {tuple(sorted((each.options or each.cell).items())) for each in found}
    return folder.parent if len(cells) == 1 and folder != within else folder


def _name(folder: Path, within: Path) -> str:
    return folder.relative_to(within).as_posix() if folder != within else within.resolve().name


def append_to_history(suite: Path, history: Path) -> Path:
    """Copy the results of a finished suite into a history, and return their folder there.

    Nothing is there twice: a suite that went on since it was appended takes its own place.

    Parameters
    ----------
    suite : Path
        The folder of its runs.
    history : Path
        Made if it is not there.

    Raises
    ------
    ProfileError
        If it has no result, or one that cannot be read.
    StorageError
        If the history cannot be written.
    """
    files = list(find_results(suite)) if suite.is_dir() else []
    found = [read_result(file) for file in files]
    if not found:
        raise ProfileError(f"{suite}: no result of a suite in it; expected a folder of its runs")
    first = min(found, key=lambda each: each.started)
    # The first run tells it from others of the recipe: of another host at the same time, as well.
    told = json.dumps([first.started, first.recipe_digest, str(first.machine.get("host"))])
    name = "-".join(
        (
            re.sub(r"[^0-9T]", "", first.started[:19]).replace("T", "-"),
            re.sub(r"[^A-Za-z0-9_.+]+", "-", first.suite)[:60],
            sha256(told.encode()).hexdigest()[:8],
        )
    )
    with storage_errors(history):
        history.mkdir(parents=True, exist_ok=True)
        target = history / name
        part = history / f".{name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        recipe = [suite / RECIPE_FILE] if (suite / RECIPE_FILE).exists() else []
        for file in (*recipe, *files):
            copied = part / file.relative_to(suite)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied)
        if target.is_dir():
            before = part.with_suffix(f".before{TEMPORARY_SUFFIX}")
            target.replace(before)
            part.replace(target)
            shutil.rmtree(before, ignore_errors=True)
        else:
            part.replace(target)
    with suppress(MissingExtraError):  # whoever looks at the history is told
        write_table(read_history(history))
    return target


def write_table(history: HistoryFolder) -> bool:
    """Write ``history.parquet``, unless it is of these results already; return whether it was.

    Raises
    ------
    MissingExtraError
        If pyarrow is not installed.
    StorageError
        If it cannot be written.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{TABLE} needs pyarrow, which is not installed; pip install 'iobench[parquet]'"
        ) from None
    path = history.path / TABLE
    state = history.state.encode()
    with suppress(OSError, pa.ArrowInvalid):
        if (parquet.read_schema(path).metadata or {}).get(STATE) == state:
            return False
    texts = pa.map_(pa.string(), pa.string())
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("folder", "suite", "recipe_digest", "started")),
            ("round", pa.int64()),
            ("status", pa.string()),
            ("reason", pa.string()),
            ("metric", pa.string()),
            ("value", pa.float64()),
            *((name, pa.string()) for name in ("dataset", "format", "framework", "host")),
            *((name, texts) for name in ("cell", "options", "machine", "versions")),
            ("samples_digest", pa.string()),
        ],
        metadata={STATE: state},
    )
    table = pa.Table.from_pylist(list(_rows(history.suites)), schema=schema)
    file = new_file(path)
    try:
        sink = pa.BufferOutputStream()
        parquet.write_table(table, sink, compression="zstd")
        file.write(sink.getvalue())
    except BaseException:
        file.abort()
        raise
    file.commit()
    return True


def _rows(suites: Sequence[SuiteResults]) -> Iterable[dict[str, Any]]:
    """Yield a row for each figure, and one for each run that has none."""
    for suite in sorted(suites, key=lambda each: each.name):
        for result in suite.results:
            told = {
                "folder": suite.name,
                "suite": result.suite,
                "recipe_digest": result.recipe_digest,
                "started": result.started,
                "round": result.round,
                "status": result.status,
                "reason": result.reason,
                **{
                    name: result.options.get(name, result.cell.get(name))
                    for name in ("dataset", "format", "framework")
                },
                "host": _text(result.machine.get("host")),
                "cell": sorted(result.cell.items()),
                "options": sorted(result.options.items()),
                "machine": [(k, _text(v)) for k, v in sorted(result.machine.items())],
                "versions": sorted(result.versions.items()),
                "samples_digest": result.samples_digest,
            }
            if not result.figures:
                yield {**told, "metric": None, "value": None}
            for metric, value in sorted(result.figures.items()):
                yield {**told, "metric": metric, "value": value}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
