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
    "maelstrom-yr size=5GB": "3945e57cc368663c",
    "maelstrom-yr size=5TB": "1e0e675a48da4ebd",
    "maelstrom-radiation": "c40ccd6082c41bdb",
    "maelstrom-radiation-tf": "693282105bc7df3d",
    "maelstrom-ens10 dtype=sfc": "66af3071b36149d6",
    "maelstrom-ens10 dtype=pl": "8e5fceddd926f1ba",
    "maelstrom-ens5mini": "ddb4d2234642003c",
    "maelstrom-downscaling-tier1": "93e4bc98a353a0c4",
    "maelstrom-downscaling-tier2": "1c931cc398e18b9d",
    "maelstrom-power": "73f5bd71285c28c3",
    "maelstrom-weather-pressure-level levels=surface": "5bbb20e56b220402",
    "maelstrom-weather-pressure-level levels=pressure": "3ba6ad03408b92fa",
    "maelstrom-weather-pressure-level levels=model": "eb1720c93c659b1f",
    "deepcam": "c26ddc91b69f22e0",
    "cosmoflow layout=tfrecord-gzip": "",
    "cosmoflow layout=hdf5": "",
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
