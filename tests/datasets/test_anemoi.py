"""``anemoi:PATH`` on a stand-in: dates, variables, gaps, statistics, what bad stores get."""

import json
import logging

import numpy as np
import pytest

from iobench.datasets.anemoi_store import AnemoiDataset
from iobench.datasets.contract import make_sample
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.testing import DatasetTests

stand_in = pytest.importorskip("anemoi_stand_in", reason="numcodecs is not installed")
CODEC, START, write_anemoi_store = stand_in.CODEC, stand_in.START, stand_in.write_anemoi_store

NAMES = ("10u", "2t", "msl", "lsm")


@pytest.fixture
def path(tmp_path):
    return write_anemoi_store(tmp_path / "an-o8.zarr", missing=(4, 5))


@pytest.fixture
def open_anemoi(locator):
    def open_store(path, **options):
        dataset = AnemoiDataset(path, **options)
        return dataset, dataset.samples(dataset.files(locator), locator)

    return open_store


def stored(path, number):
    content = CODEC.decode((path / "data" / f"{number}.0.0.0").read_bytes())
    return np.frombuffer(content, "<f4").reshape(4, 1, 48)


def edit(file, **changes):
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: each for name, each in content.items() if each is not None}))


def test_a_sample_is_one_date(path, open_anemoi):
    dataset, index = open_anemoi(path)
    assert dataset.name == "anemoi:an-o8.zarr"
    (variable,) = index.spec
    assert (variable.shape, variable.dtype) == ((4, 1, 48), "<f4")
    assert variable.dims == ("channel", "ensemble", "cell")
    assert variable.channels == NAMES
    for number, where in enumerate(index.where):
        sample = make_sample(dataset, where)
        index.spec.check(sample, where=str(number))
        np.testing.assert_array_equal(sample["data"], stored(path, where[1]))
        assert sample["data"].flags.writeable


def test_missing_dates_are_gaps_and_listed(path, open_anemoi):
    _, index = open_anemoi(path)
    assert len(index) == 10
    assert index.provenance["missing_dates"] == ["2020-01-02T00:00:00", "2020-01-02T06:00:00"]
    assert index.coordinate[3:5] == ["2020-01-01T18:00:00", "2020-01-02T12:00:00"]
    assert index.position_units == "seconds"
    assert (np.diff(index.positions) / 3600).tolist() == [6, 6, 6, 18, 6, 6, 6, 6, 6]
    assert index.positions[0] == START.astype(int)
    json.dumps(index.provenance)


@pytest.mark.parametrize(("select", "columns"), [("msl, 10u", [2, 0]), ("lsm,10u", [3, 0])])
def test_variables_are_chosen(path, open_anemoi, select, columns):
    dataset, index = open_anemoi(path, select=select)
    assert index.spec["data"].channels == tuple(NAMES[column] for column in columns)
    sample = make_sample(dataset, index.where[2])
    np.testing.assert_array_equal(sample["data"], stored(path, 2)[columns])


def test_an_ensemble_and_several_dates_in_a_chunk(tmp_path, open_anemoi):
    path = write_anemoi_store(tmp_path / "a.zarr", ensemble=3, n_dates=4)
    dataset, index = open_anemoi(path)
    each = [make_sample(dataset, where)["data"] for where in index.where]
    assert each[0].shape == (4, 3, 48)
    for number in range(4):
        (path / "data" / f"{number}.0.0.0").unlink()
    for number in range(2):
        pair = np.stack(each[2 * number : 2 * number + 2])
        (path / "data" / f"{number}.0.0.0").write_bytes(CODEC.encode(pair))
    edit(path / "data" / ".zarray", chunks=[2, 4, 3, 48])
    dataset, index = open_anemoi(path)
    for number, where in enumerate(index.where):
        np.testing.assert_array_equal(make_sample(dataset, where)["data"], each[number])


def test_a_date_without_its_chunk_is_no_sample_of_nans(path, open_anemoi):
    dataset, _ = open_anemoi(path)
    (path / "data" / "7.0.0.0").unlink()
    with pytest.raises(FileFormatError, match="a chunk of array 'data', date number 7, is not"):
        dataset.read((0, 7))


def test_wrong_options_and_stores_of_another_layout(tmp_path, path, open_anemoi):
    for options, said in (
        ({"frequency": "6h"}, "unknown option frequency: there is select"),
        ({"start": "2020"}, "dates are chosen with --split-by time=FIRST/LAST"),
        ({"select": "2tt"}, "select=2tt: .* has no such variable: it has 10u, 2t"),
    ):
        with pytest.raises(OptionError, match=said):
            open_anemoi(path, **options)
    with pytest.raises(MissingFileError, match=r"gone\.zarr: there is no such folder"):
        open_anemoi(tmp_path / "gone.zarr")
    whole = (path / ".zattrs").read_text()
    for changes, said in (
        ({"layout": "tabular"}, "layout tabular, .*; expected gridded"),
        ({"variables": ["10u"]}, "variables names 1, array 'data' has 4"),
        ({"missing_dates": ["soon"]}, "attribute missing_dates"),
    ):
        edit(path / ".zattrs", **changes)
        with pytest.raises(FileFormatError, match=said):
            open_anemoi(path)
        (path / ".zattrs").write_text(whole)
    (path / "dates" / "0").write_bytes(CODEC.encode(np.zeros(12, "M8[s]")))
    for gone, said in (
        ("", "array 'dates' is missing, not as long as 'data' or unordered"),
        ("dates/.zarray", "array 'dates' is missing"),
        ("data/.zarray", "array 'data': none; expected"),
    ):
        if gone:
            (path / gone).unlink()
        with pytest.raises(FileFormatError, match=said):
            open_anemoi(path)


class TestAnemoiContract(DatasetTests):
    @pytest.fixture
    def files(self, path):
        return [path]

    @pytest.fixture
    def dataset(self, path):
        return AnemoiDataset(path, select="2t,10u")


# ---- anemoi-datasets itself, which pins zarr 2: .ci/run --all makes an environment of its own


@pytest.fixture
def anemoi():
    logging.disable(logging.WARNING)  # it warns of missing dates each time
    yield pytest.importorskip("anemoi.datasets", reason="anemoi-datasets is not installed")
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", [[], NAMES[::-1], ["msl"], ["2t", "10u"]])
def test_samples_are_those_of_its_open_dataset(anemoi, path, open_anemoi, order):
    """Every sample is theirs of that date, and every date of theirs is a sample or missing."""
    dataset, index = open_anemoi(path, select=",".join(order))
    their = anemoi.open_dataset(str(path), **({"select": list(order)} if order else {}))
    there = [number for number in range(len(their)) if number not in their.missing]
    assert list(index.coordinate) == [str(their.dates[number]) for number in there]
    assert index.spec["data"].channels == tuple(their.variables)
    assert index.spec["data"].shape == their.shape[1:]
    for number, where in zip(there, index.where, strict=True):
        found = make_sample(dataset, where)["data"]
        np.testing.assert_array_equal(found, their[number], strict=True)
