"""Published figures of the applications: tables of five figures in their order."""

from __future__ import annotations

import pytest

from iobench.registry import dataset_names, find_dataset


@pytest.mark.parametrize("name", dataset_names())
def test_tables_of_five_figures_in_order(name: str) -> None:
    published = find_dataset(name).published
    for table in published.tables.values() if published else ():
        assert set(table) <= {"epoch", "batch", "forward", "backward", "I/O"}
        for low, mean, median, high, stdev in table.values():
            assert 0 < low <= min(mean, median) <= max(mean, median) <= high
            assert 0 <= stdev <= high - low
        if "batch" in table:
            assert table["epoch"][1] > table["batch"][3]  # an epoch holds its longest batch
