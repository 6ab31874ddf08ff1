"""What every dataset keeps, of all names and of the options that change what a sample is."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.datasets.contract import Synthesizer
from iobench.datasets.locate import FileLocator
from iobench.registry import dataset_names, find_dataset
from iobench.testing import DatasetTests

REAL = Path(__file__).parents[1] / "data" / "maelstrom-yr"
CASES = [
    *((name, {}) for name in dataset_names() if name != "maelstrom-downscaling"),
    ("maelstrom-yr", {"size": "5GB", "probabilistic_target": "true", "predict_diff": "true"}),
    ("maelstrom-radiation", {"raw_inputs": "true", "patch": "0,10"}),
    ("maelstrom-radiation", {"gather_fluxes": "true", "patch": "4"}),
    ("maelstrom-radiation-tf", {"norm": "true", "netflux": "true"}),
    ("maelstrom-ens10", {"dtype": "pl", "target": "z500"}),
    ("maelstrom-weather-pressure-level", {"levels": "model"}),
    ("maelstrom-weather-pressure-level", {"levels": "surface"}),
    ("maelstrom-weather-pressure-level", {"sample": "clustering"}),
    ("cosmoflow", {"layout": "tfrecord"}),
]


def spelled(case):
    return "-".join([case[0], *case[1].values()])


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("case", CASES, ids=spelled)
class TestEveryName(DatasetTests):
    @pytest.fixture
    def dataset(self, case):
        name, options = case
        return find_dataset(name, **options)

    @pytest.fixture
    def files(self, dataset, tiny_root, tmp_path):
        assert isinstance(dataset, Synthesizer)
        return dataset.files(FileLocator(stand_in=tiny_root(dataset), cache_dir=tmp_path))


class TestRealFiles(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return find_dataset("maelstrom-yr", size="5GB")

    @pytest.fixture
    def files(self, dataset, tmp_path):
        return dataset.files(FileLocator(data_dir=REAL, cache_dir=tmp_path))
