"""Tiny stand-ins of datasets, opened where they are or copied as a user has them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from iobench.datasets.locate import FileLocator
from iobench.registry import find_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iobench.datasets.contract import Dataset

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="session")
def prepared(
    tiny_root: Callable[[Dataset], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Return a function that gives a dataset, its files and index, of its tiny stand-in."""
    cache = tmp_path_factory.mktemp("prepared")

    def opened(name: str, **options: str) -> Any:
        dataset: Any = find_dataset(name, **options)
        locator = FileLocator(stand_in=tiny_root(dataset), cache_dir=cache / name)
        files = dataset.files(locator)
        return dataset, files, dataset.samples(files, locator)

    return opened


@pytest.fixture
def own_files(prepared: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the files of a tiny stand-in into one folder."""

    def copied(name: str, **options: str) -> Path:
        folder = tmp_path / "own"
        for file in prepared(name, **options)[1]:
            part = folder / file.parent.name if file.parent.name in SPLITS else folder
            part.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, part / file.name)
        return folder

    return copied


@pytest.fixture
def sampled() -> Callable[..., Any]:
    """Return a function that gives a dataset, its files and index, of a folder of files."""

    def opened(folder: Path, name: str, **options: str) -> Any:
        dataset: Any = find_dataset(name, **options)
        locator = FileLocator(data_dir=folder, cache_dir=folder / "cache")
        files = dataset.files(locator)
        return dataset, files, dataset.samples(files, locator)

    return opened
