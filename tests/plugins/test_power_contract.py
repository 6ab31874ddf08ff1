"""The datasets of application A6 keep what every dataset keeps."""

from __future__ import annotations

import pytest

from iobench.datasets.contract import Synthesizer
from iobench.datasets.locate import FileLocator
from iobench.registry import find_dataset
from iobench.testing import DatasetTests

NAMES = [
    ("maelstrom-power", {}),
    ("maelstrom-power-production", {"wind_turbine_id": "3"}),
    ("maelstrom-constants-a-b", {}),
    ("maelstrom-weather-model-level", {}),
    ("maelstrom-weather-pressure-level", {}),
    ("maelstrom-weather-pressure-level", {"sample": "clustering"}),
    ("maelstrom-weather-surface-level", {}),
]


class TestPower(DatasetTests):
    @pytest.fixture(params=NAMES, ids=lambda named: "-".join([named[0], *named[1].values()]))
    def dataset(self, request):
        name, options = request.param
        return find_dataset(name, **options)

    @pytest.fixture
    def files(self, dataset, store_dir, tiny_root):
        return dataset.files(FileLocator(stand_in=tiny_root(dataset), cache_dir=store_dir))

    def test_it_is_a_synthesizer_without_a_published_step(self, dataset):
        assert isinstance(dataset, Synthesizer)
        assert dataset.published is None

    def test_all_steps_are_separate_and_safe_in_threads(self, dataset, index):
        assert (dataset.fused, dataset.thread_safe) == ((), True)

    def test_terms_and_citation_are_told(self, index):
        assert "LICENSE" in index.provenance["terms_of_use"]
        assert "eq. 2.11" in index.provenance["citation"]

    def test_nothing_is_normalised(self, index):
        assert index.provenance["normalisation"] == {}
