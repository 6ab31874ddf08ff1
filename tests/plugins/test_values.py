"""Samples of every application equal what xarray, NumPy or its notes make of the same files."""

from __future__ import annotations

import math
import warnings

import h5py
import netCDF4
import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import StorageError
from iobench.recording.process_io import read_process_io
from iobench.registry import find_dataset
from iobench.stores import FeatureKind, frame_example
from iobench_maelstrom.ens10.point_statistics import keep_statistics, member_moments
from iobench_maelstrom.radiation.files import INPUTS
from iobench_maelstrom.radiation.tf_dataset import FEATURES
from iobench_maelstrom.yr.dataset import PatchGrid
from iobench_maelstrom.yr.files import PREDICTORS, STATIC_PREDICTORS

EXAMPLE_NBYTES = 20_576


def opened(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xarray's own, on the coordinate time
        return xarray.open_dataset(path, **options)


# ---- yr


def training_samples(file, patch, *, crop=None, predict_diff=False):
    """What the training code makes of a file, by its description: whole fields, then patches."""
    data = xarray.open_dataset(file, decode_times=False)
    (y0, y1), (x0, x1) = crop or ((0, data.sizes["y"]), (0, data.sizes["x"]))
    data = data.isel(y=slice(y0, y1), x=slice(x0, x1))
    n_y, n_x = y1 - y0, x1 - x0
    seconds = data.leadtime.values
    features = [seconds[:, None, None], np.arange(n_x)[None, None], np.arange(n_y)[None, :, None]]
    statistics = [(each.mean, each.std) for each in (*PREDICTORS, *STATIC_PREDICTORS)]
    statistics += [(values.mean(), values.std()) for values in features]
    static = np.broadcast_to(data.static_predictors.values, (len(seconds), n_y, n_x, 6))
    features = [np.broadcast_to(values, (len(seconds), n_y, n_x))[..., None] for values in features]
    inputs = np.concatenate([data.predictors.values, static, *features], axis=-1)
    targets = data.target_mean.values[..., None]
    if predict_diff:
        targets = targets - inputs[..., 2:3]
    mean, std = np.array(statistics).T
    inputs = (inputs - mean) / std
    for lead in range(len(seconds)):
        for y in range(0, n_y - patch + 1, patch):
            for x in range(0, n_x - patch + 1, patch):
                inside = (slice(lead, lead + 1), slice(y, y + patch), slice(x, x + patch))
                yield inputs[inside], targets[inside]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("options", "crop"),
    [
        ({"patch": "90", "y_range": "50,450", "x_range": "15,300"}, ((50, 450), (15, 300))),
        ({"patch": "100", "predict_diff": "true"}, None),
        ({}, None),
    ],
)
def test_patches_of_yr_equal_those_of_training(prepared, options, crop):
    dataset, files, index = prepared("maelstrom-yr", dates="2020-09-02", **options)
    patch, is_diff = int(options.get("patch", 256)), "predict_diff" in options
    expected = list(training_samples(files[0], patch, crop=crop, predict_diff=is_diff))
    assert len(index) == len(expected)
    for where, (inputs, targets) in zip(index.where, expected, strict=True):
        sample = make_sample(dataset, where)
        np.testing.assert_allclose(sample["predictors"], inputs, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sample["targets"], targets, rtol=1e-6, atol=1e-6)


def test_of_yr_only_the_rows_of_a_patch_are_read(prepared):
    dataset, files, index = prepared("maelstrom-yr")
    nbytes = sum(len(part) for part in dataset.read(index.where[5]))
    rows = 256 * 256 * 4 * 8
    static = (255 * 384 + 256) * 4 * 6  # rows of 6 KiB with 3 KiB between them
    target = (255 * 384 + 256) * 4
    assert rows <= nbytes <= rows + static + target
    assert nbytes < 0.08 * files[0].stat().st_size
    assert index.coordinate[13] == "2020-09-02T09:00:00 +0h y=256 x=0"
    splits = {name: list(numbers) for name, numbers in index.splits.items()}
    assert splits == {"train": list(range(24)), "test": list(range(24, 48))}
    assert index.where[46:] == [index.where[46], index.where[-1]]


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 30), st.integers(1, 30), st.data())
def test_patches_lie_side_by_side(n_files, n_leads, n_y, n_x, data):
    patch = data.draw(st.integers(1, min(n_y, n_x)))
    y_first, x_first = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    y_range, x_range = (y_first, y_first + n_y), (x_first, x_first + n_x)
    leadtimes = tuple(map(float, range(n_leads)))
    grid = PatchGrid(("20200301T03Z",) * n_files, leadtimes, y_range, x_range, (patch, patch))
    found = [grid.patch(number) for number in range(math.prod(grid.counts))]
    assert len(set(found)) == len(found) == n_files * n_leads * (n_y // patch) * (n_x // patch)
    for each in found:
        assert ((each.y - y_first) % patch, (each.x - x_first) % patch) == (0, 0)
        assert y_first <= each.y <= y_first + n_y - patch
        assert x_first <= each.x <= x_first + n_x - patch
    assert found == sorted(found)


# ---- radiation, NetCDF


def columns_of(prepared, number, **options):
    """Return a sample of two pairs of files, and its column of inputs and of outputs."""
    dataset, files, index = prepared("maelstrom-radiation", patch="0,10", **options)
    pair = [xarray.load_dataset(files[number // 128 + half]) for half in (0, 2)]
    columns = [each.isel(column=number % 128) for each in pair]
    return make_sample(dataset, index.where[number]), *columns


@pytest.mark.parametrize("number", [127, 128])
def test_groups_of_radiation_hold_the_variables_in_order(prepared, number):
    sample, column, outputs = columns_of(prepared, number)
    scalars = [np.atleast_1d(column[name]) for name in (
        "skin_temperature", "cos_solar_zenith_angle", "sw_albedo", "sw_albedo_direct",
        "lw_emissivity", "solar_irradiance",
    )]  # fmt: skip
    np.testing.assert_array_equal(sample["sca_inputs"], np.concatenate(scalars))
    levels = []
    for name, variable in INPUTS.items():
        if variable.dims == ("level",):
            levels.append(column[name].values[:, None])
        elif name == "aerosol_mmr":
            levels.append(column[name].transpose("level", "aerosol_type").values)
    np.testing.assert_array_equal(sample["col_inputs"], np.concatenate(levels, axis=1))
    np.testing.assert_array_equal(sample["hl_inputs"][:, 0], column["temperature_hl"])
    np.testing.assert_array_equal(sample["hl_inputs"][:, 1], column["pressure_hl"])
    np.testing.assert_array_equal(sample["pressure_hl"][:, 0], column["pressure_hl"])
    np.testing.assert_array_equal(sample["inter_inputs"][:, 0], column["overlap_param"])
    outputs = outputs.astype("f8")
    for band in ("sw", "lw"):
        net = outputs[f"flux_dn_{band}"].values - outputs[f"flux_up_{band}"].values
        expected = -9.80665 / 1004 * 86400 * np.diff(net) / np.diff(outputs["pressure_hl"])
        np.testing.assert_allclose(sample[f"hr_{band}"], expected, rtol=1e-3, atol=1e-2)
        np.testing.assert_array_equal(sample[f"flux_up_{band}"], outputs[f"flux_up_{band}"])


def test_columns_of_radiation_are_in_order_of_patch_and_in_splits_of_dates(prepared):
    _, files, index = prepared("maelstrom-radiation", subset="tier-1")
    assert len(index) == 8 * 128
    assert index.where[2 * 128 + 1] == index.where[-6 * 128 + 1] == (2, 1)
    assert index.coordinate[2 * 128 + 1] == "20200101 step 0 patch 4 column 1"
    assert index.splits == {"train": range(8 * 128)}
    dates = find_dataset(
        "maelstrom-radiation", date="20190131,20190531,20190829,20200131", patch="0"
    )
    locator = FileLocator(cache_dir=files[0].parent)
    splits = dates.samples([files[0]] * 4 + [files[8]] * 4, locator).splits
    assert (splits["test"], splits["train"]) == (range(128, 256), range(384, 512))
    assert list(splits["validation"]) == [*range(128), *range(256, 384)]


# ---- radiation, TFRecord


def example(seed=0):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape, "f4") for name, (_, shape) in FEATURES.items()}


@pytest.fixture
def written(tmp_path):
    """Write examples and make their samples: a function."""

    def write(*examples, **options):
        path = tmp_path / f"{len(options)}.tfrecord"
        named = ([(k, FeatureKind.FLOAT, v) for k, v in each.items()] for each in examples)
        path.write_bytes(b"".join(bytes(part) for each in named for part in frame_example(each)))
        dataset = find_dataset("maelstrom-radiation-tf", **options)
        index = dataset.samples([path], FileLocator(cache_dir=tmp_path / "cache"))
        return [make_sample(dataset, where) for where in index.where]

    return write


def test_features_are_those_that_were_written_in_whatever_order(written):
    examples = [example(2), dict(reversed(example(1).items())), example(3)]
    for sample, features in zip(written(*examples), examples, strict=True):
        for name, values in features.items():
            factor = np.float32(86400 if name.startswith("hr_") else 1)
            np.testing.assert_array_equal(sample[name], values * factor)


def test_rates_of_mcica(written):
    features = example()
    (mended,) = written(features, dataset="mcica")
    expected = features["hr_sw"] * 86400 * 9.80665 / 1004
    np.testing.assert_allclose(mended["hr_sw"], expected, rtol=1e-6)


def test_an_example_has_the_published_size_and_is_in_the_split_of_its_time_step(prepared):
    _, files, index = prepared(TF := "maelstrom-radiation-tf")
    assert files[0].stat().st_size == 256 * EXAMPLE_NBYTES
    assert index.spec.nbytes == 4 * 5092
    assert index.where[255][1:] == (255 * EXAMPLE_NBYTES, EXAMPLE_NBYTES)
    assert prepared(TF, timestep="0,2019013100,2019053100")[2].splits == {
        "train": range(256), "validation": range(256, 512), "test": range(512, 768),
    }  # fmt: skip


# ---- ENS-10


@pytest.mark.long
def test_inputs_of_ens10_equal_a_computation_from_cfgribs_arrays(prepared):
    dataset, files, index = prepared("maelstrom-ens10")
    assert index.coordinate == ["2015-01-01", "2015-01-04", "2016-01-01", "2016-01-04"]
    assert index.splits == {"train": [0, 1], "test": [2, 3]}
    grib = {"engine": "cfgrib", "backend_kwargs": {"indexpath": "", "squeeze": False}}
    decoded = [opened(file, **grib).load() for file in files[:2]]
    channels = []
    for name in decoded[0].data_vars:
        fields = np.stack(
            [
                data[name].sel(time=start, step=np.timedelta64(48, "h")).values[:, 0]
                for start in map(np.datetime64, index.coordinate)
                for data in decoded
                if start in data.time.values
            ]
        ).astype(np.float64)
        channels += [fields.mean(axis=1), fields.std(axis=1)]
    inputs = np.stack(channels, axis=1)
    expected = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 0.1)
    for number, where in enumerate(index.where):
        sample = make_sample(dataset, where)
        np.testing.assert_allclose(sample["inputs"], expected[number], rtol=1e-4, atol=2e-4)


def test_member_moments_keep_the_digits_of_large_values():
    random = np.random.default_rng(0)
    fields = (1e5 + random.normal(0, 10, (10, 40000))).astype(np.float32)
    mean, deviation = out = np.empty((2, 40000), dtype=np.float32)
    member_moments(fields, out)
    exact = fields.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(deviation, exact.std(axis=0), rtol=1e-4)


@pytest.mark.long
def test_the_normalisation_of_ens10_is_computed_once_or_where_it_is_half_written(
    own_files, sampled, prepared, tmp_path
):
    folder = own_files("maelstrom-ens10", target="none")
    _, _, index = sampled(folder, "maelstrom-ens10", target="none")
    [kept] = folder.rglob("ens10-t2m-normalisation-*")
    before, whole = kept.stat(), kept.read_bytes()
    _, _, again = sampled(folder, "maelstrom-ens10", target="none")
    assert kept.stat().st_mtime_ns == before.st_mtime_ns
    assert again.provenance == index.provenance
    kept.write_bytes(whole[:-1000])
    sampled(folder, "maelstrom-ens10", target="none")
    assert kept.read_bytes() == whole
    (tmp_path / "file").touch()
    dataset, _, index = prepared("maelstrom-ens10", target="none")
    locator = FileLocator(cache_dir=tmp_path / "file" / "cache")
    with pytest.raises(StorageError, match=r"file/cache.*Not a directory"):
        keep_statistics("ens10", dataset.members_of, index.where, [], locator)


def test_of_ens10_only_the_bytes_of_a_sample_are_read(prepared):
    dataset, _, index = prepared("maelstrom-ens10")
    dataset.read(index.where[3])  # opens the files
    before = read_process_io()
    idle = read_process_io()[0] - before[0]
    raw = list(dataset.read(index.where[1]))
    touched = read_process_io()[0] - before[0] - 2 * idle
    assert len(raw) == 11 * 3 + 1
    assert sum(map(len, raw)) == touched


# ---- power


def expected_features(files, production, level):
    """Return features and production of every hour, computed with xarray and pandas."""
    by_name = {file.name: file for file in files}
    production = opened(production).load()
    place = {dim: float(production[dim][0]) for dim in ("latitude", "longitude")}
    runs = [f"2019010{day}_{run}.nc" for day in (1, 2) for run in ("00", "12")]
    parts = (
        [opened(by_name[f"{kind}_{run}"]).isel(time=slice(12)) for run in runs]
        for kind in ("ml", "sfc")
    )
    ml, sfc = (xarray.concat(each, "time").sel(place, method="nearest").load() for each in parts)
    ml = ml.sel(level=level)
    constants = opened(by_name["ECMWF_AB137.nc"])
    a, b = (constants[name].values[0, level - 1 : level + 1].mean() for name in ("hyai", "hybi"))
    density = (a + b * sfc.sp) / ((287.05 * (1 - ml.q) + 461.523 * ml.q) * ml.t)
    columns = [
        density,
        (ml.u**2 + ml.v**2) ** 0.5,
        90 - np.degrees(np.arctan(ml.v / ml.u)),
        ml.time.dt.hour / 24,
        (ml.time.dt.dayofyear - 1) / 365,
    ]
    series = production.production.to_series().droplevel([1, 2, 3]).resample("1h").mean()
    produced = series.reindex(ml.time.to_index()).clip(lower=0)
    return np.stack([column.values for column in columns], axis=1), produced.values


@pytest.mark.parametrize(("turbine", "level"), [(1, 133), (4, 128)])
def test_features_of_power_equal_a_computation_with_xarray(prepared, turbine, level):
    options = {"wind_turbine_id": str(turbine), "model_level": str(level)}
    dataset, files, index = prepared("maelstrom-power", **options)
    features, produced = expected_features(files, files[-1], level)
    assert len(index) == 48
    for number, where in enumerate(index.where):
        sample = make_sample(dataset, where)
        np.testing.assert_allclose(sample["features"], features[number], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(sample["production"], produced[number], rtol=1e-6)


def test_hours_without_production_are_left_out_and_negative_production_is_none(own_files, sampled):
    folder = own_files("maelstrom-power", date="2019-01-01")
    with netCDF4.Dataset(folder / "wind_turbine_1.nc", "a") as file:
        file["production"][18:24] = np.nan
        file["production"][24:30] = -3.0
    dataset, _, index = sampled(folder, "maelstrom-power")
    assert len(index) == 23
    assert "2019-01-01T03" not in index.coordinate
    assert index.provenance["hours_without_production"] == 1
    assert make_sample(dataset, index.where[3])["production"] == 0


def test_channels_of_clustering_are_level_by_level_as_upstream(prepared):
    names, levels = ["z", "r", "t", "u", "v"], [300, 500, 700, 850, 950]
    dataset, files, index = prepared("maelstrom-weather-pressure-level", sample="clustering")
    [path] = [file for file in files if file.name == "pl_20190102_00.nc"]
    with opened(path) as data:
        step = data.isel(time=6).sel(level=levels)[names].load()
    fields = step.to_dataarray().transpose("level", "variable", "latitude", "longitude").values
    expected = fields.reshape(25, *fields.shape[2:]).astype("f4")
    np.testing.assert_array_equal(make_sample(dataset, index.where[30])["fields"], expected)
    assert index.spec["fields"].channels[:6] == ("z300", "r300", "t300", "u300", "v300", "z500")
    assert index.spec["fields"].units.startswith("z m**2 s**-2, r %, t K")
    assert len(index) == 48


# ---- downscaling


def merged(files):
    """All files as one, static variables at every time too."""
    return xarray.concat([opened(file).load() for file in files], "time", data_vars="all")


@pytest.mark.long
@pytest.mark.parametrize(
    ("tier", "numbers", "months"),
    [("tier1", (0, 70, 181), (60, 62, 60)), ("tier2", (100,), (48, 48, 48))],
)
def test_a_sample_of_downscaling_is_scored_by_training_means(prepared, tier, numbers, months):
    dataset, files, index = prepared(f"maelstrom-downscaling-{tier}")
    assert [len(numbers) for numbers in index.splits.values()] == [*months]
    train, whole = merged(files[:1]), merged(files)
    for number in numbers:
        sample = make_sample(dataset, index.where[number])
        for variable in index.spec:
            for channel, name in enumerate(variable.channels):
                over = "time" if tier == "tier1" and name.startswith("t2m") else None
                expected = (whole[name][number] - train[name].mean(over)) / train[name].std(over)
                values = sample[variable.name][channel]
                np.testing.assert_allclose(values, expected, rtol=2e-6, atol=2e-6)


@pytest.fixture
def short_files(prepared, tmp_path):
    """Return a function that writes some hours of a file anew, as another month."""

    def write(tier, month, change, hours=5):
        _, files, _ = prepared(f"maelstrom-downscaling-{tier}")
        with opened(files[0]) as data:
            data = data.isel(time=slice(hours)).load()
        start = np.datetime64(month, "ns") - data.time[0].values
        data = change(data.assign_coords(time=data.time + start))
        data.to_netcdf(tmp_path / f"downscaling_{tier}_{month}.nc")
        return tmp_path

    return write


def test_moments_of_several_files_are_merged(short_files, sampled):
    for number, month in enumerate(("2016-04", "2016-05", "2018-09")):
        folder = short_files("tier1", month, lambda d, n=number: d * (1 + n / 50), 4 + number)
    dataset, files, index = sampled(folder, "maelstrom-downscaling-tier1")
    whole = merged(files)
    assert index.splits == {"train": list(range(15))}
    expected = (whole.t2m_in[14] - whole.t2m_in.mean("time")) / whole.t2m_in.std("time")
    sample = make_sample(dataset, index.where[14])
    np.testing.assert_allclose(sample["inputs"][0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_of_downscaling_what_is_constant_becomes_0_and_masks_may_lack(short_files, sampled):
    folder = short_files("tier1", "2019-04", lambda data: data.assign(z_in=data.z_in * 0 + 7))
    dataset, _, index = sampled(folder, "maelstrom-downscaling-tier1")
    assert (make_sample(dataset, index.where[0])["inputs"][1] == 0).all()
    folder = short_files("tier2", "2016-01", lambda data: data.drop_vars(["lsm_in", "fr_land_tar"]))
    _, _, index = sampled(folder, "maelstrom-downscaling-tier2")
    assert index.spec["inputs"].shape == (15, 96, 120)


def test_the_alias_of_downscaling_says_its_tier(prepared):
    for options, name in (({}, "tier2"), ({"tier": "1"}, "tier1")):
        dataset = find_dataset("maelstrom-downscaling", **options)
        assert dataset.name == f"maelstrom-downscaling-{name}"
        assert f"took tier {dataset.number}" in dataset.title
        assert "took" not in find_dataset(dataset.name).title
    _, files, _ = prepared("maelstrom-downscaling", tier="1", months="2020-04-01")
    assert [file.name for file in files] == ["downscaling_tier1_2020-04.nc"]


# ---- MLPerf HPC


def test_deepcam_is_what_the_reference_makes_of_h5py(prepared):
    dataset, files, index = prepared("deepcam")
    with h5py.File(files[-1]) as stats:
        shift = stats["climate/minval"][...]
        scale = 1.0 / (stats["climate/maxval"][...] - shift)
    for where, path in zip(index.where, files[:-1], strict=True):
        ours = make_sample(dataset, where)
        with h5py.File(path) as file:
            data = file["climate/data"][...]
            label = file["climate/labels_0"][...].astype(np.int64)
        expected = np.transpose(scale * (data - shift), (2, 0, 1))
        np.testing.assert_array_equal(ours["data"], expected, strict=True)
        np.testing.assert_array_equal(ours["label"], label, strict=True)
        assert 0 <= ours["data"].min() < ours["data"].max() <= 1
        assert set(np.unique(label)) == {0, 1, 2}


def test_cosmoflow_is_what_tensorflow_makes_of_tfrecords(prepared):
    tf = pytest.importorskip("tensorflow", reason="the reference reads with TensorFlow")
    dataset, files, index = prepared("cosmoflow")
    spec = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([4], tf.float32)}
    for where, file in zip(index.where, files, strict=True):
        (record,) = tf.data.TFRecordDataset([str(file)], compression_type="GZIP")
        found = tf.io.parse_single_example(record, spec)
        counts = tf.reshape(tf.io.decode_raw(found["x"], tf.int16), (16, 16, 16, 4))
        arrays = dataset.decode(dataset.read(where), where)
        np.testing.assert_array_equal(arrays["x"], counts.numpy(), strict=True)
        ours = make_sample(dataset, where)
        np.testing.assert_array_equal(ours["y"], found["y"].numpy(), strict=True)
        theirs = tf.math.log(tf.cast(counts, tf.float32) + tf.constant(1.0)).numpy()
        np.testing.assert_array_max_ulp(ours["x"], theirs, 1)


@pytest.mark.parametrize("name", ["deepcam", "cosmoflow"])
def test_splits_are_folders_and_one_alone_may_be_there(own_files, sampled, prepared, name):
    dataset, files, index = prepared(name)
    for split, numbers in index.splits.items():
        assert {files[n].parent.name for n in numbers} == {split}
    assert list(map(len, index.splits.values())) == list(dataset.tiny_files)
    _, files, index = sampled(own_files(name), name, split="validation")
    assert {file.parent.name for file in files} <= {"validation", "own"}
    assert list(index.splits) == ["validation"]
    assert not index.provenance["stand_in"]
