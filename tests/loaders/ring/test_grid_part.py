"""Parts of a grid together are the grid, and no more than the part is read where that can be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from number_stores import write_numbers
from tiny_pipeline import tiny_pipeline

import iobench
from iobench.errors import OptionError
from iobench.loaders.ring.grid_part import GridPartSource, part_of_grid
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.store_source import StoreSource


def batches(source: Any, size: int = 7) -> list[dict[str, Any]]:
    loader = RingLoader(source, BatchOrder(len(source), size, shuffle=True, seed=1), threads=2)
    found = [{name: array.copy() for name, array in batch.items()} for batch in loader]
    loader.close()
    return found


@pytest.mark.parametrize("fmt", ["numpy", "zarr", "tfrecord"])
@pytest.mark.parametrize(("dim", "axis", "cut"), [(None, 1, {"x", "half"}), ("x", 2, {"x"})])
def test_parts_together_are_the_whole(
    tmp_path: Path, fmt: str, dim: str | None, axis: int, cut: set[str]
) -> None:
    store = write_numbers(tmp_path / "store", fmt=fmt)
    whole = batches(StoreSource(store))
    sources = [part_of_grid(StoreSource(store), (k, 3), dim=dim) for k in range(3)]
    reads_less = fmt != "tfrecord" and dim is None  # tags have to be looked at; x is no range
    assert all(isinstance(one, StoreSource) == reads_less for one in sources)
    if reads_less:
        lengths = [int(one.store.table.length[0].sum()) for one in sources]  # type: ignore[union-attr, attr-defined]
        rest = 16 + 8 + 1
        assert sum(lengths) == store.spec.nbytes + 2 * rest
    parts = [batches(one) for one in sources]
    for number, batch in enumerate(whole):
        for name, array in batch.items():
            found = [part[number][name] for part in parts]
            if name in cut:
                assert np.array_equal(np.concatenate(found, axis=axis), array)
            else:
                assert all(np.array_equal(one, array) for one in found)


def test_parts_of_a_dataset_are_cut() -> None:
    items = PipelineSource(tiny_pipeline(12))
    source = part_of_grid(items, (1, 2))
    assert isinstance(source, GridPartSource)
    assert source.spec["field"].shape == (2, 4)  # of three rows the second part has two
    for part, whole in zip(batches(source), batches(items), strict=True):
        assert np.array_equal(part["field"], whole["field"][:, 1:])
        assert np.array_equal(part["level"], whole["level"])


def test_the_loader_takes_it(tmp_path: Path) -> None:
    write_numbers(tmp_path / "store")
    with_all = next(iter(iobench.loader(tmp_path / "store", 4)))
    loader = iobench.loader(tmp_path / "store", 4, grid_part=(0, 2), verify=True)
    batch = next(iter(loader))
    assert np.array_equal(batch["x"], with_all["x"][:, :3])
    assert batch["y"].tolist() == with_all["y"].tolist()
    loader.close()
    with pytest.raises(OptionError, match="grid_dim='y' goes with grid_part"):
        iobench.loader(tmp_path / "store", 4, grid_dim="y")


@pytest.mark.parametrize(
    ("part", "dim", "message"),
    [
        ((2, 2), None, r"grid_part=\(2, 2\): expected"),
        ((0, 4), None, "half has 3 along y, fewer than parts"),
        ((0, 2), "level", "no variable has the dimension level; grid_dim names one of x, y, z"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    tmp_path: Path, part: tuple[int, int], dim: str | None, message: str
) -> None:
    store = write_numbers(tmp_path / "store")
    with pytest.raises(OptionError, match=message):
        part_of_grid(StoreSource(store), part, dim=dim)
