"""Zarr by the driver: probes that end early, resumed stores, one plan in other hands."""

from __future__ import annotations

import json

import numpy as np
import pytest
from converting import convert

from iobench.recording import clocks
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_store
from iobench.testing import MadeUpDataset, random_sample
from iobench_converters.zarr_groups import FORMAT

pytest.importorskip("numcodecs", reason="needs pip install 'iobench[zarr]'")

SPEC = SampleSpec(
    (
        Variable("x", (3, 5), "f4", ("y", "x"), "K"),
        Variable("u", (3, 5), "f4", ("y", "x"), "m s-1"),
        Variable("t", (), "i4", (), role="target"),
    )
)
THREE_A_SHARD = 3 * SPEC.nbytes
OPTIONS = {"codec": "blosc-lz4", "inner-chunk": "y=2"}
CHUNKS = {"codec": "zstd", "chunk-samples": "3"}


class EndingAt(MadeUpDataset):
    """Ends the budget, or the process's patience, before the sample of one number is read."""

    def __init__(self, number, action):
        super().__init__(SPEC)
        self.number, self.action = number, action

    def read(self, where):
        if where == self.number:
            self.action()
        return super().read(where)


def run(path, dataset=None, **more):
    dataset = dataset or MadeUpDataset(SPEC)
    return convert(
        dataset, dataset.index(10), FORMAT, path, **{"shard_nbytes": THREE_A_SHARD} | more
    )


def shapes(path):
    metadata = json.loads((path / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    assert all(
        values == json.loads((path / name / "zarr.json").read_text())
        for name, values in metadata.items()
    )
    return {name: values["shape"] for name, values in metadata.items()}


@pytest.mark.parametrize("options", [{}, OPTIONS, CHUNKS], ids=["raw", "everything", "chunks"])
def test_a_store_converted_is_a_group_of_the_right_shape(tmp_path, options):
    store = run(tmp_path / "store", samples=[7, 0, 3, 9], options=options)
    assert shapes(store.path) == {"x": [4, 3, 5], "u": [4, 3, 5], "t": [4]}
    for position, number in enumerate([7, 0, 3, 9]):
        for name, values in random_sample(SPEC, number).items():
            assert store[position][name].tobytes() == values.tobytes()
    assert verify_store(open_store(store.path))


@pytest.mark.parametrize("options", [{}, CHUNKS], ids=["raw", "chunks"])
@pytest.mark.parametrize("last", [1, 2, 3, 4, 5])
def test_a_probe_that_ends_early_has_the_shape_of_what_it_holds(
    tmp_path, monkeypatch, last, options
):
    zarr = pytest.importorskip("zarr", minversion="3", reason="needs pip install 'iobench[zarr]'")

    clock = {"ns": 0}
    monkeypatch.setattr(clocks, "now_ns", lambda: clock["ns"])
    dataset = EndingAt(last, lambda: clock.update(ns=100_000_000_000))
    store = run(tmp_path / "store", dataset, limit_s=60, options=options)
    held = len(store)
    assert 1 <= held < 10
    assert shapes(store.path) == {"x": [held, 3, 5], "u": [held, 3, 5], "t": [held]}
    read = zarr.open_group(store.path, mode="r")["x"][:]
    expected = np.stack([random_sample(SPEC, number)["x"] for number in range(held)])
    assert read.tobytes() == expected.tobytes()
    verify_store(store)
