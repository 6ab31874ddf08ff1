"""What a store says that fewer bits did to its values: known truths, and the same bytes always."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
from converting import convert

from iobench.datasets.contract import SampleIndex
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.manifest import MANIFEST_NAME
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord, zarr_groups

FORK = multiprocessing.get_context("fork")
FORMATS = {"tfrecord": tfrecord.FORMAT, "numpy": numpy_records.FORMAT, "zarr": zarr_groups.FORMAT}
SPEC = SampleSpec(
    (
        Variable("t", (2, 24, 36), "<f4", ("level", "lat", "lon"), "K"),
        Variable("sst", (24, 36), "<f8", ("lat", "lon"), "K"),
        Variable("column", (30,), "<f4", ("half_level",)),
        Variable("class", (24, 36), "<i2", ("lat", "lon")),
    )
)
N = 19

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def values_of(number):
    rng = np.random.default_rng(number)
    sst = rng.normal(290, 3, (24, 36))
    sst[5:9] = np.nan
    return {
        "t": rng.uniform(256, 512, (2, 24, 36)).astype("f4"),
        "sst": sst,
        "column": rng.normal(0, 1, 30).astype("f4"),
        "class": rng.integers(0, 9, (24, 36)).astype("i2"),
    }


class Fields(MadeUpDataset):
    """Samples of which the values are known; one may end the process."""

    def __init__(self, dies_at=-1):
        super().__init__(SPEC)
        self.dies_at = dies_at

    def decode(self, raw, where):
        if where == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return values_of(where)


def run(path, fmt="numpy", *, dies_at=-1, encoding=None, **more):
    dataset = Fields(dies_at)
    index = SampleIndex(SPEC, range(N), {"train": range(9)})
    encoding = encoding or Encoding.parse(dtype="float16")
    more = {"shard_nbytes": 4 * SPEC.nbytes, "workers": 2} | more
    return convert(dataset, index, FORMATS[fmt], path, encoding=encoding, **more)


def test_float16_is_off_by_known_amounts(tmp_path) -> None:
    """Numbers between 256 and 512 are 1 / 4 apart: uniform errors, of deviation 1 / 4 / 12**.5"""
    told = run(tmp_path / "store").manifest.lossy
    assert set(told) == {"t", "sst", "column"}
    t = told["t"]
    assert t["max_absolute_error"] <= 0.125
    assert t["rmse"] == pytest.approx(0.25 / 12**0.5, rel=0.02)
    assert abs(t["bias"]) < 0.002  # of 32832 errors the mean is within 5 times 1 / 4 / 12**.5 / 181


def test_figures_are_those_of_numpy(tmp_path) -> None:
    store = run(tmp_path / "store")
    for name in ("t", "sst", "column"):
        told = store.manifest.lossy[name]
        before = np.stack([values_of(n)[name] for n in range(N)]).astype("f8")
        after = np.stack([store[n][name] for n in range(N)]).astype("f8")
        off = (after - before)[np.isfinite(before)]
        assert told["rmse"] == pytest.approx(np.sqrt((off**2).mean()), rel=5e-5)
        assert told["bias"] == pytest.approx(off.mean(), abs=7e-6 * off.std())
        for when, values in (("before", before), ("after", after)):
            there = values[np.isfinite(values)]
            assert told[when]["std"] == pytest.approx(there.std(), rel=5e-5)
            assert told[when]["mean"] == pytest.approx(there.mean(), abs=7e-6 * there.std())
            assert (told[when]["min"], told[when]["max"]) == (there.min(), there.max())
            assert told[when]["n_missing"] == values.size - there.size
        assert told["max_absolute_error"] == np.abs(off).max()


def test_int16_is_told_of(tmp_path) -> None:
    encoding = Encoding.parse(dtype="t=int16", ranges="t=200:600")
    told = run(tmp_path / "store", encoding=encoding).manifest.lossy
    assert set(told) == {"t"}
    assert told["t"]["rmse"] == pytest.approx(400 / 65534 / 12**0.5, rel=0.02)


def told_by(path):
    return (path / MANIFEST_NAME).read_bytes()


@pytest.mark.thorough
def test_the_manifest_has_the_same_bytes_however_it_was_made(tmp_path) -> None:
    run(tmp_path / "alone", workers=1)
    expected = told_by(tmp_path / "alone")
    for number, nbytes in enumerate((1 << 20, 1 << 30)):
        run(tmp_path / str(number), workers=3, memory_nbytes=nbytes)
        assert told_by(tmp_path / str(number)) == expected
    for number in (5, 13):
        path = tmp_path / f"killed-{number}"
        process = FORK.Process(target=run, args=(path,), kwargs={"dies_at": number, "workers": 1})
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        run(path)
        assert told_by(path) == expected
    both = [
        FORK.Process(target=run, args=(tmp_path / "both",), kwargs={"part": (part, 2)})
        for part in (1, 2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert told_by(tmp_path / "both") == expected


@pytest.mark.parametrize("fmt", FORMATS)
def test_containers_tell_the_same(tmp_path, fmt) -> None:
    told = run(tmp_path / fmt, fmt).manifest
    other = run(tmp_path / "other").manifest
    assert (told.lossy, told.statistics) == (other.lossy, other.statistics)
    assert json.loads(told_by(tmp_path / fmt))["lossy"] == told.lossy
    assert told.statistics["all"]["t"]["std"] == told.lossy["t"]["after"]["std"]
