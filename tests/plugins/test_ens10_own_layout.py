"""ENS-10 after ``grib_copy``: one file per start date, found with ``--files``, same samples."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.grib_samples import index_grib
from iobench.datasets.locate import FileLocator
from iobench.datasets.patterns import FilePattern
from iobench.errors import MissingFileError, OptionError
from iobench.files.ranges import read_extents
from iobench_maelstrom.ens10.dataset import Ens10


@pytest.fixture
def split(tiny, tmp_path):
    """The stand-in's messages at step 48, as upstream splits them; the target in ``era5/``."""
    index = index_grib(tiny.files[:2], cache_dir=tmp_path / "indexes")
    folder = tmp_path / "own" / "ensemble"
    folder.mkdir(parents=True)
    rows = index.rows(step=48)
    for date in sorted(set(index["dataDate"][rows].tolist())):
        chosen = [row for row in rows.tolist() if index["dataDate"][row] == date]
        messages = read_extents(index.extents(chosen))
        (folder / f"output.sfc.{date}.grib").write_bytes(b"".join(messages))
    (tmp_path / "own" / "era5").mkdir()
    shutil.copyfile(tiny.files[-1], tmp_path / "own" / "era5" / tiny.files[-1].name)
    return tmp_path / "own"


def located(own, pattern="ensemble/output.sfc.{year}{month}{day}.grib"):
    pattern = FilePattern(f"{own}/{pattern}")
    return FileLocator(cache_dir=own.with_name("cache"), data_dir=own, pattern=pattern)


def test_samples_are_the_same(tiny, split):
    dataset = Ens10()
    files = dataset.files(located(split))
    assert len(files) == 5
    index = dataset.samples(files, located(split))
    assert (index.coordinate, index.splits) == (tiny.index.coordinate, tiny.index.splits)
    for number, where in enumerate(index.where):
        ours = make_sample(dataset, where)
        np.testing.assert_array_equal(ours["inputs"], tiny.sample(number)["inputs"])
        np.testing.assert_array_equal(ours["t2m"], tiny.sample(number)["t2m"])


def test_dates_choose_among_them(split):
    files = Ens10(date="0104", target="none").files(located(split))
    assert [file.name for file in files] == ["output.sfc.20150104.grib", "output.sfc.20160104.grib"]


def test_dates_that_are_missing_are_listed_by_url(split):
    with pytest.raises(MissingFileError, match=r"output\.sfc\.20180108 not found in .*--files"):
        Ens10(date="0104,0108").files(located(split))


def test_dates_need_a_pattern_that_tells_them(split):
    with pytest.raises(OptionError, match="does not say which date"):
        Ens10(date="0104").files(located(split, "ensemble/*.grib"))
    assert len(Ens10(target="none").files(located(split, "ensemble/*.grib"))) == 4
