"""What every name that ``iobench list`` prints keeps: suites, coordinates, options, downloads."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
import xarray

from iobench.datasets.climetlab_files import cached_files, silent_climetlab
from iobench.datasets.contract import Synthesizer
from iobench.datasets.locate import FileLocator, stand_in_folder
from iobench.errors import MissingFileError, OptionError
from iobench.registry import dataset_names, find_dataset
from iobench.testing import DatasetTests, StandInTests

NAMES = dataset_names()
MORE = (
    "maelstrom-yr size=5GB probabilistic_target=true predict_diff=true",
    "maelstrom-ens10 dtype=pl target=z500",
    "maelstrom-weather-pressure-level levels=model",
    "maelstrom-weather-pressure-level levels=surface",
    "maelstrom-weather-pressure-level sample=clustering",
)
"""Options that change what a sample is."""
# Name and option, and the digest of what is decoded of the first and last sample.
STAND_INS = {
    "maelstrom-radiation": "bbe484596515f789",
    "maelstrom-radiation-tf": "b3aa32a7256ca3f2",
    "deepcam": "bd3607833eeb0854",
    "cosmoflow": "84591909f84b32a6",
    "maelstrom-downscaling-tier1": "8f1c7912c0af75e7",
    "maelstrom-weather-pressure-level levels=surface": "c5aab31bb9a62cdb",
    "maelstrom-power": "195ffe0af9f36b07",
    "maelstrom-downscaling-tier2": "74db7a2477851530",
    "maelstrom-weather-pressure-level levels=model": "5594f3984093c569",
    "maelstrom-weather-pressure-level levels=pressure": "3780c60015d8cf24",
    "maelstrom-yr size=5TB": "c509d8792bdda304",
    "maelstrom-yr size=5GB": "8850660dcecad84c",
    "maelstrom-ens10 dtype=sfc": "0f7034a7b3004069",
    "maelstrom-ens10 dtype=pl": "05f316a8b6a3adb9",
}


def made(case):
    name, *options = case.split()
    return find_dataset(name, **dict(each.replace("~", " ").split("=") for each in options))


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("case", [*NAMES, *MORE])
class TestEveryName(DatasetTests):
    @pytest.fixture
    def dataset(self, case):
        return made(case)

    @pytest.fixture
    def files(self, dataset, tiny_root, tmp_path):
        assert isinstance(dataset, Synthesizer)
        return dataset.files(FileLocator(stand_in=tiny_root(dataset), cache_dir=tmp_path))


@pytest.mark.quick_cases(3)
class TestStandIns(StandInTests):
    @pytest.fixture(params=STAND_INS)
    def case(self, request):
        return request.param

    @pytest.fixture
    def dataset(self, case):
        return made(case)

    @pytest.fixture
    def root(self, dataset, tiny_root):
        return tiny_root(dataset)

    @pytest.mark.timeout(120)
    def test_the_seed_alone_decides_the_bytes(self, dataset, root, tmp_path):
        super().test_the_seed_alone_decides_the_bytes(dataset, root, tmp_path)

    def test_what_is_read_of_a_stand_in_of_this_version(self, case, dataset, root, tmp_path):
        locator = FileLocator(stand_in=root, cache_dir=tmp_path)
        index = dataset.samples(dataset.files(locator), locator)
        digest = hashlib.sha256()
        for where in (index.where[0], index.where[len(index) - 1]):
            arrays = dataset.decode(dataset.read(where), where)
            for name in sorted(arrays):
                values = np.ascontiguousarray(arrays[name])
                digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
                digest.update(values.tobytes())
        assert STAND_INS[case] == digest.hexdigest()[:16]


def test_names_of_stand_ins_differ():
    names = [made(case).stand_in_name for case in STAND_INS]
    assert all(a != b for a, b in itertools.combinations(names, 2))


@pytest.mark.quick_cases(2)
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_alone_is_profiled_described_and_planned(name, iobench_here, store_dir):
    tiny = (name, "--tiny", "--store-dir", store_dir)
    words = ("--batches", "2", "--batch-size", "2", "--workers", "0", "--out", "run")
    done = iobench_here("profile", *tiny, *words)
    assert done.returncode == 0, done.stderr
    done = iobench_here("report", "run", "--full")
    assert "Where loading spends its time" in done.stdout
    # Without its files one would be made for the answer, and removed: `test_info_command`.
    folder = stand_in_folder(find_dataset(name), store_dir, tiny=True)
    told = iobench_here("info", name, "--json", "--data-dir", folder)
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    assert answer["title"]
    assert not any("('" in each["text"] for each in answer["options"])
    plan = iobench_here("convert", name, "out", *tiny[1:], "--to", "zarr", "--dry-run")
    assert plan.returncode == 0, plan.stderr


# ---- coordinates: of the others the time, and what they have beside

KEPT = {
    "cosmoflow": set(),
    "deepcam": set(),
    "maelstrom-ens10": {"time", "valid_time", "step", "latitude", "longitude", "crs"},
    "maelstrom-power": {"time", "level", "latitude", "longitude"},
    "maelstrom-radiation": {"lat", "lon"},
    "maelstrom-radiation-tf": set(),
    "maelstrom-yr": {"time", "valid_time", "leadtime", "x", "y", "projection_lcc"},
}  # fmt: skip
LEFT_OUT = {
    "deepcam": {"time"},
    "maelstrom-radiation": {"time"},
    "maelstrom-radiation-tf": {"lat, lon, time"},
    "maelstrom-yr": {"predictor", "static_predictor", "latitude", "longitude"},
}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", NAMES)
def test_every_name_keeps_its_coordinates_or_says_why_not(name, prepared):
    known = prepared(name)[2].meteorology
    found = {each.name for each in known.coordinates}
    assert found == KEPT[name] if name in KEPT else {"time"} < found
    assert known.left_out.keys() == LEFT_OUT.get(name, set())


@pytest.mark.parametrize("patch", ["100", "whole"])
def test_each_patch_of_yr_has_its_own_places(patch, prepared):
    options = {} if patch == "whole" else {"y_range": "28,428", "x_range": "20,320"}
    _, files, index = prepared("maelstrom-yr", patch=patch, dates="2020-09-02", **options)
    known = index.meteorology
    with xarray.open_dataset(files[0], decode_timedelta=False) as file:
        file.load()
    n_y, n_x = (file.sizes["y"], file.sizes["x"]) if patch == "whole" else (100, 100)
    for number in (0, 1, len(index) // 2, len(index) - 1):
        where = index.where[number]
        y, x = slice(where.y, where.y + n_y), slice(where.x, where.x + n_x)
        expected = {"y": file.y[y].values, "x": file.x[x].values}
        for name in ("latitude", "longitude"):
            if patch == "whole":
                expected[name] = file[name][y, x].values
            else:
                assert "bytes for the parts of all samples" in known.left_out[name]
        for name, values in expected.items():
            each = known[name]
            own = each.values[number] if each.of_samples else each.values
            np.testing.assert_array_equal(own, values)
        start = file.time.values.astype("M8[s]").astype(np.int64)
        assert known["time"].values[number] == start
        assert known["valid_time"].values[number] == start + file.leadtime.values[where.lead]


def test_the_point_of_a_turbine_is_where_its_weather_is_taken(prepared):
    _, files, index = prepared("maelstrom-power", model_level="131")
    known = index.meteorology
    place = {name: known[name].values for name in ("latitude", "longitude", "level")}
    with xarray.open_dataset(files[0]) as file:
        assert int(file.sel(place).level) == 131
        assert index.provenance["grid_point"] == [
            file[name].values.tolist().index(place[name]) for name in ("latitude", "longitude")
        ]
        assert index.coordinate[0] == str(file.time.values[0])[:13]
    units = known["time"].attributes["units"]
    times = xarray.decode_cf(xarray.Dataset({"t": ("t", known["time"].values, {"units": units})}))
    spelled = np.datetime_as_string(times.t.values, unit="h")
    np.testing.assert_array_equal(spelled, index.coordinate)


# ---- options

WRONG = """
    yr dates=2020-05-22 | 20200522': expected one of 20200301, 20200302 to 20220228
    yr patch=99999999999 | expected a whole number from 1, or whole
    yr patch=0 | expected a whole number from 1, or whole
    yr x_range=1 y_range=1,2 | expected start,stop
    radiation dates=20200101 | knows date, timestep
    radiation subset=tier-2 | tier-1, 2020
    radiation subset=tier-1 patch=0 | subset cannot be combined with patch
    radiation hr_units=K~s-1 | knows date, timestep
    radiation-tf subset=tier-1 filenum=1 | cannot be combined with filenum
    ens10 date=0102 | date '0102': expected one of 0101, 0104 to 1231
    ens10 date=2018-01-01 | expected one of 0101
    ens10 dtype=pl target=none | of dtype pl, expected z500 or t850
    ens10 target=z500 | of dtype sfc, expected era5 or none
    downscaling tier=3 | expected 1 or 2
    downscaling tier=1 variant=x | tier1 knows months$
    downscaling tier=1 months=2020-10-01 | one of 2016-04, 2016-05 to 2020-09
    downscaling months=2018-1 | months '2018-1': expected one of 1995-01
    weather-pressure-level date=20190101 | date '20190101': expected one of 2017-01-01
    weather-pressure-level levels=model sample=clustering | of pressure levels
    weather-pressure-level crop=none | knows date, levels, sample
"""


@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_wrong_options_are_refused(case):
    spelled, _, message = case.strip().partition(" | ")
    with pytest.raises(OptionError, match=message):
        made(f"maelstrom-{spelled}")


# ---- what ``--download`` asks the real plugins for

CHOSEN = (
    "maelstrom-yr size=5GB dates=2020-03-01,2020-03-03",
    "maelstrom-radiation",
    "maelstrom-radiation-tf subset=tier-1-val",
    "maelstrom-ens10 date=0101,20180104 target=none",
    "maelstrom-downscaling-tier1 months=2020-05,2020-07",
    "maelstrom-power date=2019-01-01 wind_turbine_id=2",
    "maelstrom-radiation dataset=mcica date=20190131 patch=1,3",
    "maelstrom-radiation-tf dataset=spartacus timestep=0,125 filenum=1",
    "maelstrom-ens10 date=0104 dtype=pl target=t850",
    "maelstrom-downscaling months=2016-04-01",
    "maelstrom-downscaling-tier2 months=2018-01",
    "maelstrom-weather-pressure-level levels=model date=2019-01-01,2019-01-03",
    "maelstrom-weather-pressure-level date=2019-01-01",
)
MODULES = {
    "maelstrom-yr": "climetlab_maelstrom_yr.yr",
    "maelstrom-radiation": "climetlab_maelstrom_radiation.radiation",
    "maelstrom-radiation-tf": "climetlab_maelstrom_radiation.radiation_tf",
    "maelstrom-ens10": "climetlab_maelstrom_ens10.ens10",
    "maelstrom-downscaling-tier1": "climetlab_maelstrom_downscaling.downscaling_tier1",
    "maelstrom-downscaling-tier2": "climetlab_maelstrom_downscaling.downscaling_tier2",
}
POWER = "climetlab_maelstrom_power_production.dataset"
SMALL_BY_DEFAULT = {"maelstrom-radiation", "maelstrom-radiation-tf"}


class Asked:
    """A locator that finds nothing and keeps what it was asked for."""

    stand_in = False

    def __init__(self):
        self.urls = []

    def find(self, urls):
        self.urls += urls
        return [None for _ in urls]

    def searched(self):
        return "nowhere"


class Answer:
    """What the plugin gets instead of the host's: a few bytes."""

    headers: ClassVar = {}
    status_code = 200

    def raise_for_status(self):
        pass

    def iter_content(self, chunk_size):
        yield b"some bytes"


@pytest.mark.quick_cases(6)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", CHOSEN)
def test_the_real_plugin_asks_for_what_the_dataset_looks_for(case, tmp_path):
    fetched, asked = made(case).downloads(), Asked()
    with pytest.raises(MissingFileError):
        made(case).files(asked)
    assert {*asked.urls} == {url for call in fetched for url in call.urls}
    pytest.importorskip(
        MODULES.get(fetched[0].name, POWER), reason="the real plugin is not installed"
    )
    import climetlab

    for number, call in enumerate(fetched):
        folder = tmp_path / str(number)
        with (
            silent_climetlab("the test", offline=False),
            # Where the disk is fuller than this it removes what it has just fetched: also as the
            # setting ends, so that the folder has to change back before.
            climetlab.settings.temporary("maximum-cache-disk-usage", "100%"),
            climetlab.settings.temporary("cache-directory", str(folder)),
            mock.patch("multiurl.http.robust", return_value=lambda *_, **__: Answer()),
        ):
            climetlab.load_dataset(call.name, **call.arguments)
        assert set(cached_files(folder)) == set(call.urls)
        assert call.terms_of_use


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("maelstrom-")])
def test_every_plugin_has_downloads_and_what_is_large_needs_a_choice(name):
    assert name in {case.split()[0] for case in CHOSEN}
    if name not in SMALL_BY_DEFAULT:
        with pytest.raises(OptionError, match=r"say what to fetch, e\.g\. --option \w+="):
            made(name).downloads()
