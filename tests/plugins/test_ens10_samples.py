"""A sample of ENS-10 is what the D2.3 U-Net read, made from its own messages only."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from iobench.datasets.locate import FileLocator
from iobench.datasets.source_files import index_grib
from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.recording.process_io import read_process_io
from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.ens10.point_statistics import keep_statistics, member_moments


@pytest.fixture
def copied(tiny, tmp_path):
    """The stand-in's files as a user's own, in one flat folder."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for file in tiny.files:
        shutil.copyfile(file, folder / file.name)
    return folder


def located(folder):
    return FileLocator(data_dir=folder, cache_dir=folder / "cache")


def sampled(folder, **options):
    dataset = Ens10(**options)
    locator = located(folder)
    return dataset, dataset.samples(dataset.files(locator), locator)


def test_samples_are_in_order_of_time_and_split_by_year(tiny):
    assert tiny.index.coordinate == ["2015-01-01", "2015-01-04", "2016-01-01", "2016-01-04"]
    assert tiny.index.splits == {"train": [0, 1], "test": [2, 3]}


def test_values_equal_a_computation_from_cfgribs_arrays(tiny, decoded):
    channels = []
    for name in decoded[0].data_vars:
        fields = np.stack(
            [
                data[name].sel(time=start, step=np.timedelta64(48, "h")).values[:, 0]
                for start in map(np.datetime64, tiny.index.coordinate)
                for data in decoded
                if start in data.time.values
            ]
        ).astype(np.float64)
        channels += [fields.mean(axis=1), fields.std(axis=1)]
    inputs = np.stack(channels, axis=1)
    expected = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 0.1)
    for number in range(4):
        np.testing.assert_allclose(
            tiny.sample(number)["inputs"], expected[number], rtol=1e-4, atol=2e-4
        )


def test_member_moments_keep_the_digits_of_large_values():
    random = np.random.default_rng(0)
    fields = (1e5 + random.normal(0, 10, (10, 40000))).astype(np.float32)
    mean, deviation = out = np.empty((2, 40000), dtype=np.float32)
    member_moments(fields, out)
    exact = fields.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(deviation, exact.std(axis=0), rtol=1e-4)


def test_normalisation_is_computed_once(tiny):
    [kept] = tiny.locator.cache_dir.rglob("ens10-normalisation-*")
    before = kept.stat()
    again = Ens10().samples(tiny.files, tiny.locator)
    assert kept.stat().st_mtime_ns == before.st_mtime_ns
    assert again.provenance == tiny.index.provenance


def test_nowhere_to_keep_the_normalisation_is_said(tiny, tmp_path):
    (tmp_path / "file").touch()
    messages = [extents[:-1] for extents in tiny.index.where]
    locator = FileLocator(cache_dir=tmp_path / "file" / "cache")
    with pytest.raises(StorageError, match=r"cannot be kept: .*; give --store-dir"):
        keep_statistics(
            "ens10", tiny.dataset.members_of, messages, [], locator, n_values=11 * 3 * 91 * 180
        )


def test_half_written_normalisation_is_computed_again(copied):
    _, _index = sampled(copied)
    [kept] = copied.parent.rglob("ens10-normalisation-*")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1000])
    sampled(copied)
    assert kept.read_bytes() == whole


def test_read_touches_only_the_samples_bytes(tiny):
    where = tiny.index.where[1]
    tiny.dataset.read(where)  # opens the files
    before = read_process_io()
    idle = read_process_io()[0] - before[0]
    raw = tiny.dataset.read(where)
    touched = read_process_io()[0] - before[0] - 2 * idle
    assert len(where) == 11 * 3 + 1
    assert sum(length for _, _, length in where) == sum(map(len, raw)) == touched


# What bad input gets.


def without_message(folder, name, **wanted):
    """Cut a message out of a file."""
    path = folder / name
    index = index_grib([path], cache_dir=folder / "cache")
    [(_, offset, length)] = index.extents(index.rows(**wanted).tolist())
    data = path.read_bytes()
    path.write_bytes(data[:offset] + data[offset + length :])


def test_missing_message_names_file_date_variable_and_member(copied):
    without_message(
        copied, "output.sfc.20180104", dataDate=20160104, step=48, number=2, paramId=167
    )
    with pytest.raises(FileFormatError, match=r"20180104.*2016-01-04 lacks t2m of member 2"):
        sampled(copied)


def test_the_same_forecast_twice_is_an_error(copied):
    shutil.copyfile(copied / "output.sfc.20180101", copied / "output.sfc.20180104")
    with pytest.raises(FileFormatError, match="twice"):
        sampled(copied)


def test_other_grib_files_are_an_error(copied):
    (copied / "output.sfc.20180104").unlink()
    path = copied / "output.sfc.20180101"
    index = index_grib([path], cache_dir=copied / "cache")
    data = path.read_bytes()
    rows = index.rows(step=0).tolist()
    path.write_bytes(b"".join(data[o : o + n] for _, o, n in index.extents(rows)))
    with pytest.raises(FileFormatError, match="no surface field of ENS-10 at step 48 h"):
        sampled(copied)


def test_files_of_the_surface_are_not_taken_for_those_of_a_level(tiny):
    with pytest.raises(FileFormatError, match="no field at 500 hPa of ENS-10 at step 48 h"):
        Ens10(dtype="pl").samples(tiny.files, tiny.locator)


def test_missing_target_says_where_and_what_else_to_do(copied):
    (copied / "ERA5_sfc_t2m.nc").unlink()
    with pytest.raises(MissingFileError, match=rf"ERA5_sfc_t2m.nc.*{copied}.*target=none"):
        sampled(copied)


def rewrite_target(folder, *, times=None, **layout):
    import netCDF4

    path = folder / "ERA5_sfc_t2m.nc"
    with netCDF4.Dataset(path) as old:
        values = {name: old[name][:] for name in ("time", "latitude", "longitude", "t2m")}
    with netCDF4.Dataset(path, "w") as new:
        for name in ("time", "latitude", "longitude"):
            new.createDimension(name, len(values[name]))
            new.createVariable(name, "f8", (name,))[:] = values[name]
        new["time"].units = "hours since 1900-01-01" if times is None else times
        new.createVariable("t2m", "f4", ("time", "latitude", "longitude"), **layout)[:] = values[
            "t2m"
        ]


def test_compressed_target_says_how_to_store_it(copied):
    rewrite_target(copied, zlib=True)
    with pytest.raises(FileFormatError, match=r"ERA5_sfc_t2m.nc: expected t2m .* contiguous"):
        sampled(copied)


def test_target_without_the_needed_times(copied):
    rewrite_target(copied, times="hours since 1950-01-01", contiguous=True)
    with pytest.raises(FileFormatError, match="expected the time 2015-01-03T00 once"):
        sampled(copied)


def test_target_between_hours_is_refused_and_zones_count(copied):
    rewrite_target(copied, times="hours since 1900-01-01 00:30", contiguous=True)
    with pytest.raises(FileFormatError, match=r"00:30:00 is not on a whole hour"):
        sampled(copied)
    rewrite_target(copied, times="hours since 1900-01-01 02:00 +02:00", contiguous=True)
    assert len(sampled(copied)[1]) == 4
