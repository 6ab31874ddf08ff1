"""Without an encoding every format gives back every bit, of any sample there may be."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from converting import convert
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.datasets.sample_windows import samples_in_order
from iobench.samples import SampleSpec, Variable
from iobench.stores.verification import verify_against, verify_store
from iobench.testing import MadeUpDataset, random_sample
from iobench_converters import numpy_records, tfrecord, zarr_groups

FORMATS = {"numpy": numpy_records.FORMAT, "tfrecord": tfrecord.FORMAT, "zarr": zarr_groups.FORMAT}
DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]
SPECIAL = [np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 5e-324]
SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple) | st.just((3, 80, 81))
SPECS = st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=4).map(
    lambda given: SampleSpec(
        tuple(
            Variable(f"v{number}", shape, dtype, tuple(f"d{axis}" for axis in range(len(shape))))
            for number, (shape, dtype) in enumerate(given)
        )
    )
)
pytestmark = pytest.mark.timeout(120)


class Special(MadeUpDataset):
    """Random bits, and among them what is easily lost."""

    def decode(self, raw, where):
        arrays = random_sample(self.spec, int.from_bytes(raw[0], "little"))
        for array in arrays.values():
            if array.dtype.kind == "f":
                flat = array.reshape(-1)
                with np.errstate(under="ignore"):
                    flat[: len(SPECIAL)] = np.array(SPECIAL[: flat.size], array.dtype)
        return arrays


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(spec=SPECS, n_samples=st.integers(1, 5), shard_n_samples=st.integers(1, 3))
def test_every_bit_comes_back(tmp_path, fmt, spec, n_samples, shard_n_samples):
    path = tmp_path / "store"
    shutil.rmtree(path, ignore_errors=True)
    dataset = Special(spec)
    index = dataset.index(n_samples)
    store = convert(
        dataset, index, fmt, path, shard_nbytes=shard_n_samples * spec.nbytes, workers=2
    )
    assert (len(store), store.spec) == (n_samples, spec)
    assert store.manifest.lossy == {}
    made = list(samples_in_order(dataset, index, range(n_samples)))
    for number, sample in enumerate(made):
        found = store[number]
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in sample.items()
        }
    verify_store(store, workers=2)
    assert verify_against(store, index, lambda numbers: (made[n] for n in numbers)).same
    store.close()
