"""Samples of any spec, in any format and any order, arrive as they are stored."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.store_source import StoreSource
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.stores.contract import Store

DTYPES = ["<f4", "<f8", "<f2", "<i8", "<i4", "<u2", "|u1", "|b1", "<c8"]
SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
SPECS = st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1, max_size=4).map(
    lambda pairs: SampleSpec(
        tuple(
            Variable(f"v{number}", shape, dtype, tuple("xyz"[: len(shape)]))
            for number, (dtype, shape) in enumerate(pairs)
        )
    )
)
FORMATS = [("numpy", {}), ("tfrecord", {}), ("tfrecord", {"encoding": "bytes"}), ("zarr", {})]


@pytest.mark.parametrize(("fmt", "options"), FORMATS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=SPECS, chosen=st.lists(st.integers(0, 5), min_size=1, max_size=9), seed=st.integers(0))
def test_rows_are_the_samples_of_any_spec(
    store_writer: Callable[..., Store],
    fmt: str,
    options: dict[str, str],
    spec: SampleSpec,
    chosen: list[int],
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    samples: list[dict[str, Any]] = []
    for _ in range(6):
        data = {v.name: random.integers(0, 256, v.nbytes, dtype=np.uint8) for v in spec}
        for variable in spec:
            if variable.dtype == "|b1":
                data[variable.name] &= 1
        samples.append({v.name: data[v.name].view(v.dtype).reshape(v.shape) for v in spec})
    with tempfile.TemporaryDirectory() as folder:
        store = store_writer(
            Path(folder), spec, samples, fmt, options=options, shards=[4, 2], encoding=None
        )
        source = pickle.loads(pickle.dumps(StoreSource(store, verify=True)))
        rows = {v.name: np.full((len(chosen), *v.shape), 7, v.dtype) for v in spec}
        filler = source.filler()
        filler.fill(np.array(chosen), rows, BatchLog())
        filler.close()
        for row, sample in enumerate(chosen):
            for name, values in rows.items():
                assert values[row].tobytes() == samples[sample][name].tobytes()
        store.close()
