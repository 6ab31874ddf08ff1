"""``iobench info``: what a dataset, a store format, a store or a run is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.cli.documents import print_answer

if TYPE_CHECKING:
    from pathlib import Path


def info(
    *, target: str, data_dir: Path | None, files: str | None, options: dict[str, str], json: bool
) -> None:
    """Print what a name, a file or a folder is."""
    from iobench.chunks.zarr_arrays.store import is_zarr
    from iobench.cli.descriptions import (
        describe_dataset,
        describe_files,
        describe_format,
        describe_run,
        describe_store,
    )
    from iobench.cli.info_document import info_title
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import MissingFileError, OptionError
    from iobench.files.urls import URL, as_path
    from iobench.registry import dataset_names, format_names, unknown_name
    from iobench.runs.folders import holds_runs
    from iobench.stores.manifest import MANIFEST_NAME

    path = as_path(target)
    if target in dataset_names():
        facts = describe_dataset(
            target,
            options=options,
            data_dir=data_dir,
            files=files,
            screen=TerminalScreen(),
        )
    elif data_dir or options or files:
        raise OptionError(
            f"--data-dir, --files and --option are for datasets, and {path} is not one; leave them "
            "out"
        )
    elif target in format_names():
        facts = describe_format(target)
    elif (path / MANIFEST_NAME).exists():
        facts = describe_store(path)
    elif not isinstance(path, URL) and holds_runs(path):
        facts = describe_run(path)
    elif path.is_file() or is_zarr(path) or (not isinstance(path, URL) and _has_data(path)):
        facts = describe_files(path)
    elif path.exists():
        raise OptionError(
            f"{path}: is neither a store (it has no {MANIFEST_NAME}) nor a run (no run.json) nor "
            "a Zarr store, and holds no *.nc, *.grib or *.zarr; name a file in it"
        )
    elif isinstance(path, URL):
        raise MissingFileError(f"{path}: no such file, store or folder; check the spelling")
    else:
        raise unknown_name("dataset", target, dataset_names())
    title, known = info_title(facts)
    print_answer(title, *known, figures=facts, json=json)


def _has_data(path: Path) -> bool:
    """Return whether a folder holds data, or a pattern or ``FILE#group`` may name some."""
    from iobench.datasets.user_files import data_files

    return bool(data_files(path)) or (not path.exists() and any(c in str(path) for c in "*?[#"))
