"""maelstrom-yr keeps what every dataset keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.datasets.contract import Synthesizer
from iobench.datasets.locate import FileLocator
from iobench.testing import DatasetTests
from iobench_maelstrom.yr.dataset import Yr

REAL = Path(__file__).parents[1] / "data" / "maelstrom-yr"


class TestPatchesOfTraining(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return Yr(size="5TB")

    @pytest.fixture
    def files(self, yr_5tb):
        return yr_5tb.files


class TestCrops(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return Yr(size="5GB", probabilistic_target="true", predict_diff="true")

    @pytest.fixture
    def files(self, yr_5gb):
        return yr_5gb.files


class TestRealFiles(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return Yr(size="5GB")

    @pytest.fixture
    def files(self, dataset, tmp_path):
        return dataset.files(FileLocator(data_dir=REAL, cache_dir=tmp_path))


def test_it_can_make_its_own_stand_in():
    assert isinstance(Yr(), Synthesizer)
