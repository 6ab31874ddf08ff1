"""What the radiation plugin's own parser and NVIDIA DALI read in TFRecords is what was written.

TensorFlow's ``parse_single_example`` is in test_tfrecord.py.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from converting import convert

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.samples import SampleSpec, Variable
from iobench.testing import random_sample, write_store
from iobench_converters.tfrecord import FORMAT

SPEC = SampleSpec(
    (
        Variable("fields", (3, 11, 7), "f4", ("channel", "y", "x"), "K"),
        Variable("t2m", (), "f4", ()),
        Variable("month", (2,), "i8", ("end",)),
    )
)

READ_WITH_PLUGIN = """
import sys
import numpy as np
from climetlab_maelstrom_radiation.radiation_tf import radiation_tf

dataset = radiation_tf(path=sys.argv[2], hr_units="K s-1", shuffle_files=False)
batches = dataset.to_tfdataset(batch_size=64, shuffle=False)
(batch,) = batches.as_numpy_iterator()
np.savez(sys.argv[1], **batch[0], **batch[1])
"""

READ_WITH_DALI = """
import sys
import numpy as np
from nvidia.dali import fn, pipeline_def, tfrecord

features = {
    "fields": tfrecord.FixedLenFeature((3, 11, 7), tfrecord.float32, 0.0),
    "t2m": tfrecord.FixedLenFeature((), tfrecord.float32, 0.0),
    "month": tfrecord.FixedLenFeature((2,), tfrecord.int64, 0),
}


@pipeline_def(batch_size=5, num_threads=1, device_id=None)
def pipeline():
    files = sys.argv[2:]
    indexes = [file.removesuffix("tfrecord") + "idx" for file in files]
    read = fn.readers.tfrecord(path=files, index_path=indexes, features=features)
    return tuple(read[name] for name in features)


one = pipeline()
one.build()
found = dict(zip(features, one.run()))
np.savez(sys.argv[1], **{name: np.array(values.as_array()) for name, values in found.items()})
"""


@pytest.mark.long
@pytest.mark.timeout(120)
def test_radiation_plugin_parses_what_was_converted(tmp_path, tiny_root, read_elsewhere):
    """Upstream's feature names and shapes: its training script can read the store as it is."""
    for module in ("tensorflow", "climetlab_maelstrom_radiation"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")
    from iobench_maelstrom.radiation.tf_dataset import RadiationTf

    dataset = RadiationTf(hr_units="K s-1")
    root = tiny_root(dataset)
    locator = FileLocator(stand_in=root, cache_dir=tmp_path / "cache")
    index = dataset.samples(dataset.files(locator), locator)
    path = tmp_path / "store"
    path.mkdir()
    store = convert(dataset, index, FORMAT, path, samples=range(40, 60))
    (shard,) = path.glob("*.tfrecord")
    (tmp_path / "triplecloud0.0.tfrecord").symlink_to(shard)  # the name the plugin asks for
    found = read_elsewhere(READ_WITH_PLUGIN, tmp_path)
    assert set(found) == set(store.spec.names)
    expected = [make_sample(dataset, index.where[number]) for number in range(40, 60)]
    for name in store.spec.names:
        values = np.stack([sample[name] for sample in expected])
        assert found[name].shape == values.shape
        assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("dali")
def test_dali_reads_equal_values_by_the_index(tmp_path, read_elsewhere):
    samples = [random_sample(SPEC, seed) for seed in range(5)]
    store = write_store(tmp_path / "store", FORMAT, SPEC, samples)
    files = sorted(store.path.glob("*.tfrecord"))
    found = read_elsewhere(READ_WITH_DALI, *files)
    for variable in SPEC:
        values = np.stack([sample[variable.name] for sample in samples])
        assert found[variable.name].tobytes() == values.tobytes(), variable.name
