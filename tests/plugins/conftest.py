"""One tiny ENS-10 stand-in for all tests of the plugin; read-only."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.registry import find_dataset
from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.yr.dataset import Yr

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from iobench.datasets.contract import Dataset, SampleIndex


@dataclass(frozen=True)
class TinyEns10:
    root: Path
    dataset: Ens10
    files: list[Path]
    locator: FileLocator
    index: SampleIndex

    @property
    def bucket(self) -> Path:
        return self.files[0].parent

    def sample(self, number: int) -> dict[str, np.ndarray]:
        return dict(make_sample(self.dataset, self.index.where[number]))


@pytest.fixture(scope="session")
def tiny(
    tiny_root: Callable[[Dataset], Path], tmp_path_factory: pytest.TempPathFactory
) -> TinyEns10:
    folder = tmp_path_factory.mktemp("ens10")
    dataset = Ens10()
    root = tiny_root(dataset)
    locator = FileLocator(stand_in=root, cache_dir=folder / "cache")
    files = dataset.files(locator)
    return TinyEns10(root, dataset, files, locator, dataset.samples(files, locator))


@pytest.fixture(scope="session")
def decoded(tiny: TinyEns10):
    """What cfgrib makes of the two files: one xarray dataset each."""
    import xarray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cfgrib's and xarray's own
        return [
            xarray.open_dataset(
                file, engine="cfgrib", backend_kwargs={"indexpath": "", "squeeze": False}
            ).load()
            for file in tiny.files[:2]
        ]


@pytest.fixture(scope="session")
def prepared(tiny_root: Callable[[Dataset], Path], tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives a dataset, its files and index, of its tiny stand-in."""
    cache = tmp_path_factory.mktemp("prepared")

    def opened(name: str, **options: str):
        dataset = find_dataset(name, **options)
        locator = FileLocator(stand_in=tiny_root(dataset), cache_dir=cache / name)
        files = dataset.files(locator)
        return dataset, files, dataset.samples(files, locator)

    return opened


@dataclass(frozen=True)
class Tiny:
    """The tiny stand-in of a kind of dataset; read-only."""

    kind: type
    root: Path
    cache: Path

    @property
    def locator(self) -> FileLocator:
        return FileLocator(stand_in=self.root, cache_dir=self.cache)

    def open(self, **options: str):
        dataset = self.kind(**options)
        return dataset, dataset.samples(dataset.files(self.locator), self.locator)


@pytest.fixture(scope="session")
def tiny_of(tiny_root: Callable[[Dataset], Path], tmp_path_factory: pytest.TempPathFactory):
    return lambda kind: Tiny(kind, tiny_root(kind()), tmp_path_factory.mktemp("tiny"))


@dataclass(frozen=True)
class TinyYr:
    root: Path
    files: list[Path]
    locator: FileLocator


def _tiny_yr(tiny_root: Callable[[Dataset], Path], folder: Path, size: str) -> TinyYr:
    dataset = Yr(size=size)
    root = tiny_root(dataset)
    locator = FileLocator(stand_in=root, cache_dir=folder / "cache")
    return TinyYr(root, dataset.files(locator), locator)


@pytest.fixture(scope="session")
def yr_5gb(
    tiny_root: Callable[[Dataset], Path], tmp_path_factory: pytest.TempPathFactory
) -> TinyYr:
    """The tiny stand-in of A1's 5GB files; read-only."""
    return _tiny_yr(tiny_root, tmp_path_factory.mktemp("yr-5gb"), "5GB")


@pytest.fixture(scope="session")
def yr_5tb(
    tiny_root: Callable[[Dataset], Path], tmp_path_factory: pytest.TempPathFactory
) -> TinyYr:
    """The tiny stand-in of A1's 5TB files; read-only."""
    return _tiny_yr(tiny_root, tmp_path_factory.mktemp("yr-5tb"), "5TB")
