"""Samples along several dimensions, converted with little memory: each chunk is decoded once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray
from converting import content, convert
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.datasets.contract import no_progress
from iobench.datasets.user_files import user_files
from iobench_converters import numpy_records, tfrecord

ROOM = 1 << 30
DIMS = {"v0": ("time", "number", "level", "x"), "v1": ("x", "number", "time")}

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def write(path, lengths, chunks):
    rng = np.random.default_rng(1)
    made = xarray.Dataset(
        {
            name: (dims, rng.integers(0, 50, [lengths[dim] for dim in dims]).astype("f4"))
            for name, dims in DIMS.items()
        }
    )
    encoding = {
        name: {"chunksizes": chunk, "zlib": True} for name, chunk in chunks.items() if chunk
    }
    made.to_netcdf(path, engine="netcdf4", encoding=encoding)
    return made


def opened(path, dims):
    places = SimpleNamespace(
        stand_in=False, progress=no_progress, cache_dir=Path(tempfile.mkdtemp(dir=path.parent))
    )
    dataset = user_files([path], sample_dim=",".join(dims))
    files = dataset.files(places)
    return dataset, dataset.samples(files, places)


@st.composite
def conversions(draw):
    lengths = {dim: draw(st.integers(1, most)) for dim, most in
               {"time": 8, "number": 5, "level": 3, "x": 7}.items()}  # fmt: skip
    chunks = {}
    for name, dims in DIMS.items():
        cut = tuple(draw(st.integers(1, lengths[dim])) for dim in dims)
        chunks[name] = draw(st.sampled_from([cut, cut, cut, None]))
    n_samples = lengths["time"] * lengths["number"]
    return SimpleNamespace(
        lengths=lengths,
        chunks=chunks,
        dims=draw(st.permutations(("time", "number"))),
        n_in_shard=draw(st.integers(1, n_samples)),
        samples=draw(
            st.one_of(
                st.none(),
                st.lists(st.integers(0, n_samples - 1), min_size=1, max_size=20, unique=True),
            )
        ),
        fmt=draw(st.sampled_from([numpy_records.FORMAT, tfrecord.FORMAT])),
        spare=draw(st.integers(0, 3000)),
    )


@pytest.mark.thorough
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(case=conversions())
def test_the_bytes_are_those_of_one_group_and_each_chunk_is_decoded_once(decoded, case):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "own.nc"
        made = write(source, case.lengths, case.chunks)
        dataset, index = opened(source, case.dims)
        shard_nbytes = case.n_in_shard * index.spec.nbytes
        more = {"samples": case.samples, "shard_nbytes": shard_nbytes, "workers": 2}
        large, small = Path(folder) / "large", Path(folder) / "small"
        store = convert(dataset, index, case.fmt, large, memory_nbytes=ROOM, **more)
        numbers = range(len(index)) if case.samples is None else case.samples
        for place, number in enumerate(numbers):
            at = dict(zip(case.dims, index.where[number][1:], strict=True))
            for name in DIMS:
                np.testing.assert_array_equal(store[place][name], made[name].isel(at).values)
        store.close()
        decoded.clear()
        memory_nbytes = dataset.band_nbytes() + case.spare
        convert(dataset, index, case.fmt, small, memory_nbytes=memory_nbytes, **more).close()
        assert content(small) == content(large)
        assert set(decoded.values()) <= {1}
