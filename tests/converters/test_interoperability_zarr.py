"""What other libraries read in a Zarr store is what was written."""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest

from iobench.samples import Packed, SampleSpec, Variable
from iobench.stores.labels import unique_dims
from iobench.testing import EVERY_DTYPE, random_sample, write_store
from iobench_converters.zarr_groups import FORMAT
from iobench_converters.zarr_metadata import ZarrOptions, plan_arrays

OPTIONS = [
    {},
    {"codec": "blosc-lz4"},
    {"inner-chunk": "y=33,x=3"},
    {"codec": "blosc-lz4", "inner-chunk": "y=33"},
    {"codec": "zstd:level=3", "chunk-samples": "2"},
    {"codec": "shuffle,lz4", "chunk-samples": "4", "inner-chunk": "x=33"},
]
N_EACH = [int(options.get("chunk-samples", "1")) for options in OPTIONS]
N_SAMPLES = 5
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs")  # which are not Zarr's own
GRID = ("y", "x")
SPEC = SampleSpec(
    (
        *EVERY_DTYPE,
        Variable("winds", (2, 80, 80), "f4", ("channel", *GRID), "m s-1", channels=("u", "v")),
        Variable("t2m", (80, 80), "f4", GRID, "K"),
        Variable("x", (80, 80), "f4", GRID, "m"),  # named like one of its dimensions
        Variable("y/2", (4,), "f8", ("sample",), role="target"),
    )
)

READ_WITH_TENSORSTORE = """
import sys
from pathlib import Path
import numpy as np
import tensorstore as ts

root = Path(sys.argv[2])
found = {}
for folder in sorted(path.parent.name for path in root.glob("*/zarr.json")):
    kvstore = {"driver": "file", "path": str(root / folder)}
    array = ts.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result()
    assert array.domain.labels[0] == "sample", array.domain
    found[folder] = array.read().result()
np.savez(sys.argv[1], **found)
"""


@pytest.fixture(params=OPTIONS, ids=lambda options: ",".join(options.values()))
def written(request, tmp_path, monkeypatch):
    """Return the folder of a store, and what each of its arrays should hold."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    samples = [random_sample(SPEC, seed) for seed in range(N_SAMPLES)]
    path = tmp_path / "store"
    write_store(path, FORMAT, SPEC, samples, options=request.param)
    dims = unique_dims([(variable.shape, variable.dims) for variable in SPEC])
    return path, {
        array.folder: (np.stack([sample[name] for sample in samples]), ("sample", *own))
        for array, name, own in zip(
            plan_arrays(SPEC, ZarrOptions.parse(request.param)), SPEC.names, dims, strict=True
        )
    }


@pytest.mark.quick_cases(1)
def test_xarray_reads_equal_values_with_named_dimensions(written):
    xarray = pytest.importorskip("xarray", reason="needs pip install 'iobench[zarr]'")
    pytest.importorskip("zarr", reason="needs pip install 'iobench[zarr]'")
    path, expected = written
    with xarray.open_zarr(path) as opened:
        assert set(opened.variables) == set(expected)
        assert opened.sizes["sample"] == N_SAMPLES
        for name, (values, dims) in expected.items():
            assert opened[name].dims == dims
            assert opened[name].dtype == values.dtype
            assert opened[name].values.tobytes() == values.tobytes(), name
        assert opened["winds"].attrs["units"] == "m s-1"
        assert opened["winds"].attrs["channels"] == ["u", "v"]


def test_zarr_reads_equal_values(written):
    zarr = pytest.importorskip("zarr", minversion="3", reason="needs pip install 'iobench[zarr]'")
    path, expected = written
    group = zarr.open_group(path, mode="r")
    assert set(group.array_keys()) == set(expected)
    for name, (values, _) in expected.items():
        array = group[name]
        assert array.shards[0] % array.chunks[0] == 0
        assert array.chunks[0] in N_EACH
        assert array[:].tobytes() == values.tobytes(), name
        assert array[3].tobytes() == values[3].tobytes(), name
        reopened = zarr.open_array(path / name, mode="r")  # without what the group says of it
        assert reopened[-1].tobytes() == values[-1].tobytes(), name


@pytest.mark.timeout(120)
def test_tensorstore_reads_equal_values(written, read_elsewhere):
    """In a process of its own: its threads do not survive the forks of other tests."""
    if find_spec("tensorstore") is None:
        pytest.skip("needs pip install tensorstore")
    path, expected = written
    if "numcodecs" in (path / "winds/zarr.json").read_text():
        pytest.skip("TensorStore knows no codecs of numcodecs")
    found = read_elsewhere(READ_WITH_TENSORSTORE, path)
    assert set(found) == set(expected)
    for name, (values, _) in expected.items():
        assert found[name].tobytes() == values.tobytes(), name


def test_xarray_unpacks_linear_packing(tmp_path):
    xarray = pytest.importorskip("xarray", reason="needs pip install 'iobench[zarr]'")
    pytest.importorskip("zarr", reason="needs pip install 'iobench[zarr]'")
    packed = Packed("<f4", 0.5, 200.0)
    spec = SampleSpec((Variable("t", (3,), "i2", ("x",), "K", packed=packed),))
    sample = {"t": np.array([-3, 0, 7], dtype="i2")}
    write_store(tmp_path, FORMAT, spec, [sample])
    with xarray.open_zarr(tmp_path) as opened:
        np.testing.assert_array_equal(opened["t"].values, [[198.5, 200.0, 203.5]])
