"""``earthkit:SOURCE``: what earthkit-data's ``from_source`` gives, as samples."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.objects.source import object_dataset
from iobench.errors import MissingFileError, OptionError
from tests.support.http_files import serve

DATA = Path(__file__).parents[2] / "data"
GRIB = DATA / "era5/era5-levels-members.grib"
NETCDF = DATA / "maelstrom-yr/air_temperature/5GB/20200301T03Z.nc"


@pytest.fixture
def earthkit():
    return pytest.importorskip("earthkit.data", reason="earthkit-data is not in the test extra")


def samples(dataset, locator):
    index = dataset.samples(dataset.files(locator), locator)
    sent = pickle.loads(pickle.dumps(dataset))  # as to a process
    return index, lambda number: make_sample(sent, index.where[number])


def test_fields_of_a_file_are_samples(earthkit, locator):
    index, sample = samples(object_dataset(f"earthkit:file:{GRIB}"), locator)
    fields = earthkit.from_source("file", str(GRIB)).to_fieldlist()
    assert len(index) == len(fields) == 160
    assert index.provenance["earthkit-data"]
    for number in (0, 77, 159):
        np.testing.assert_array_equal(sample(number)["field"], fields[number].to_numpy())


@pytest.mark.parametrize(
    ("path", "dim", "variable"),
    [(GRIB, "forecast_reference_time", "t"), (NETCDF, "leadtime", "target_mean")],
    ids=["grib", "netcdf"],
)
def test_with_a_sample_dimension_it_is_an_xarray_dataset(earthkit, locator, path, dim, variable):
    made = object_dataset("earthkit:file", options={"path": str(path)}, sample_dim=dim)
    index, sample = samples(made, locator)
    whole = earthkit.from_source("file", str(path)).to_xarray()
    assert len(index) == whole.sizes[dim]
    for number in (0, len(index) - 1):
        expected = whole[variable].isel({dim: number}).values
        np.testing.assert_array_equal(sample(number)[variable], expected)


def test_a_url(earthkit, locator):
    with serve(GRIB.parent, "let-me-in") as server:
        url = f"http://127.0.0.1:{server.server_port}/{GRIB.name}?key=let-me-in"
        dataset = object_dataset(f"earthkit:url:{url}")
        index, sample = samples(dataset, locator)
        assert len(index) == 160
        assert "let-me-in" not in f"{dataset.name} {index.provenance}"
        assert sample(3)["field"].shape == (61, 120)


def test_the_command(earthkit, iobench_here):
    done = iobench_here(
        "profile", f"earthkit:file:{GRIB}", "--batches", "3", "--batch-size", "4", "--workers", "1",
        "--compute", "none",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 batches" in " ".join(done.stdout.split())


def test_what_earthkit_refuses_is_said_in_one_line(earthkit, locator):
    for target, options, said in (
        ("earthkit:no-such-source", {}, "from_source raised"),
        ("earthkit:file", {}, "from_source raised"),
        (f"earthkit:file:{__file__}", {}, "from_source raised"),
    ):
        with pytest.raises(OptionError) as told:
            object_dataset(target, options=options).files(locator)
        assert said in str(told.value)
        assert "\n" not in str(told.value)


def test_what_is_not_there(locator, monkeypatch, tmp_path):
    with pytest.raises(MissingFileError, match=r"none\.grib: no such file"):
        object_dataset("earthkit:file:none.grib").files(locator)
    for target in ("earthkit:", "earthkit:file:"):
        with pytest.raises(OptionError, match="name a source of earthkit-data"):
            object_dataset(target)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    for name in ("ECMWF_API_RC_FILE", "ECMWF_API_KEY", "CDSAPI_RC", "CDSAPI_KEY"):
        monkeypatch.delenv(name, raising=False)
    for source, file in (("mars", "ecmwfapirc"), ("cds", "cdsapirc"), ("ads", "adsapirc")):
        with pytest.raises(OptionError, match=f"needs credentials, which are not in ~/.{file}"):
            object_dataset(f"earthkit:{source}").files(locator)
