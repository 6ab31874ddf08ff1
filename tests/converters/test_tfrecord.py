from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.errors import OptionError, SampleError, StoreError
from iobench.samples import SampleSpec, Variable
from iobench.stores.tfrecord import FRAME_NBYTES, FeatureKind, parse_example, scan_frames
from iobench.testing import EVERY_DTYPE, StoreTests, flip_bit, random_sample, write_store
from iobench_converters import tfrecord
from iobench_converters.tfrecord import FORMAT, ExampleDecoder

SPEC = SampleSpec(
    (
        Variable("fields", (3, 11, 7), "f4", ("channel", "y", "x"), "K"),
        Variable("t2m", (), "f4", ()),
        Variable("month", (2,), "i8", ("end",)),
        Variable("seconds", (4,), "f8", ("step",)),
    )
)

READ_WITH_TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf

features = {
    "fields": tf.io.FixedLenFeature((3, 11, 7), tf.float32),
    "t2m": tf.io.FixedLenFeature((), tf.float32),
    "month": tf.io.FixedLenFeature((2,), tf.int64),
    "seconds": tf.io.FixedLenFeature((), tf.string),
}
found = {name: [] for name in features}
for record in tf.data.TFRecordDataset(sys.argv[2:]):
    parsed = tf.io.parse_single_example(record, features)
    parsed["seconds"] = tf.io.decode_raw(parsed["seconds"], tf.float64)
    for name, value in parsed.items():
        found[name].append(value.numpy())
np.savez(sys.argv[1], **found)
"""


class TestTFRecordStore(StoreTests):
    format = FORMAT


class TestTFRecordStoreOfBytes(StoreTests):
    format = FORMAT
    options = MappingProxyType({"encoding": "bytes"})


@pytest.fixture
def written(tmp_path):
    samples = [random_sample(SPEC, seed) for seed in range(5)]
    store = write_store(tmp_path / "store", FORMAT, SPEC, samples)
    return samples, [str(file) for file in sorted(store.path.glob("*.tfrecord"))]


def test_tensorflow_reads_equal_values(tensorflow_reads, written):
    samples, files = written
    found = tensorflow_reads(READ_WITH_TENSORFLOW, *files)
    for variable in SPEC:
        expected = np.stack([sample[variable.name] for sample in samples])
        assert found[variable.name].tobytes() == expected.tobytes(), variable.name


def test_tensorflow_finds_the_flipped_bit(tensorflow_reads, written):
    from tensorflow.errors import DataLossError

    _, files = written
    flip_bit(Path(files[1]), 200)
    with pytest.raises(DataLossError):
        tensorflow_reads(READ_WITH_TENSORFLOW, *files)


def test_floats_are_float_lists_and_other_numbers_lose_nothing(tmp_path):
    store = write_store(tmp_path, FORMAT, EVERY_DTYPE, [random_sample(EVERY_DTYPE, 0)])
    features = parse_example(store.read(store.extents(0))[0])
    kinds = {name.removeprefix("v_"): feature.kind for name, feature in features.items()}
    assert kinds["float32"] is kinds["scalar"] is FeatureKind.FLOAT
    assert kinds["int8"] is kinds["uint32"] is kinds["bool"] is FeatureKind.INT64
    assert kinds["float64"] is kinds["float16"] is kinds["uint64"] is FeatureKind.BYTES


def test_index_is_what_tfrecord2idx_writes(tmp_path):
    samples = [random_sample(SPEC, seed) for seed in range(3)]
    write_store(tmp_path, FORMAT, SPEC, samples, shard_n_samples=3)
    lines = (tmp_path / "shard-00000.idx").read_text().splitlines()
    frames = [tuple(map(int, line.split())) for line in lines]
    scanned = list(scan_frames(tmp_path / "shard-00000.tfrecord"))
    assert frames == [(offset - 12, nbytes + FRAME_NBYTES) for offset, nbytes in scanned]


def test_sample_beyond_what_an_example_can_hold_is_refused():
    spec = SampleSpec((Variable("x", (1 << 29,), "f4", ("x",)),))
    with pytest.raises(SampleError, match="format numpy"):
        FORMAT.encoder(spec, {})


def test_unknown_encoding_is_refused():
    with pytest.raises(OptionError, match=r"encoding=float\|bytes"):
        FORMAT.encoder(SPEC, {"encoding": "zip"})


_RECORDS = {}


def _one_record(tmp_path_factory, spec=SPEC):
    if spec not in _RECORDS:
        path = tmp_path_factory.mktemp("record")
        _RECORDS[spec] = write_store(path, FORMAT, spec, [random_sample(spec, 0)])
    return _RECORDS[spec]


FIXED = SampleSpec(tuple(variable for variable in SPEC if variable.name != "month"))


def outcome(decode, record):
    """The bits of the sample a decoder makes of a record, or what it says is wrong."""
    try:
        return {name: array.tobytes() for name, array in decode([memoryview(record)]).items()}
    except StoreError as error:
        return str(error)


@settings(max_examples=5 * settings().max_examples, deadline=None)
@given(st.data())
def test_a_record_read_by_the_layout_of_another_is_as_if_parsed(tmp_path_factory, data):
    store = _one_record(tmp_path_factory, FIXED)
    record = bytearray(store.read(store.extents(0))[0])
    warm = ExampleDecoder(FIXED)
    warm([memoryview(bytes(record))])
    damage = st.one_of(st.integers(0, len(record) - 1), st.integers(0, 30))
    for _ in range(data.draw(st.integers(0, 2))):
        record[data.draw(damage)] = data.draw(st.integers(0, 255))
    assert outcome(warm, record) == outcome(ExampleDecoder(FIXED), record)


@pytest.mark.parametrize(("spec", "parses"), [(FIXED, 1), (SPEC, 3)], ids=["fixed", "varints"])
def test_records_of_one_layout_are_parsed_once(tmp_path, monkeypatch, spec, parses):
    parsed = []
    monkeypatch.setattr(tfrecord, "parse_example", lambda r: parsed.append(r) or parse_example(r))
    samples = [random_sample(spec, seed) for seed in range(3)]
    store = write_store(tmp_path, FORMAT, spec, samples)
    for number, sample in enumerate(samples):
        assert {k: v.tobytes() for k, v in store[number].items()} == {
            k: v.tobytes() for k, v in sample.items()
        }
    assert len(parsed) == parses
