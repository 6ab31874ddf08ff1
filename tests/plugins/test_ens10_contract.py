"""ENS-10 keeps what every dataset keeps."""

from __future__ import annotations

import pytest

from iobench.testing import DatasetTests
from iobench_maelstrom.ens10.dataset import Ens10


class TestEns10(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return Ens10()

    @pytest.fixture
    def files(self, tiny):
        return tiny.files
