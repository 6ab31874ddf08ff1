"""TFRecords of columns are parsed without TensorFlow; damage is named by file and offset."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from iobench.chunks.decoded_chunks import reopen_files
from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, OptionError
from iobench.stores import FeatureKind, frame_example
from iobench_maelstrom.radiation.tf_dataset import FEATURES, RadiationTf

EXAMPLE_NBYTES = 20_576


@pytest.fixture(scope="module")
def tiny(tiny_of):
    return tiny_of(RadiationTf)


@pytest.fixture
def locator(tmp_path):
    return FileLocator(cache_dir=tmp_path / "cache")


@pytest.fixture
def file(tiny, tmp_path):
    """A copy of the file of tier-1, to be spoiled."""
    return Path(shutil.copy(RadiationTf().files(tiny.locator)[0], tmp_path))


def spoil(file, offset):
    content = bytearray(file.read_bytes())
    content[offset] ^= 4
    file.write_bytes(content)


def write_examples(path, examples):
    named = ([(name, FeatureKind.FLOAT, v) for name, v in each.items()] for each in examples)
    path.write_bytes(b"".join(bytes(part) for each in named for part in frame_example(each)))


def example(seed=0, **more):
    random = np.random.default_rng(seed)
    features = {
        name: random.standard_normal(shape, dtype="f4") for name, (_, shape) in FEATURES.items()
    }
    return {name: values for name, values in (features | more).items() if values is not None}


@pytest.fixture
def written(tmp_path, tiny):
    """Write examples and open them: a function."""

    def write(*examples, **options):
        path = tmp_path / "written.tfrecord"
        write_examples(path, examples)
        reopen_files()
        dataset = RadiationTf(**options)
        return dataset, dataset.samples([path], tiny.locator)

    return write


def test_features_are_those_that_were_written(written):
    examples = [example(seed) for seed in range(3)]
    dataset, index = written(*examples, hr_units="K s-1")
    for where, features in zip(index.where, examples, strict=True):
        sample = make_sample(dataset, where)
        for name, values in features.items():
            np.testing.assert_array_equal(sample[name], values)


def test_an_example_has_the_published_size(tiny):
    assert {len(tiny.open(subset=f"tier-1{end}")[1]) for end in ("", "-val", "-test")} == {256}
    assert {file.stat().st_size for file in tiny.root.rglob("*.tfrecord")} == {256 * 20_576}
    _, index = tiny.open()
    assert index.spec.nbytes == 4 * 5092
    assert index.where[255][1:] == (255 * 20_576, 20_576)


def test_net_fluxes_and_rates_in_other_units(written):
    features = example()
    down, up = features["sw"].T
    dataset, index = written(features, netflux="true")
    sample = make_sample(dataset, index.where[0])
    np.testing.assert_array_equal(sample["sw"], down - up)
    np.testing.assert_array_equal(sample["hr_lw"], features["hr_lw"] * np.float32(86400))


def test_heating_rates_of_mcica_are_mended(written):
    features = example()
    dataset, index = written(features, dataset="mcica", hr_units="K s-1")
    rate = make_sample(dataset, index.where[0])["hr_sw"]
    np.testing.assert_allclose(rate, features["hr_sw"] * 9.80665 / 1004, rtol=1e-6)


def test_normalised_inputs(tiny):
    import xarray

    plain, index = tiny.open()
    sample = make_sample(plain, index.where[4])
    norm, _ = tiny.open(norm="true")
    found = make_sample(norm, index.where[4])
    bucket = next(tiny.root.rglob("maelstrom-ap3"))
    for name in ("sca_inputs", "col_inputs", "inter_inputs"):
        norms = xarray.load_dataset(bucket / f"{name}.nc")
        mean, std = norms[f"{name}_mean"].values, norms[f"{name}_std"].values
        np.testing.assert_array_equal(found[name], (sample[name] - mean) / std)
    solar, _ = tiny.open(norm="true", nonormsolar="true")
    scalars = make_sample(solar, index.where[4])["sca_inputs"]
    np.testing.assert_array_equal(scalars[1:-1][1:], found["sca_inputs"][2:-1])
    np.testing.assert_array_equal(scalars[[1, -1]], sample["sca_inputs"][[1, -1]])


def test_splits_follow_the_time_steps(tiny):
    _, index = tiny.open(timestep="0,2019013100,2019053100")
    assert index.splits == {
        "train": range(256), "validation": range(256, 512), "test": range(512, 768),
    }  # fmt: skip


@pytest.mark.parametrize("cut", [1, 15, 17, EXAMPLE_NBYTES - 5])
def test_truncated_file_is_named_with_its_offset(file, locator, cut):
    with file.open("rb+") as stream:
        stream.truncate(20 * EXAMPLE_NBYTES - cut)
    at = 19 * EXAMPLE_NBYTES
    with pytest.raises(FileFormatError, match=rf"triplecloud0\.0\.tfrecord at byte {at}: .*again"):
        RadiationTf().samples([file], locator)


def test_empty_and_foreign_files_are_named(tmp_path, locator):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileFormatError, match="is empty"):
        RadiationTf().samples([file], locator)
    file.write_bytes(b"no TFRecord file, and long enough")
    with pytest.raises(FileFormatError, match=r"at byte 0: checksum of the .* length is wrong"):
        RadiationTf().samples([file], locator)


@pytest.mark.parametrize("byte", [0, 9, 12, 200, EXAMPLE_NBYTES // 2, EXAMPLE_NBYTES - 1])
def test_one_flipped_bit_is_named_when_the_example_is_read(file, tiny, byte):
    at = 7 * EXAMPLE_NBYTES
    dataset = RadiationTf()
    spoil(file, at + byte)
    index = dataset.samples([file], tiny.locator)
    with pytest.raises(FileFormatError, match=rf"triplecloud0\.0\.tfrecord at byte {at}: .*wrong"):
        make_sample(dataset, index.where[7])
    make_sample(dataset, index.where[6])
    make_sample(dataset, index.where[8])


def test_examples_of_several_sizes_are_refused(written):
    longer = example(1, more=np.zeros(3, dtype="f4"))
    with pytest.raises(FileFormatError, match="its 3 examples differ in size"):
        written(longer, example(2), example(3))


def test_features_in_another_order_are_found(written):
    turned = dict(reversed(example(1).items()))
    dataset, index = written(example(2), turned, example(3))
    for number, seed in enumerate((2, 1, 3)):
        sample = make_sample(dataset, index.where[number])
        np.testing.assert_array_equal(sample["sca_inputs"], example(seed)["sca_inputs"])


def test_missing_and_misshapen_features_are_named(written):
    dataset, index = written(example(hr_sw=None))
    with pytest.raises(FileFormatError, match="at byte 0: feature 'hr_sw' has no floats"):
        make_sample(dataset, index.where[0])
    dataset, index = written(example(sw=np.zeros((10, 2), dtype="f4")))
    with pytest.raises(FileFormatError, match=r"'sw' has 20 floats, expected \(138, 2\)"):
        make_sample(dataset, index.where[0])


def test_a_deviation_of_zero_is_named(tiny, tmp_path):
    import netCDF4

    dataset = RadiationTf(norm="true", input_fields="sca_inputs")
    example_file, norms = dataset.files(tiny.locator)
    copy = Path(shutil.copy(norms, tmp_path))
    with netCDF4.Dataset(copy, "a") as opened:
        opened["sca_inputs_std"][3] = 0
    with pytest.raises(FileFormatError, match="expected 17 means and deviations above 0"):
        dataset.samples([example_file, copy], tiny.locator)


def test_stand_in_is_refused_for_what_it_does_not_hold():
    with pytest.raises(OptionError, match=r"TFR/TripCloud0\.0\.tfrecord was not found"):
        RadiationTf(dataset="mcica").stand_in_files(scale=None, tiny=True, seed=0)
