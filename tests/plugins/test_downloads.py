"""What ``--download`` asks the real plugins for is what the datasets then look for."""

from typing import ClassVar
from unittest import mock

import pytest

from iobench.datasets.climetlab_files import (
    Downloads,
    cached_files,
    quiet_climetlab,
)
from iobench.errors import MissingFileError, OptionError
from iobench.registry import dataset_names, find_dataset

MAELSTROM = [name for name in dataset_names() if name.startswith("maelstrom-")]
CHOSEN = [
    ("maelstrom-yr", {"size": "5GB", "dates": "2020-03-01,2020-03-03"}),
    ("maelstrom-radiation", {}),
    ("maelstrom-radiation", {"dataset": "mcica", "date": "20190131", "patch": "1,3"}),
    ("maelstrom-radiation-tf", {"subset": "tier-1-val"}),
    ("maelstrom-radiation-tf", {"dataset": "spartacus", "timestep": "0,125", "filenum": "1"}),
    ("maelstrom-radiation-tf", {"norm": "true", "input_fields": "sca_inputs,hl_inputs"}),
    ("maelstrom-ens10", {"date": "0101,20180104", "target": "none"}),
    ("maelstrom-ens10", {"date": "0104", "dtype": "pl", "target": "t850"}),
    ("maelstrom-downscaling", {"months": "2016-04-01"}),
    ("maelstrom-downscaling-tier1", {"dataset": "validation"}),
    ("maelstrom-downscaling-tier2", {"dataset": "testing"}),
    ("maelstrom-power", {"date": "2019-01-01", "wind_turbine_id": "2"}),
    ("maelstrom-weather-pressure-level", {"levels": "model", "date": "2019-01-01,2019-01-03"}),
    ("maelstrom-weather-pressure-level", {"date": "2019-01-01"}),
]
MODULES = {
    "maelstrom-yr": "climetlab_maelstrom_yr.yr",
    "maelstrom-radiation": "climetlab_maelstrom_radiation.radiation",
    "maelstrom-radiation-tf": "climetlab_maelstrom_radiation.radiation_tf",
    "maelstrom-ens10": "climetlab_maelstrom_ens10.ens10",
    "maelstrom-downscaling-tier1": "climetlab_maelstrom_downscaling.downscaling_tier1",
    "maelstrom-downscaling-tier2": "climetlab_maelstrom_downscaling.downscaling_tier2",
}
POWER = "climetlab_maelstrom_power_production.dataset"


class Asked:
    """A locator that finds nothing and keeps what it was asked for."""

    stand_in = False

    def __init__(self, tmp_path):
        self.cache_dir = tmp_path
        self.urls = []

    def find(self, urls):
        self.urls += urls
        return [None for _ in urls]

    def searched(self):
        return "nowhere"


def downloads_of(name, options) -> Downloads:
    dataset = find_dataset(name, **options)
    return dataset.downloads()


def ids(case):
    return "-".join([case[0], *case[1].values()]) if isinstance(case, tuple) else None


@pytest.mark.parametrize("case", CHOSEN, ids=ids)
def test_it_fetches_what_the_dataset_looks_for(case, tmp_path):
    name, options = case
    fetched = downloads_of(name, options)
    locator = Asked(tmp_path)
    with pytest.raises(MissingFileError):
        find_dataset(name, **options).files(locator)
    looked_for = set(locator.urls)
    calls = {url for call in fetched.calls for url in call.urls}
    assert looked_for <= calls | set(fetched.others)
    assert looked_for & calls


class Answer:
    """What the plugin gets instead of the host's: a few bytes."""

    headers: ClassVar = {}
    status_code = 200

    def raise_for_status(self):
        pass

    def iter_content(self, chunk_size):
        yield b"some bytes"


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("case", CHOSEN, ids=ids)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_real_plugin_asks_for_exactly_these_urls(case, tmp_path):
    fetched = downloads_of(*case)
    module = MODULES.get(fetched.calls[0].name, POWER)
    pytest.importorskip(module, reason="the real plugin is not installed")
    import climetlab

    for number, call in enumerate(fetched.calls):
        folder = tmp_path / str(number)
        with (
            quiet_climetlab(),
            # Where the disk is fuller than this it removes what it has just fetched: also as the
            # setting ends, so that the folder has to change back before.
            climetlab.settings.temporary("maximum-cache-disk-usage", "100%"),
            climetlab.settings.temporary("cache-directory", str(folder)),
            mock.patch("multiurl.http.robust", return_value=lambda *_, **__: Answer()),
        ):
            if call.arguments.get("norm"):  # it opens the norms at once
                with pytest.raises(NotImplementedError, match="EmptySource"):
                    climetlab.load_dataset(call.name, **call.arguments)
            else:
                climetlab.load_dataset(call.name, **call.arguments)
        assert set(cached_files(folder)) == set(call.urls)
        assert call.terms_of_use


SMALL_BY_DEFAULT = ("maelstrom-radiation", "maelstrom-radiation-tf")


@pytest.mark.parametrize("name", sorted(set(MAELSTROM) - set(SMALL_BY_DEFAULT)))
def test_what_is_large_is_not_fetched_without_a_choice(name):
    with pytest.raises(OptionError, match=r"say what to fetch, e\.g\. --option \w+="):
        downloads_of(name, {})


def test_the_target_of_ens10_is_to_be_there_before():
    assert downloads_of("maelstrom-ens10", {"date": "0101"}).others
    assert downloads_of("maelstrom-ens10", {"date": "0101", "target": "none"}).others == ()


def test_every_maelstrom_dataset_has_its_downloads():
    assert {name for name, _ in CHOSEN} == set(MAELSTROM)
