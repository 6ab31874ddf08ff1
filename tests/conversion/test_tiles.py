"""Tiles of samples: nothing lost, everything in its place, whole samples read once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.chunks.boxes import tile_starts
from iobench.conversion.tiles import tiled_samples
from iobench.datasets.contract import GroupedDataset, make_sample
from iobench.errors import OptionError
from iobench.samples import SampleSpec, Variable
from iobench.testing import MadeUpDataset, random_sample

SPEC = SampleSpec(
    (
        Variable("t", (2, 5, 7), "<f4", ("level", "y", "x"), "K"),
        Variable("mask", (7, 5), "|u1", ("x", "y"), role="target"),
        Variable("hour", (), "<i4", ()),
    )
)
PATCH = {"y": 3, "x": 3}


class Counting(MadeUpDataset):
    def __init__(self) -> None:
        super().__init__(SPEC)
        self.n_reads = 0

    def read(self, where):
        self.n_reads += 1
        return super().read(where)


@given(st.integers(1, 200), st.integers(1, 200))
def test_tiles_cover_a_dimension(length: int, size: int) -> None:
    if size > length:
        return
    starts = tile_starts(length, size)
    covered = np.concatenate([np.arange(start, start + size) for start in starts])
    assert set(covered) == set(range(length))
    assert starts == sorted(set(starts))
    assert len(starts) == -(-length // size)


@pytest.fixture
def tiled():
    dataset = Counting()
    index = replace(
        dataset.index(4), splits={"train": range(1, 3)}, coordinate=("a", "b", "c", "d")
    )
    return tiled_samples(dataset, index, PATCH)


def test_each_tile_is_cut_from_its_sample(tiled) -> None:
    dataset, index = tiled
    assert len(index) == 4 * 2 * 3
    assert index.spec["t"].shape == (2, 3, 3)
    assert index.spec["mask"].shape == (3, 3)
    for number, where in enumerate(index.where):
        item = random_sample(SPEC, number // 6)
        y, x = dataset.tiles[number % 6]
        sample = make_sample(dataset, where)
        index.spec.check(sample, where="a tile")
        assert sample["t"].tobytes() == item["t"][:, y : y + 3, x : x + 3].tobytes()
        assert sample["mask"].tobytes() == item["mask"][x : x + 3, y : y + 3].tobytes()
        assert sample["hour"] == item["hour"]
        assert sample["t"].flags.c_contiguous


def test_tiles_made_together_are_the_same_and_read_their_sample_once(tiled) -> None:
    dataset, index = tiled
    assert isinstance(dataset, GroupedDataset)
    some = index.where[4:15]
    alone = [make_sample(dataset, where) for where in some]
    counts = dataset.groups(some, memory_nbytes=1 << 20)
    assert counts == [2, 6, 3]
    dataset.inner.n_reads = 0
    start, made = 0, []
    for count in counts:
        group = some[start : start + count]
        raw = dataset.read_group(group)
        made += dataset.decode_group(raw, group, lambda jobs: [job() for job in jobs])
        start += count
    assert dataset.inner.n_reads == 3
    for arrays, sample, where in zip(made, alone, some, strict=True):
        again = dataset.preprocess(arrays, where)
        assert {k: v.tobytes() for k, v in again.items()} == {
            k: v.tobytes() for k, v in sample.items()
        }


def test_splits_and_names_follow_the_samples(tiled) -> None:
    dataset, index = tiled
    assert list(index.splits["train"]) == list(range(6, 18))
    assert index.coordinate[7] == "b y=0:3 x=3:6"
    assert index.provenance["tiles"]["starts"][5] == [2, 4]
    assert dataset.overlaps == [
        "--patch y=3 does not divide y (5): the last tile overlaps the one before by 1",
        "--patch x=3 does not divide x (7): the last tile overlaps the one before by 2",
    ]


@pytest.mark.parametrize(("patch", "words"), [({"z": 3}, "no such"), ({"x": 8}, "longer than")])
def test_a_patch_that_cannot_be_cut_lists_what_can(patch, words: str) -> None:
    dataset = MadeUpDataset(SPEC)
    with pytest.raises(OptionError, match=words) as caught:
        tiled_samples(dataset, dataset.index(2), patch)
    assert "level (2), y (5), x (7)" in str(caught.value)
