"""``iobench info``: what a dataset, a store format, a store or a run is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from iobench.cli.documents import print_answer

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.report.document import Block, Section

IN_TITLE: Final = {"kind", "name", "title", "path", "command"}


def info(
    *, target: str, data_dir: Path | None, files: str | None, options: dict[str, str], json: bool
) -> None:
    """Print what a name, a file or a folder is."""
    facts = _facts(target, data_dir, files, options)
    print_answer(_title(facts), *_parts(facts), figures=facts, json=json)


def _facts(
    target: str, data_dir: Path | None, files: str | None, options: dict[str, str]
) -> dict[str, Any]:
    from iobench.chunks.zarr_arrays.store import is_zarr
    from iobench.cli import descriptions
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import MissingFileError, OptionError
    from iobench.files.urls import URL, as_path
    from iobench.registry import dataset_names, format_names, unknown_name
    from iobench.runs.folders import holds_runs
    from iobench.stores.manifest import MANIFEST_NAME

    path = as_path(target)
    if target in dataset_names():
        return descriptions.describe_dataset(
            target, options=options, data_dir=data_dir, files=files, screen=TerminalScreen()
        )
    if data_dir or options or files:
        raise OptionError(f"--data-dir, --files, --option: {path} is no dataset; leave them out")
    if target in format_names():
        return descriptions.describe_format(target)
    if (path / MANIFEST_NAME).exists():
        return descriptions.describe_store(path)
    if not isinstance(path, URL) and holds_runs(path):
        return descriptions.describe_run(path)
    if path.is_file() or is_zarr(path) or (not isinstance(path, URL) and _has_data(path)):
        return descriptions.describe_files(path)
    if path.exists():
        raise OptionError(
            f"{path}: has no {MANIFEST_NAME}, no run.json, and no *.nc, *.grib or *.zarr; name a "
            "file in it"
        )
    if isinstance(path, URL):
        raise MissingFileError(f"{path}: no such file, store or folder; check the spelling")
    raise unknown_name("dataset", target, dataset_names())


def _has_data(path: Path) -> bool:
    """Return whether a folder holds data, or a pattern or ``FILE#group`` may name some."""
    from iobench.datasets.user_files import data_files

    return bool(data_files(path)) or (not path.exists() and any(c in str(path) for c in "*?[#"))


def _title(facts: Mapping[str, Any]) -> str:
    """Return one line for what was described."""
    match facts["kind"]:
        case "dataset":
            return f"{facts['name']}: {facts['title']}"
        case "format":
            return f"{facts['name']}: a store format, layout version {facts['version']}"
        case "store":
            return f"{facts['path']}: {facts['format']} store of {facts['dataset'] or 'unknown'}"
        case _:
            return f"{facts['path']}: {facts.get('format', facts['kind'])}"


def _parts(facts: Mapping[str, Any]) -> Iterator[Section | Block]:
    from iobench.cli.fact_rows import fact_table
    from iobench.report.document import Command, Section, sentences

    if facts["kind"] == "format":
        yield from sentences(facts["text"])
        return
    if facts["kind"] == "run":
        for number, run in enumerate(facts["runs"]):
            name = f"as {run.get('format', 'unknown')}"
            yield Section(f"run-{number}", name, (fact_table(dict(sorted(run.items()))),))
        return
    yield fact_table(facts, IN_TITLE)
    if facts.get("command"):
        yield Command(facts["command"], "Profile it with one sample per index")
