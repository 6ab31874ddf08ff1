"""A sample of ens5mini equals a computation from xarray's arrays of the same files."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest

from iobench.datasets.contract import Synthesizer, make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.testing import DatasetTests
from iobench_maelstrom.ens10.ens5mini import Ens5mini
from iobench_maelstrom.ens10.schema import LEVELS, TOY_CHANNELS, parse_months

DIMS = ("number", "time", "step", "isobaricInhPa", "latitude", "longitude")
NAMES = ["z", "t", "q", "w", "d", "u", "v"]


@pytest.fixture(scope="session")
def root(tiny_root):
    return tiny_root(Ens5mini())


@pytest.fixture
def files(root, tmp_path):
    return Ens5mini().files(FileLocator(stand_in=root, cache_dir=tmp_path))


@pytest.fixture
def copied(files, tmp_path):
    """The stand-in's files as a user's own, in one flat folder."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return folder


def sampled(folder, **options):
    dataset = Ens5mini(**options)
    locator = FileLocator(data_dir=folder, cache_dir=folder / "cache")
    return dataset, dataset.samples(dataset.files(locator), locator)


def opened(files):
    import xarray

    return [xarray.open_dataset(file).load() for file in files]


def rewritten(folder, **encoding):
    """Store each file's variables again, in another way."""
    import xarray

    for file in folder.glob("*.nc"):
        with xarray.open_dataset(file, decode_times=False) as data:
            data.load()
        data.to_netcdf(file, encoding=dict.fromkeys(NAMES, encoding))


class TestEns5mini(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return Ens5mini()

    @pytest.fixture
    def files(self, root, tmp_path):
        return Ens5mini().files(FileLocator(stand_in=root, cache_dir=tmp_path))


def test_it_writes_stand_ins():
    assert isinstance(Ens5mini(), Synthesizer)


def test_the_stand_in_is_of_the_published_schema(files):
    assert [file.name for file in files] == ["ens5mini.01.nc", "ens5mini.07.nc"]
    for data in opened(files):
        assert list(data.data_vars) == NAMES
        assert {(data[name].dims, data[name].dtype.str) for name in NAMES} == {(DIMS, "<f4")}
        assert data.isobaricInhPa.values.tolist() == list(LEVELS)
        assert {data[name].encoding["contiguous"] for name in NAMES} == {True}
        assert not np.isnan(data.z.values).any()


def test_a_stand_in_of_full_size_has_the_real_files_grid_and_count():
    plan = Ens5mini().stand_in(scale=1, tiny=False, seed=0)
    assert len(plan.keys) == 12
    assert len(plan.dates) * len(plan.years) == 1050
    assert round(Ens5mini().file_nbytes({"date": "01"}, plan) / 2**20) == 846


def test_the_default_stand_in_keeps_a_samples_bytes():
    plan = Ens5mini().stand_in(scale=None, tiny=False, seed=0)
    assert (plan.n_members, plan.shape) == (5, (40, 80))
    assert 200e6 < Ens5mini().synthesis_nbytes(scale=None, tiny=False) < 1e9


def test_samples_are_in_order_of_time(copied):
    _, index = sampled(copied)
    assert index.coordinate == sorted(index.coordinate)
    assert index.coordinate[:3] == ["1998-01-01", "1998-01-04", "1998-07-02"]
    assert len(index) == 8


def test_values_equal_a_computation_from_xarrays_arrays(files, copied):
    dataset, index = sampled(copied)
    channels = []
    for name in NAMES:
        fields = np.concatenate([data[name].values[:, :, 1] for data in opened(files)], axis=1)
        fields = fields[:, [0, 1, 4, 5, 2, 3, 6, 7]].astype(np.float64)
        channels.append(np.stack([fields.mean(axis=0), fields.std(axis=0)], axis=2))
    inputs = np.concatenate(channels, axis=1).reshape(8, len(TOY_CHANNELS), 10, 20)
    expected = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 0.1)
    for number in range(8):
        found = make_sample(dataset, index.where[number])["inputs"]
        np.testing.assert_allclose(found, expected[number], rtol=2e-4, atol=5e-4)


@pytest.mark.parametrize("encoding", [{}, {"zlib": True, "chunksizes": (3, 1, 2, 11, 10, 20)}])
def test_decoded_values_do_not_depend_on_the_storage(files, copied, encoding):
    rewritten(copied, **encoding)
    dataset, index = sampled(copied)
    arrays = dataset.decode(dataset.read(index.where[2]), index.where[2])
    [_, july] = opened(files)
    for name in NAMES:
        np.testing.assert_array_equal(arrays[name], july[name].values[:, 0, 1])


def test_storage_only_the_library_knows_is_read_through_it_and_said_to_be_fused(files, copied):
    rewritten(copied, compression="szip")
    dataset, index = sampled(copied)
    assert (dataset.fused, dataset.thread_safe) == (("read", "decode"), False)
    np.testing.assert_array_equal(
        dataset.read(index.where[2])["t"], opened(files)[1].t.values[:, 0, 1]
    )


def test_only_the_lead_times_bytes_are_read(copied):
    dataset, index = sampled(copied)
    raw = dataset.read(index.where[0])
    assert sum(map(len, raw)) == 7 * 3 * 11 * 10 * 20 * 4


def test_normalisation_is_computed_once_and_again_for_other_files(copied):
    assert "normalisation" in sampled(copied)[1].setup
    assert "normalisation" not in sampled(copied)[1].setup
    assert "normalisation" in sampled(copied, date="01")[1].setup


def test_the_month_counts_alone():
    assert parse_months("07, 20010104") == ("01", "07")
    assert parse_months("0131") == ("01",)


@pytest.mark.parametrize("date", ["13", "1", "2020-01-01", "00", "ab"])
def test_a_wrong_date_lists_the_valid_ones(date):
    with pytest.raises(OptionError, match="one of 01 02 03"):
        Ens5mini(date=date)


@pytest.mark.parametrize("options", [{"months": "01"}, {"dtype": "sfc"}])
def test_wrong_options_name_the_right_ones(options):
    with pytest.raises(OptionError, match=r"knows date, dtype|expected one of pl"):
        Ens5mini(**options)


def test_missing_months_are_listed_by_url(copied):
    with pytest.raises(MissingFileError, match=r"https://.*/ens5mini\.02\.nc not found"):
        sampled(copied, date="01,02")


def test_a_month_the_stand_in_lacks_is_said_before_writing():
    with pytest.raises(OptionError, match="only the date 01 07"):
        Ens5mini(date="03").synthesis_nbytes(scale=None, tiny=True)


def changed(file, change):
    import xarray

    with xarray.open_dataset(file, decode_times=False) as data:
        data.load()
    change(data).to_netcdf(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.drop_vars("w"), "no variable 'w'"),
        (lambda data: data.transpose("time", ...), r"variable 'z' is float32 \(time, number"),
        (lambda data: data.isel(isobaricInhPa=slice(None, None, -1)), "isobaricInhPa is 10 50"),
        (lambda data: data.isel(latitude=slice(5)), "dimension 'latitude' has 5, expected 10"),
        (lambda data: data.isel(step=[0]), "dimension 'step' has 1, expected 2"),
        (lambda data: data.assign_coords(step=data.step.assign_attrs(units="m")), "units 'm'"),
    ],
)
def test_another_schema_is_named(copied, change, message):
    changed(copied / "ens5mini.07.nc", change)
    with pytest.raises(FileFormatError, match=rf"ens5mini\.07\.nc: .*{message}"):
        sampled(copied)


def test_a_forecast_in_two_files_is_an_error(copied):
    shutil.copyfile(copied / "ens5mini.01.nc", copied / "ens5mini.02.nc")
    with pytest.raises(FileFormatError, match="holds 1998-01-01, which is in"):
        sampled(copied)


def test_a_file_cut_short_is_named(copied):
    file = copied / "ens5mini.01.nc"
    with file.open("rb+") as stream:
        stream.truncate(file.stat().st_size // 2)
    with pytest.raises(FileFormatError, match=r"ens5mini\.01\.nc"):
        sampled(copied)


def test_a_file_cut_short_after_indexing_is_named_when_read(copied):
    dataset, index = sampled(copied)
    file = copied / "ens5mini.07.nc"
    with file.open("rb+") as stream:
        stream.truncate(file.stat().st_size // 2)
    from iobench.chunks.decoded_chunks import reopen_files

    reopen_files()
    with pytest.raises(FileFormatError, match=r"ens5mini\.07\.nc: the file ends"):
        make_sample(dataset, index.where[-1])


def test_the_dataset_must_be_prepared_first():
    with pytest.raises(OptionError, match="call samples"):
        Ens5mini().read((0, 0))


def test_a_pickle_is_small(copied):
    dataset, _ = sampled(copied)
    assert len(pickle.dumps(dataset)) < 20_000
