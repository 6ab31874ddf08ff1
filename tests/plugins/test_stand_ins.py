"""The stand-ins of all names keep the contract of stand-ins, and their values."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from iobench.datasets.locate import FileLocator
from iobench.registry import find_dataset
from iobench.testing import StandInTests

if TYPE_CHECKING:
    from pathlib import Path

CASES = {
    "maelstrom-yr size=5GB": "8850660dcecad84c",
    "maelstrom-yr size=5TB": "c509d8792bdda304",
    "maelstrom-radiation": "bbe484596515f789",
    "maelstrom-radiation-tf": "b3aa32a7256ca3f2",
    "maelstrom-ens10 dtype=sfc": "0f7034a7b3004069",
    "maelstrom-ens10 dtype=pl": "05f316a8b6a3adb9",
    "maelstrom-downscaling-tier1": "8f1c7912c0af75e7",
    "maelstrom-downscaling-tier2": "74db7a2477851530",
    "maelstrom-power": "195ffe0af9f36b07",
    "maelstrom-weather-pressure-level levels=surface": "c5aab31bb9a62cdb",
    "maelstrom-weather-pressure-level levels=pressure": "3780c60015d8cf24",
    "maelstrom-weather-pressure-level levels=model": "5594f3984093c569",
    "deepcam": "bd3607833eeb0854",
    "cosmoflow layout=tfrecord-gzip": "",
}
"""Name and option, and the digest of what is decoded of the first and last sample.

None of CosmoFlow, whose counts are drawn by functions that machines round in their own ways.
"""


def made(case):
    name, *option = case.split()
    return find_dataset(name, **dict(each.split("=") for each in option))


@pytest.mark.parametrize("case", [case for case, digest in CASES.items() if digest])
def test_what_is_read_of_a_stand_in_of_this_version(case, tiny_root, tmp_path: Path):
    dataset = made(case)
    locator = FileLocator(stand_in=tiny_root(dataset), cache_dir=tmp_path)
    index = dataset.samples(dataset.files(locator), locator)
    digest = hashlib.sha256()
    for where in (index.where[0], index.where[len(index) - 1]):
        arrays = dataset.decode(dataset.read(where), where)
        for name in sorted(arrays):
            values = np.ascontiguousarray(arrays[name])
            assert np.isfinite(values).all()
            digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
            digest.update(values.tobytes())
    assert digest.hexdigest()[:16] == CASES[case]


class TestStandIns(StandInTests):
    @pytest.fixture(params=CASES)
    def case(self, request):
        return request.param

    @pytest.fixture
    def dataset(self, case):
        return made(case)

    @pytest.fixture
    def root(self, dataset, tiny_root):
        return tiny_root(dataset)

    @pytest.mark.quick_cases(3)
    @pytest.mark.timeout(120)
    def test_the_seed_alone_decides_the_bytes(self, dataset, root, tmp_path, seed_matters):
        super().test_the_seed_alone_decides_the_bytes(dataset, root, tmp_path, seed_matters)


def test_names_of_stand_ins_differ():
    names = [made(case).stand_in_name for case in CASES]
    assert all(a != b for a, b in itertools.combinations(names, 2))
