import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parent / "support"))

from iobench.datasets.contract import make_sample, no_progress
from iobench.datasets.files import user_files

YR = "maelstrom-yr/air_temperature/5GB/"


@dataclass
class LocalFiles:
    cache_dir: Path
    stand_in: bool = False
    progress: object = field(default=no_progress)

    def find(self, urls):
        return [None for _ in urls]

    def searched(self):
        return "nowhere"


@pytest.fixture
def yr_files(real):
    return [real(f"{YR}20200301T03Z.nc"), real(f"{YR}20200302T09Z.nc")]


@pytest.fixture
def locator(tmp_path):
    return LocalFiles(cache_dir=tmp_path / "cache")


@pytest.fixture
def open_user_files(locator):
    """Make a dataset of files; return its index and a function that makes sample i."""

    def open_files(*paths, **options):
        dataset = user_files(paths, **options)
        index = dataset.samples(dataset.files(locator), locator)

        def sample(i):
            made = make_sample(dataset, index.where[i])
            index.spec.check(made, where=str(i))
            return made

        return SimpleNamespace(dataset=dataset, index=index, sample=sample)

    return open_files
