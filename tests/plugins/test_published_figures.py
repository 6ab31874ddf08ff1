"""What MAELSTROM published of its applications: figures that can be."""

from __future__ import annotations

import pytest

from iobench.registry import find_dataset


@pytest.mark.parametrize("application", ["ens10", "yr", "radiation", "downscaling"])
def test_tables_of_five_figures_in_order(application: str) -> None:
    published = find_dataset(f"maelstrom-{application}").published
    assert published is not None
    assert published.tables
    for source, table in published.tables.items():
        assert source.startswith("D2.3")
        assert set(table) <= {"epoch", "batch", "forward", "backward", "I/O"}
        assert {"epoch", "batch"} <= set(table)
        for low, mean, median, high, stdev in table.values():
            assert 0 < low <= min(mean, median) <= max(mean, median) <= high
            assert 0 <= stdev <= high - low
        assert table["epoch"][1] > table["batch"][3]  # an epoch holds its longest batch
