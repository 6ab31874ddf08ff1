"""What NVIDIA DALI reads in ``.npy`` files is what was written.

``np.load`` is in test_numpy_records.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from iobench.samples import SampleSpec, Variable
from iobench.testing import random_sample, write_store
from iobench_converters.numpy_records import FORMAT

GRID = ("y", "x")
SPEC = SampleSpec(
    (
        Variable("fields", (2, 96, 130), "f4", ("channel", *GRID), "K"),
        Variable("mask", (300, 300), "u1", GRID),
        Variable("level", (1 << 14,), "f8", ("x",)),
        Variable("half", (200, 200), "f2", GRID),
        Variable("code", (200, 200), "i2", GRID),
    )
)

READ_WITH_DALI = """
import sys
from pathlib import Path
import numpy as np
from nvidia.dali import fn, pipeline_def


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def pipeline(files):
    return fn.readers.numpy(files=files)


found = {}
for name in sys.argv[3:]:
    files = sorted(map(str, Path(sys.argv[2]).glob(f"shard-*.{name}.npy")))
    one = pipeline(files)
    one.build()
    found[name] = np.concatenate([np.array(one.run()[0].at(0)) for _ in files])
np.savez(sys.argv[1], **found)
"""


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("dali")
def test_dali_reads_equal_values(tmp_path, read_elsewhere):
    samples = [random_sample(SPEC, seed) for seed in range(5)]
    store = write_store(tmp_path / "store", FORMAT, SPEC, samples)
    assert len(store.manifest.shards) > 1
    found = read_elsewhere(READ_WITH_DALI, store.path, *SPEC.names)
    for variable in SPEC:
        values = np.stack([sample[variable.name] for sample in samples])
        assert found[variable.name].dtype == values.dtype
        assert found[variable.name].shape == values.shape
        assert found[variable.name].tobytes() == values.tobytes(), variable.name
