"""DeepCAM and CosmoFlow: samples are what h5py and TensorFlow make of the same files."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.standins import ensure_stand_in
from iobench.errors import FileFormatError, MissingFileError
from iobench.stores import FeatureKind, frame_example
from iobench_mlperf_hpc.cosmoflow import LAYOUTS, CosmoFlow
from iobench_mlperf_hpc.deepcam import CHANNELS, DeepCam

KINDS = {"deepcam": DeepCam, **dict.fromkeys(LAYOUTS, CosmoFlow)}


def made(kind):
    return DeepCam() if kind == "deepcam" else CosmoFlow(layout=kind)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlperf-hpc")
    return {kind: ensure_stand_in(made(kind), folder / kind, tiny=True) for kind in KINDS}


@pytest.fixture(scope="module")
def stand_in_at(roots, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return lambda kind: FileLocator(stand_in=roots[kind], cache_dir=cache / kind)


@pytest.fixture
def opened(stand_in_at):
    def open_dataset(kind):
        dataset = made(kind)
        files = dataset.files(stand_in_at(kind))
        return dataset, files, dataset.samples(files, stand_in_at(kind))

    return open_dataset


@pytest.fixture
def folder(roots, tmp_path):
    """A copy of a stand-in that is no stand-in: the folders of splits alone."""

    def copied(kind):
        first = next(roots[kind].rglob("train"))
        shutil.copytree(first.parent, tmp_path / "data")
        return tmp_path / "data"

    return copied


def with_data_dir(dataset, data_dir, tmp_path):
    locator = FileLocator(data_dir=data_dir, cache_dir=tmp_path / "cache")
    files = dataset.files(locator)
    return files, dataset.samples(files, locator)


# ---- oracles


def test_deepcam_is_what_the_reference_makes_of_h5py(opened):
    dataset, files, index = opened("deepcam")
    with h5py.File(files[-1]) as stats:
        shift = stats["climate/minval"][...]
        scale = 1.0 / (stats["climate/maxval"][...] - shift)
    assert index.spec["data"].channels == tuple(CHANNELS)
    for where, file in zip(index.where, files[:-1], strict=True):
        ours = make_sample(dataset, where)
        with h5py.File(file) as opened_file:
            data = opened_file["climate/data"][...]
            label = opened_file["climate/labels_0"][...].astype(np.int64)
        np.testing.assert_array_equal(
            ours["data"], np.transpose(scale * (data - shift), (2, 0, 1)), strict=True
        )
        np.testing.assert_array_equal(ours["label"], label, strict=True)
        assert 0 <= ours["data"].min() < ours["data"].max() <= 1
        assert set(np.unique(label)) == {0, 1, 2}


@pytest.mark.parametrize("layout", ["tfrecord", "tfrecord-gzip"])
def test_cosmoflow_is_what_tensorflow_makes_of_tfrecords(opened, layout):
    tf = pytest.importorskip("tensorflow", reason="the reference reads with TensorFlow")
    dataset, files, index = opened(layout)
    compression = "GZIP" if layout.endswith("gzip") else None
    spec = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([4], tf.float32)}
    for where, file in zip(index.where, files, strict=True):
        (record,) = tf.data.TFRecordDataset([str(file)], compression_type=compression)
        found = tf.io.parse_single_example(record, spec)
        counts = tf.reshape(tf.io.decode_raw(found["x"], tf.int16), (16, 16, 16, 4))
        arrays = dataset.decode(dataset.read(where), where)
        np.testing.assert_array_equal(arrays["x"], counts.numpy(), strict=True)
        ours = make_sample(dataset, where)
        np.testing.assert_array_equal(ours["y"], found["y"].numpy(), strict=True)
        theirs = tf.math.log(tf.cast(counts, tf.float32) + tf.constant(1.0)).numpy()
        np.testing.assert_array_max_ulp(ours["x"], theirs, 1)


# ---- files


@pytest.mark.parametrize("kind", KINDS)
def test_splits_are_folders(opened, kind):
    _, files, index = opened(kind)
    for split, numbers in index.splits.items():
        assert {files[n].parent.name for n in numbers} == {split}
    assert list(map(len, index.splits.values())) == list(made(kind).tiny_files)


def test_the_published_folder_is_found_below_data_dir_and_a_split_alone(folder, tmp_path):
    data = folder("deepcam")
    dataset = DeepCam(split="validation")
    files, index = with_data_dir(dataset, data, tmp_path)
    assert [file.parent.name for file in files] == ["validation"] * 3 + ["data"]
    assert list(index.splits) == ["validation"]
    assert not index.provenance["stand_in"]
    shutil.rmtree(data / "validation")
    with pytest.raises(MissingFileError, match=r"no file \*.h5 of validation"):
        DeepCam(split="validation").files(FileLocator(data_dir=data, cache_dir=tmp_path))
    assert len(DeepCam().files(FileLocator(data_dir=data, cache_dir=tmp_path))) == 6 + 2 + 1
    (data / "stats.h5").unlink()
    with pytest.raises(MissingFileError, match=r"stats.h5 not found"):
        DeepCam().files(FileLocator(data_dir=data, cache_dir=tmp_path))


# ---- bad input


def damage(kind, path):
    content = path.read_bytes()
    if kind == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "bit":
        raw = bytearray(gzip.decompress(content))
        raw[len(raw) // 2] ^= 1
        path.write_bytes(gzip.compress(bytes(raw)))
    elif kind == "more":
        path.write_bytes(gzip.compress(gzip.decompress(content) * 3))
    elif kind == "other":
        path.write_bytes(b"not a TFRecord file at all")
    else:
        path.unlink()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cut", "compressed bytes end early"),
        ("bit", "checksum of the example's data is wrong"),
        ("more", "more than the"),
        ("other", "checksum of the length is wrong"),
        ("gone", "is gone"),
    ],
)
def test_a_damaged_tfrecord_is_one_line_that_names_the_file(folder, tmp_path, kind, said):
    dataset = CosmoFlow()
    files, index = with_data_dir(dataset, folder("tfrecord-gzip"), tmp_path)
    damage(kind, files[2])
    where = index.where[2]
    with pytest.raises(FileFormatError, match=said) as raised:
        dataset.decode(dataset.read(where), where)
    assert str(raised.value).count(str(files[2])) == 1
    assert "\n" not in str(raised.value)


def rewritten(path, change):
    with h5py.File(path, "r+") as file:
        change(file)


def other_shape(file):
    del file["climate/data"]
    file["climate/data"] = np.zeros((48, 72, 15), dtype=np.float32)


def flat_channel(file):
    file["climate/maxval"][3] = file["climate/minval"][3]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train/data-1996-01-01-01-1.h5", other_shape, r"has .*15\).*expected .*\(48, 72, 16\)"),
        ("train/data-1996-01-01-01-1.h5", lambda file: file.pop("climate"), "no group 'climate'"),
        ("stats.h5", flat_channel, "expected climate/minval"),
        (
            "stats.h5",
            lambda file: file["climate"].pop("minval"),
            "expected climate/minval",
        ),
    ],
)
def test_a_deepcam_file_of_another_schema_is_refused(folder, tmp_path, name, change, said):
    data = folder("deepcam")
    rewritten(data / name, change)
    with pytest.raises(FileFormatError, match=said) as raised:
        with_data_dir(DeepCam(), data, tmp_path)
    assert Path(name).name in str(raised.value)


@pytest.mark.parametrize("size", [0, 16**3 * 3, 16**2 * 4])
def test_a_cosmoflow_file_that_is_no_cube_is_refused(folder, tmp_path, size):
    data = folder("tfrecord")
    counts, parameters = np.zeros(size, dtype=np.int16), np.zeros(4, dtype=np.float32)
    example = [("x", FeatureKind.BYTES, counts), ("y", FeatureKind.FLOAT, parameters)]
    for path in data.rglob("*.tfrecord"):
        path.write_bytes(b"".join(map(bytes, frame_example(example))))
    with pytest.raises(FileFormatError, match=r"expected a cube of 4 redshifts"):
        with_data_dir(CosmoFlow(layout="tfrecord"), data, tmp_path)
