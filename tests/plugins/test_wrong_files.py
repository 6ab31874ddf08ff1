"""Files that are missing, damaged or of another schema are named in one line, with what to do."""

from __future__ import annotations

import gzip
import shutil
import warnings
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray

from iobench.datasets.contract import make_sample
from iobench.datasets.source_files import index_grib
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.registry import find_dataset
from iobench.stores import FeatureKind, frame_example
from iobench_maelstrom.radiation.tf_dataset import FEATURES

EXAMPLE_NBYTES = 20_576


def anew(change, **options):
    """Return what writes a NetCDF file again, changed as a dataset of xarray."""

    def write(path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # xarray's own on the coordinate time
            with xarray.open_dataset(path, mask_and_scale=False, decode_times=False) as data:
                data = data.load()
        path.unlink()
        change(data).to_netcdf(path, engine="netcdf4", **options)

    return write


classic = {"format": "NETCDF3_64BIT"}


def within(change, library=netCDF4.Dataset):
    """Return what changes a file where it is."""

    def write(path):
        with library(path, "r+") as file:
            change(file)

    return write


def put(name, place, values):
    def change(file):
        file[name][place] = values

    return change


def other_shape(file):
    del file["climate/data"]
    file["climate/data"] = np.zeros((48, 72, 15), dtype=np.float32)


def flat_channel(file):
    file["climate/maxval"][3] = file["climate/minval"][3]


def cut_to(nbytes):
    return lambda path: path.write_bytes(path.read_bytes()[:nbytes])


def flip(offset):
    def write(path):
        content = bytearray(path.read_bytes())
        content[offset] ^= 4
        path.write_bytes(content)

    return write


def inflated(change):
    """Return what changes the content of a compressed file."""
    return lambda path: path.write_bytes(
        gzip.compress(change(bytearray(gzip.decompress(path.read_bytes()))))
    )


def flipped(content):
    content[len(content) // 2] ^= 1
    return bytes(content)


def examples(*every):
    """Return what writes columns of radiation: each with other lists of floats than it has."""
    random = np.random.default_rng(0)
    features = {name: random.standard_normal(shape, "f4") for name, (_, shape) in FEATURES.items()}

    def write(path):
        parts = []
        for more in every:
            own = {name: v for name, v in (features | more).items() if v is not None}
            named = [(name, FeatureKind.FLOAT, values) for name, values in own.items()]
            parts += map(bytes, frame_example(named))
        path.write_bytes(b"".join(parts))

    return write


def cube(size):
    counts, parameters = np.zeros(size, dtype=np.int16), np.zeros(4, dtype=np.float32)
    features = [("x", FeatureKind.BYTES, counts), ("y", FeatureKind.FLOAT, parameters)]
    return lambda path: path.write_bytes(b"".join(map(bytes, frame_example(features))))


def messages(is_kept=None, **wanted):
    """Return what keeps only some GRIB messages, or all but one."""

    def write(path):
        index = index_grib([path], cache_dir=path.parent / "cache")
        rows = index.rows(**wanted).tolist()
        kept = rows if is_kept else sorted({*range(len(index))} - {*rows})
        content = path.read_bytes()
        path.write_bytes(b"".join(content[o : o + n] for _, o, n in index.extents(kept)))

    return write


def target(times):
    """Return what writes ERA5's field anew, of other times."""

    def write(path):
        with netCDF4.Dataset(path) as old:
            values = {name: old[name][:] for name in ("time", "latitude", "longitude", "t2m")}
        with netCDF4.Dataset(path, "w") as new:
            for name in ("time", "latitude", "longitude"):
                new.createDimension(name, len(values[name]))
                new.createVariable(name, "f8", (name,))[:] = values[name]
            new["time"].units = times
            dims = ("time", "latitude", "longitude")
            new.createVariable("t2m", "f4", dims, zlib=True)[:] = values["t2m"]

    return write


def copy_of(name):
    return lambda path: shutil.copyfile(path.parent / name, path)


def later(data):
    return data.assign_coords(time=("time", data.time.values + 1, data.time.attrs))


YR, RADIATION, TF = "maelstrom-yr size=5GB", "maelstrom-radiation", "maelstrom-radiation-tf"
ONE_OF_YR = f"{YR} dates=2020-03-01"
ENS10, POWER, WEATHER = "maelstrom-ens10", "maelstrom-power", "maelstrom-weather-pressure-level"
DAY, RUN = "date=2019-01-01", "pl_20190101_12.nc"
INPUTS, OUTPUTS = "rad4NN_inputs_*c0.nc", "triplecloud_outputs_*c0.nc"
EXAMPLES, TARGET, FORECASTS = "triplecloud0.0.tfrecord", "ERA5_sfc_t2m.nc", "output.sfc.20180104"
FIRST_CAM, CUBE = "data-1996-01-01-01-1.h5", "*_000.tfrecord"
GZIP = "cosmoflow"
unlink = Path.unlink
# What is copied, of which file what is changed, and what is said; of a name behind "|" that is
# what is opened.
WRONG: list[tuple[str, str, Any, str]] = [
    (ONE_OF_YR, "*.nc", within(put("predictor", 3, "dew_2m")), "predictor is .*dew_2m, .*bias_y"),
    (f"{ONE_OF_YR}|{YR} dates=20200301,20200303", "", None,
     r"https://.*/maelstrom-ap1/air_temperature/5GB/20200303T15Z.nc not found in"),
    (f"{ONE_OF_YR}|{YR} patch=500", "", None, "expected 1 to 128, or whole"),
    (f"{ONE_OF_YR}|{YR} x_range=0,129 y_range=0,4", "", None, "0,129: expected .* inside 0,128"),
    (f"{RADIATION} patch=0", INPUTS, anew(lambda d: d.rename(column="c")),
     r"rad4NN.*lacks the dimension 'column'"),
    (f"{RADIATION} patch=0", OUTPUTS, anew(lambda d: d.drop_vars("flux_up_lw")),
     r"triplecloud.*lacks the variable 'flux_up_lw'"),
    (f"{RADIATION} patch=0", INPUTS, anew(lambda d: d.isel(level=slice(60))),
     r"'q' is float32 .*'level': 60.*expected float32"),
    (f"{RADIATION} patch=0", INPUTS, anew(lambda d: d.assign(q_ice=d.q_ice.astype("f8"))),
     r"'q_ice' is .*expected float32"),
    (f"{RADIATION} patch=0", OUTPUTS, anew(lambda d: d.isel(column=slice(100))),
     r"'column' is 100, expected 128"),
    (f"{RADIATION} patch=0,2", "rad4NN_inputs_*c2.nc",
     anew(lambda d: d.transpose("column", "level", "aerosol_type", ...)),
     r"c2\.nc: variable 'aerosol_mmr'.* as in .*rad4"),
    *((TF, EXAMPLES, cut_to(20 * EXAMPLE_NBYTES - cut),
       rf"{EXAMPLES} at byte {19 * EXAMPLE_NBYTES}: .*again") for cut in (1, 15, 17)),
    (TF, EXAMPLES, cut_to(0), "is empty"),
    (TF, EXAMPLES, lambda path: path.write_bytes(b"no TFRecord file, and long enough"),
     r"at byte 0: checksum of the .* length is wrong"),
    *((TF, EXAMPLES, flip(7 * EXAMPLE_NBYTES + byte),
       rf"{EXAMPLES} at byte {7 * EXAMPLE_NBYTES}: .*wrong")
      for byte in (0, 9, 12, 200, EXAMPLE_NBYTES // 2, EXAMPLE_NBYTES - 1)),
    (TF, EXAMPLES, examples({"more": np.zeros(3, "f4")}, {}, {}), "its 3 examples differ in size"),
    (TF, EXAMPLES, examples({"hr_sw": None}), "at byte 0: feature 'hr_sw' has no floats"),
    (TF, EXAMPLES, examples({"sw": np.zeros((10, 2), "f4")}), r"'sw' has 20 .*expected \(138, 2\)"),
    (ENS10, FORECASTS, messages(dataDate=20160104, step=48, number=2, paramId=167),
     r"1 of 12 messages of t2m are missing, .* number=2, time=2016-01-04.* again"),
    (ENS10, FORECASTS, copy_of("output.sfc.20180101"), "are both sst, .* expected each once"),
    (f"{ENS10} date=0104", FORECASTS, messages(True, step=0),
     "no sst of ENS-10 at step 48 h"),
    (f"{ENS10}|{ENS10} dtype=pl", "", None, r"output\.pl\.20180101.* not found"),
    (ENS10, TARGET, unlink, rf"{TARGET}.*target=none"),
    (ENS10, TARGET, anew(lambda d: d.isel(latitude=slice(None, None, -1))),
     rf"{TARGET}: expected t2m .* from north to south"),
    (ENS10, TARGET, target("hours since 1950-01-01"),
     "expected the time 2015-01-03T00 once"),
    (ENS10, TARGET, target("hours since 1900-01-01 00:30"),
     "expected the time 2015-01-03T00 once"),
    (f"{POWER} {DAY}|{POWER}", "ml_20190101_12.nc", unlink,
     r"https://.*/maelstrom-ap6/ml_20190101_12.nc not"),
    (f"{POWER} {DAY}|{POWER} date=2019-01-01,2019-01-02", "", None, r"ap6/sfc_20190102_00.nc"),
    (f"{POWER} {DAY}|{POWER}", "ECMWF_AB137.nc", unlink, "maelstrom-ap6/ECMWF_AB137.nc not found"),
    (f"{POWER} {DAY}|{POWER}", "*.nc", unlink, r"ml_20170101_00.nc, .* and 5841 more not found"),
    (f"{POWER} {DAY}", "ml_20190101_12.nc", anew(lambda d: d.isel(time=slice(11)), **classic),
     r"sfc_20190101_12.nc: other times than .*ml_20190101_12.nc"),
    (f"{POWER} {DAY}", "sfc_20190101_12.nc", anew(later, **classic),
     r"sfc_20190101_12.nc: other times than .*ml_20190101_12.nc"),
    (f"{POWER} {DAY}", "wind_turbine_1.nc",
     anew(lambda d: d.assign_coords(longitude=d.longitude - 8), **classic),
     r"wind_turbine_1.nc: .*'longitude' is 6.12, outside .* from 7 to 14.9"),
    (f"{POWER} {DAY}", "wind_turbine_1.nc", within(put("production", slice(None), np.nan)),
     r"wind_turbine_1.nc.*no hour of the weather"),
    (f"{POWER} {DAY}|{POWER} model_level=128", "ml_*.nc",
     anew(lambda d: d.isel(level=slice(3, None)), **classic),
     r"variable 'level' is 131, .*expected 128 among"),
    (f"{WEATHER} {DAY}", RUN, copy_of("pl_20190101_00.nc"),
     rf"{RUN}: holds 2019-01-01T00, which is in .*_00.nc already"),
    (f"{WEATHER} {DAY}|{WEATHER} sample=clustering", "*.nc",
     anew(lambda d: d.isel(level=slice(1, None)), **classic),
     r"needs also 300; take --option sample=fields"),
    (f"{WEATHER} {DAY}|{WEATHER} sample=clustering", "*.nc",
     anew(lambda d: d.drop_vars("r"), **classic), r"has no variable 'r'"),
    ("maelstrom-downscaling-tier1 months=2019-04", "*.nc", anew(lambda d: d.where(d.lat < 50)),
     r"tier1_2019-04\.nc: .*'t2m_in' has missing values"),
    ("deepcam", FIRST_CAM, within(other_shape, h5py.File),
     rf"{FIRST_CAM}: .*has .*15\).*expected .*\(48, 72, 16\)"),
    ("deepcam", FIRST_CAM, within(lambda file: file.pop("climate"), h5py.File),
     rf"{FIRST_CAM}: .*no group 'climate'"),
    ("deepcam", "stats.h5", within(flat_channel, h5py.File), "stats.h5: .*expected climate/minval"),
    ("deepcam", "stats.h5", within(lambda file: file["climate"].pop("minval"), h5py.File),
     "stats.h5: .*expected climate/minval"),
    ("deepcam", "stats.h5", unlink, "stats.h5 not found"),
    ("deepcam|deepcam split=validation", "validation", shutil.rmtree,
     r"no file \*.h5 of validation"),
    *((GZIP, "*.tfrecord", cube(size), "expected a cube of 4 redshifts")
      for size in (0, 16**3 * 3, 16**2 * 4)),
    (GZIP, CUBE, lambda path: cut_to(path.stat().st_size // 2)(path), "bytes end early"),
    (GZIP, CUBE, inflated(flipped), "checksum of the example's data is wrong"),
    (GZIP, "*_001.tfrecord", inflated(lambda content: bytes(content) * 3), "more than the"),
    (GZIP, CUBE, lambda path: path.write_bytes(b"not a TFRecord file at all"),
     "checksum of the length is wrong"),
]  # fmt: skip


def split(spelled):
    name, *options = spelled.split()
    return name, dict(each.split("=") for each in options)


@pytest.mark.quick_cases(25)
@pytest.mark.parametrize(
    ("spelled", "file", "change", "message"), WRONG, ids=[f"{each[0]}-{each[3]}" for each in WRONG]
)
def test_what_is_wrong_is_said_in_one_line(own_files, sampled, spelled, file, change, message):
    copied, _, opened = spelled.partition("|")
    (name, options), (_, others) = split(copied), split(opened or copied)
    folder = own_files(name, **options)
    for path in sorted(folder.rglob(file)) if file else ():
        change(path)

    def make_all():
        dataset, _, index = sampled(folder, name, **others)
        for where in index.where:
            make_sample(dataset, where)

    with pytest.raises((FileFormatError, MissingFileError, OptionError), match=message) as told:
        make_all()
    assert "\n" not in str(told.value)


def test_what_lies_beside_a_damaged_example_is_read(own_files, sampled):
    folder = own_files(TF)
    flip(7 * EXAMPLE_NBYTES + 200)(folder / EXAMPLES)
    dataset, _, index = sampled(folder, TF)
    for number in (6, 8):
        make_sample(dataset, index.where[number])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (RADIATION, {"dataset": "mcica"}, r"rad4NN_outputs_.* was not found.*holds only rad4NN"),
        (RADIATION, {"patch": "1"}, r"rad4NN_inputs_2020010100_0c1\.nc was not found"),
        (TF, {"dataset": "mcica"}, r"TFR/TripCloud0\.0\.tfrecord was not found"),
        ("maelstrom-downscaling-tier1", {"months": "2016-04"}, r"only downscaling_tier1_2019-04"),
    ],
)
def test_a_stand_in_is_refused_for_what_it_does_not_hold(name, options, message):
    with pytest.raises(OptionError, match=message):
        find_dataset(name, **options).stand_in_files(scale=None, tiny=True, seed=0)
