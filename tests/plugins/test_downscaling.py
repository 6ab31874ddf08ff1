"""Samples of both tiers equal a computation from xarray's arrays of the same files."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from iobench.datasets import inspected_netcdf as inspected
from iobench.datasets.contract import make_sample, sample_steps
from iobench.datasets.locate import FileLocator
from iobench.datasets.selection import place_index_windows
from iobench.datasets.standins import ensure_stand_in
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import Window
from iobench.testing import DatasetTests
from iobench_maelstrom.downscaling.dataset import DownscalingTier1, DownscalingTier2, downscaling

FACTORIES = {1: DownscalingTier1, 2: DownscalingTier2}


@pytest.fixture(scope="session")
def roots(tiny_root):
    return {number: tiny_root(factory()) for number, factory in FACTORIES.items()}


def prepared(root, dataset):
    locator = FileLocator(stand_in=root, cache_dir=root / "cache")
    files = dataset.files(locator)
    return dataset, files, dataset.samples(files, locator)


@pytest.fixture(scope="session", params=[1, 2])
def tier(request, roots):
    return request.param, *prepared(roots[request.param], FACTORIES[request.param]())


@pytest.fixture(scope="session")
def tier1(roots):
    return prepared(roots[1], DownscalingTier1())


@pytest.fixture(scope="session")
def tier2(roots):
    return prepared(roots[2], DownscalingTier2())


def opened(files):
    import xarray

    return [xarray.open_dataset(file).load() for file in files]


def merged(files):
    """All files as one, static variables at every time too."""
    import xarray

    return xarray.concat(opened(files), "time", data_vars="all")


def short_copy(source: Path, target: Path, change=None, hours=5, **encoding):
    """Write a few time steps of a file anew."""
    import xarray

    with xarray.open_dataset(source) as data:
        data = data.isel(time=slice(hours)).load()
    if change is not None:
        data = change(data)
    target.parent.mkdir(exist_ok=True)
    data.to_netcdf(target, encoding=dict.fromkeys(data.data_vars, encoding) if encoding else None)
    return target


def user_index(folder, dataset):
    locator = FileLocator(data_dir=folder, cache_dir=folder / "cache")
    return dataset.samples(dataset.files(locator), locator)


class TestTier1(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return DownscalingTier1()

    @pytest.fixture
    def files(self, tier1):
        return tier1[1]


class TestTier2(DatasetTests):
    @pytest.fixture
    def dataset(self):
        return DownscalingTier2()

    @pytest.fixture
    def files(self, tier2):
        return tier2[1]


@pytest.mark.quick_cases(1)
def test_decoded_values_are_xarrays(tier):
    _, dataset, files, index = tier
    expected = merged(files)
    for number in range(0, len(index), 7):
        arrays = dataset.decode(dataset.read(index.where[number]), index.where[number])
        for name, array in arrays.items():
            assert array.dtype == np.float64
            np.testing.assert_array_equal(array, expected[name].values[number])


def test_a_tier1_sample_is_scored_by_training_means(tier1):
    dataset, files, index = tier1
    train, whole = merged(files[:1]), merged(files)
    for number in (0, 70, 181):
        sample = make_sample(dataset, index.where[number])
        for array, names in (
            ("inputs", ("t2m_in", "z_in", "z_tar")),
            ("targets", ("t2m_tar", "z_tar")),
        ):
            for channel, name in enumerate(names):
                over = "time" if name.startswith("t2m") else None
                expected = (whole[name][number] - train[name].mean(over)) / train[name].std(over)
                np.testing.assert_allclose(sample[array][channel], expected, rtol=2e-6, atol=2e-6)


def test_a_tier2_sample_is_scored_over_time_and_space(tier2):
    dataset, files, index = tier2
    train, whole = merged(files[:1]), merged(files)
    assert len(index.spec["inputs"].channels) == 16
    sample = make_sample(dataset, index.where[100])
    for variable in index.spec:
        for channel, name in enumerate(variable.channels):
            expected = (whole[name][100] - train[name].mean()) / train[name].std()
            np.testing.assert_allclose(
                sample[variable.name][channel], expected, rtol=2e-6, atol=2e-6
            )


def test_training_inputs_have_mean_0_and_deviation_1(tier2):
    dataset, _, index = tier2
    train = [make_sample(dataset, index.where[n])["inputs"] for n in index.splits["train"]]
    np.testing.assert_allclose(np.mean(train, axis=(0, 2, 3), dtype="f8"), 0, atol=1e-5)
    np.testing.assert_allclose(np.std(train, axis=(0, 2, 3), dtype="f8"), 1, atol=1e-5)


def test_moments_of_several_files_are_merged(roots, tmp_path):
    months = ("2016-04", "2016-05", "2018-09")
    source = prepared(roots[1], DownscalingTier1())[1][0]
    for number, month in enumerate(months):
        short_copy(
            source,
            tmp_path / f"downscaling_tier1_{month}.nc",
            lambda data, n=number, m=month: (
                data.assign_coords(time=data.time + (np.datetime64(m, "ns") - data.time[0].values))
                * (1 + n / 50)
            ),
            hours=4 + number,
        )
    index = user_index(tmp_path, dataset := DownscalingTier1())
    whole = merged(sorted(tmp_path.glob("*.nc")))
    assert index.splits == {"train": list(range(15))}
    expected = (whole.t2m_in[14] - whole.t2m_in.mean("time")) / whole.t2m_in.std("time")
    sample = make_sample(dataset, index.where[14])
    np.testing.assert_allclose(sample["inputs"][0], expected, rtol=1e-5, atol=1e-5)


def test_channels_units_and_roles_are_told(tier1, tier2):
    spec = tier2[2].spec
    assert spec["inputs"].shape == (16, 96, 120)
    assert spec["inputs"].channels[0] == "hsurf_tar"
    assert "t137_in" not in spec["inputs"].channels
    assert spec["targets"].channels == ("t_2m_tar", "hsurf_tar")
    assert spec["targets"].role == "target"
    assert spec["inputs"].dims == ("channel", "rlat", "rlon")
    assert tier1[2].spec["inputs"].shape == (3, 96, 128)
    assert tier1[2].spec.nbytes == 5 * 96 * 128 * 4


def test_the_first_variant_has_15_channels(roots):
    dataset, _, index = prepared(roots[2], DownscalingTier2(variant="published"))
    channels = index.spec["inputs"].channels
    assert len(channels) == 15
    assert "t137_in" in channels
    assert not {"lsm_in", "fr_land_tar"} & set(channels)
    index.spec.check(make_sample(dataset, index.where[0]), where="sample 0")


def test_files_without_masks_give_the_first_variant(tier2, tmp_path):
    short_copy(
        tier2[1][0],
        tmp_path / "downscaling_tier2_2016-01.nc",
        lambda data: data.drop_vars(["lsm_in", "fr_land_tar"]),
    )
    index = user_index(tmp_path, DownscalingTier2())
    assert index.provenance["options"]["variant"] == "published"
    assert index.spec["inputs"].shape == (15, 96, 120)


def test_splits_are_by_month(tier1, tier2):
    assert {name: len(numbers) for name, numbers in tier2[2].splits.items()} == {
        "train": 48,
        "validation": 48,
        "test": 48,
    }
    index = tier1[2]
    months = {
        name: {index.coordinate[n][:7] for n in numbers} for name, numbers in index.splits.items()
    }
    assert months == {"train": {"2019-04"}, "validation": {"2020-05"}, "test": {"2020-04"}}
    assert index.coordinate[:2] == ["2019-04-01T00", "2019-04-01T12"]


def test_samples_lie_along_the_time(tier):
    number, _, files, index = tier
    times = np.concatenate([file["time"].to_numpy() for file in opened(files)])
    seconds = times.astype("datetime64[s]").astype(np.int64)
    assert index.position_units == "seconds"
    np.testing.assert_array_equal(index.positions, seconds)
    placed = place_index_windows(index, Window.parse("-1,0:1"), split="train")
    assert len(placed.gaps) == 1  # between a training month and the next the stand-in has
    assert placed.step == 3600 * FACTORIES[number].step_hours


def test_months_are_upstreams():
    counts = {
        number: {name: len(tier(dataset=name).urls()) for name in tier.upstream_splits}
        for number, tier in FACTORIES.items()
    }
    assert counts == {
        1: {"training": 24, "validation": 3, "testing": 3},
        2: {"training": 264, "validation": 12, "testing": 12},
    }


@pytest.mark.parametrize("text", ["2020-05-01", "2020-05"])
def test_a_month_alone_is_its_file(roots, text):
    _, files, index = prepared(roots[1], DownscalingTier1(months=text))
    assert [file.name for file in files] == ["downscaling_tier1_2020-05.nc"]
    assert len(index) == 62
    assert index.provenance["normalisation"]["files"] == ["downscaling_tier1_2020-05.nc"]


def test_a_split_of_a_stand_in_is_what_it_has_of_it(roots):
    _, files, index = prepared(roots[2], DownscalingTier2(dataset="testing"))
    assert [file.name for file in files] == ["downscaling_tier2_2018-01.nc"]
    assert list(index.splits) == ["test"]


def test_only_the_time_steps_bytes_are_read(tier):
    number, dataset, _, index = tier
    n_variables = {1: 4, 2: 17}[number]
    rows, columns = (axis.length for axis in FACTORIES[number].axes[1:])
    raw = dataset.read(index.where[20])
    assert sum(memoryview(data).nbytes for data in raw) == n_variables * rows * columns * 8


@pytest.mark.parametrize(
    "encoding",
    [{"chunksizes": (2, 96, 128), "zlib": True, "shuffle": True}, {"contiguous": True}],
    ids=["chunked", "contiguous"],
)
def test_other_storage_gives_the_same(tier1, tmp_path, encoding):
    short_copy(tier1[1][0], tmp_path / "downscaling_tier1_2019-04.nc", **encoding)
    index = user_index(tmp_path, dataset := DownscalingTier1())
    for number in range(5):
        ours = dataset.decode(dataset.read(index.where[number]), index.where[number])
        expected = tier1[0].decode(tier1[0].read(tier1[2].where[number]), tier1[2].where[number])
        for name, array in ours.items():
            np.testing.assert_array_equal(array, expected[name])


def test_storage_only_the_library_knows_is_declared_fused(tier1, tmp_path):
    short_copy(tier1[1][0], tmp_path / "downscaling_tier1_2019-04.nc", compression="szip", hours=4)
    index = user_index(tmp_path, dataset := DownscalingTier1())
    assert dataset.fused == ("read", "decode")
    assert not dataset.thread_safe
    assert [name for name, _ in sample_steps(dataset)] == ["read+decode", "preprocess"]
    index.spec.check(make_sample(dataset, index.where[3]), where="sample 3")


def test_augmented_files_are_read(tier1, tmp_path):
    short_copy(tier1[1][0], tmp_path / "downscaling_tier1_val_aug.nc")
    index = user_index(tmp_path, DownscalingTier1(dataset="validation_aug"))
    assert {name: list(some) for name, some in index.splits.items()} == {"validation": [*range(5)]}
    assert not len(index.positions)  # times may be there more than once


def test_the_normalisation_is_computed_once(tier1):
    dataset, files, _ = tier1
    root = files[0].parents[5]
    locator = FileLocator(stand_in=root, cache_dir=root / "cache")
    assert dataset.samples(files, locator).setup == {}


def test_a_replaced_file_is_normalised_anew(tier1, tmp_path):
    checksums = []
    for factor in (1.0, 1.1):
        path = tmp_path / "downscaling_tier1_2019-04.nc"
        short_copy(tier1[1][0], path, lambda data, f=factor: data * f)
        index = user_index(tmp_path, DownscalingTier1())
        checksums.append(index.provenance["normalisation"]["sha256"])
        assert index.setup
    assert checksums[0] != checksums[1]


def test_a_constant_variable_becomes_0(tier1, tmp_path):
    flat = short_copy(
        tier1[1][0],
        tmp_path / "downscaling_tier1_2019-04.nc",
        lambda data: data.assign(z_in=data.z_in * 0 + 7),
    )
    index = user_index(flat.parent, dataset := DownscalingTier1())
    assert (make_sample(dataset, index.where[0])["inputs"][1] == 0).all()


def test_the_alias_says_its_tier(roots):
    assert downscaling().name == "maelstrom-downscaling-tier2"
    assert "took tier 2" in downscaling().title
    assert "took tier 1" in downscaling(tier="1").title
    assert "took" not in DownscalingTier1().title
    _, files, _ = prepared(roots[1], downscaling(tier="1", months="2020-04-01"))
    assert [file.name for file in files] == ["downscaling_tier1_2020-04.nc"]


def test_published_times_are_tier_2s():
    published = DownscalingTier2().published
    assert (published.forward_ns + published.backward_ns, published.batch_size) == (200_000_000, 32)
    assert published.batches_per_step == 6  # 192 samples an effective batch
    assert DownscalingTier1().published is None


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (DownscalingTier1, {"size": "1"}, "knows months, dataset$"),
        (DownscalingTier2, {"size": "1"}, "knows months, dataset, variant$"),
        (DownscalingTier1, {"months": "2020-10-01"}, "months 04 to 09 of 2016 to 2020"),
        (DownscalingTier2, {"months": "2019-01"}, "months 01 to 12 of 1995 to 2018"),
        (DownscalingTier2, {"months": "2018-1"}, "'2018-1': expected YYYY-MM"),
        (DownscalingTier2, {"dataset": "training_aug"}, "of training, validation, testing$"),
        (DownscalingTier1, {"dataset": "train"}, "testing, training_aug, validation_aug, test"),
        (DownscalingTier2, {"variant": "old"}, "benchmark_t2m, published$"),
        (DownscalingTier1, {"dataset": "training", "months": "2016-04"}, "give one of them"),
        (downscaling, {"tier": "3"}, "expected 1 or 2"),
        (downscaling, {"tier": "1", "variant": "x"}, "tier1 knows months, dataset$"),
        (downscaling, {"month": "1"}, "tier2 knows months, dataset, variant$"),
    ],
)
def test_wrong_options_are_told_with_the_valid_ones(factory, options, message):
    with pytest.raises(OptionError, match=message):
        factory(**options)


def test_missing_files_are_listed_by_url(tier1, tmp_path):
    shutil.copy(tier1[1][0], tmp_path)
    with pytest.raises(MissingFileError, match=r"maelstrom-ap5/tier-1/.*_2019-05\.nc not found"):
        user_index(tmp_path, DownscalingTier1(months="2019-04,2019-05"))
    with pytest.raises(MissingFileError, match=r"_2016-04\.nc, .* and 18 more not found"):
        user_index(tmp_path, DownscalingTier1(dataset="training"))


def test_what_a_stand_in_lacks_is_refused(tmp_path):
    with pytest.raises(OptionError, match="only the months 2019-04 2020-04 2020-05"):
        ensure_stand_in(DownscalingTier1(months="2016-04"), tmp_path / "s", tiny=True)
    with pytest.raises(OptionError, match="dataset 'testing_aug'"):
        ensure_stand_in(DownscalingTier1(dataset="testing_aug"), tmp_path / "s", tiny=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.drop_vars("z_tar"), "has no variable 'z_tar'"),
        (lambda d: d.rename(lat="rlat"), r"'t2m_in' is float64 \(time, rlat, lon\), expected"),
        (lambda d: d.isel(lon=slice(120)), "dimension 'lon' has 120, expected 128"),
        (lambda d: d.astype("i4"), "'t2m_in' is int32"),
        (lambda d: d.drop_vars("time"), "has no variable 'time'"),
        (lambda d: d.where(d.lat < 50), "'t2m_in' has missing values"),
    ],
)
def test_another_schema_is_named(tier1, tmp_path, change, message):
    short_copy(tier1[1][0], tmp_path / "downscaling_tier1_2019-04.nc", change)
    with pytest.raises(FileFormatError, match=message) as raised:
        user_index(tmp_path, DownscalingTier1())
    assert "downscaling_tier1_2019-04.nc" in str(raised.value)


def test_a_copy_under_another_name_is_told(tier1, tmp_path):
    for month in ("2019-04", "2019-05"):
        short_copy(tier1[1][0], tmp_path / f"downscaling_tier1_{month}.nc")
    with pytest.raises(FileFormatError, match=r"holds 2019-04-01T00, which is in .*2019-04\.nc"):
        user_index(tmp_path, DownscalingTier1())


def test_a_file_cut_short_is_told(tier1, tmp_path):
    copy = Path(shutil.copy(tier1[1][0], tmp_path))
    with copy.open("rb+") as stream:
        stream.truncate(copy.stat().st_size - 1000)
    with pytest.raises(FileFormatError, match=copy.name):
        user_index(tmp_path, DownscalingTier1())


def test_a_file_cut_short_after_indexing_is_told(tier1, tmp_path):
    copy = short_copy(tier1[1][0], tmp_path / "downscaling_tier1_2019-04.nc")
    index = user_index(tmp_path, dataset := DownscalingTier1())
    with copy.open("rb+") as stream:
        stream.truncate(copy.stat().st_size // 2)
    with pytest.raises(FileFormatError, match=r"bytes, its dataset was opened with"):
        make_sample(dataset, index.where[4])


def test_pickles_stay_small_for_many_files(tier2):
    assert len(pickle.dumps(tier2[0])) < 40_000


def test_the_stand_in_is_of_the_schema(tier):
    number, _, files, _ = tier
    schema = FACTORIES[number]
    for data in opened(files):
        assert set(data.data_vars) == {field.name for field in schema.fields}
        assert all(data.sizes[axis.name] == axis.length for axis in schema.axes[1:])
        assert data.indexes["time"].is_monotonic_increasing
        for field in schema.fields:
            assert data[field.name].dtype == np.float64
            assert data[field.name].min() >= field.low
            assert data[field.name].max() <= field.high
            assert data[field.name].std() > 0.02 * (field.high - field.low)


def test_tier1_coordinates_are_the_published_ones(tier1):
    data = opened(tier1[1])[0]
    np.testing.assert_allclose(data.lat[[0, -1]], [54.5, 45.0])
    np.testing.assert_allclose(data.lon[[0, -1]], [4.0, 16.7])
    assert [len(each.time) for each in opened(tier1[1])] == [60, 60, 62]


def test_sizes_of_stand_ins():
    sizes = {
        (number, scale): FACTORIES[number]().synthesis_nbytes(scale=scale, tiny=False) / 1e9
        for number in (1, 2)
        for scale in (None, 1.0)
    }
    expected = {(1, None): 0.288, (1, 1.0): 0.72, (2, None): 0.87, (2, 1.0): 271.5}
    assert sizes == pytest.approx(expected, rel=0.01)


def test_a_small_scale_shortens_the_month():
    dataset = DownscalingTier2()
    plan = dataset.stand_in(scale=0.001, tiny=False, seed=0)
    assert (len(plan.keys), len(dataset.times(plan.keys[0], plan.n_steps))) == (1, 214)


def test_both_variants_share_what_is_known_of_files(tier2, tmp_path, monkeypatch):
    file = tmp_path / "downscaling_tier2_2016-01.nc"
    short_copy(tier2[1][0], file)
    os.utime(file, (1.6e9, 1.6e9))  # of a file just written nothing is kept
    user_index(tmp_path, DownscalingTier2())

    def refuse(path):
        raise AssertionError(f"{path} was inspected again")

    monkeypatch.setattr(inspected, "inspect_netcdf", refuse)
    published = user_index(tmp_path, DownscalingTier2(variant="published"))
    assert len(published) == 5
    assert published.setup  # the moments of other variables
    dataset = DownscalingTier2()
    index = user_index(tmp_path, dataset)
    assert not index.setup
    assert np.isfinite(make_sample(dataset, index.where[1])["inputs"]).all()
