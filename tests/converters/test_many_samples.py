"""What small samples cost: calls are counted, no time is taken."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

from iobench.samples import SampleSpec, Variable
from iobench.stores.plan import fingerprint
from iobench.stores.shard_writer import ShardPlan
from iobench.testing import random_sample
from iobench_converters import numpy_records, tfrecord, zarr_groups

SPEC = SampleSpec(
    (
        Variable("levels", (40, 5), "f4", ("level", "quantity")),
        Variable("halves", (41, 2), "f4", ("half_level", "quantity")),
        Variable("scalars", (7,), "f4", ("quantity",)),
    )
)
CASES = [
    (numpy_records.FORMAT, {}),
    (tfrecord.FORMAT, {}),
    (tfrecord.FORMAT, {"encoding": "bytes"}),
    (zarr_groups.FORMAT, {}),
    (zarr_groups.FORMAT, {"inner-chunk": "level=16"}),
]


@contextmanager
def counted():
    """Count calls of all functions, and those of others than Python's by name."""
    calls = Counter()

    def count(frame, event, called):
        if event == "call":
            calls["all"] += 1
        elif event == "c_call":
            calls["all"] += 1
            calls[called.__name__] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def calls_of_writing(folder, fmt, options, n_samples):
    samples = [random_sample(SPEC, seed % 4) for seed in range(500)]
    rows = {name: np.stack([each[name] for each in samples]) for name in SPEC.names}
    folder.mkdir()
    with counted() as calls:
        writer = fmt.writer(folder, SPEC, ShardPlan(0, n_samples, n_samples), options)
        encode = fmt.encoder(SPEC, options)
        for _ in range(n_samples // 500):
            writer.append(encode(rows))
        writer.close()
    return calls


@pytest.mark.parametrize(
    ("fmt", "options"), CASES, ids=["-".join([fmt.name, *o.values()]) for fmt, o in CASES]
)
def test_calls_of_a_sample_do_not_grow_with_their_number(tmp_path, fmt, options):
    few = calls_of_writing(tmp_path / "few", fmt, options, 1000)
    many = calls_of_writing(tmp_path / "many", fmt, options, 4000)
    assert many["all"] <= 4.05 * few["all"]
    assert many["all"] <= 20 * 4000  # a check, and for each array its copy and its checksum
    assert many["write"] <= 4 * few["write"] <= 40


def test_fingerprints_of_many_files_cost_the_same_each(tmp_path):
    files = [tmp_path / f"{number:04d}.nc" for number in range(400)]
    for file in files:
        file.write_bytes(os.urandom(100))
    found = []
    for chosen in (files[:100], files):
        with counted() as calls:
            for file in chosen:
                fingerprint(file)
        found.append(calls["stat"] + calls["open"] + calls["read"])
    assert 0 < found[1] <= 4 * found[0]
    assert np.ceil(found[0] / 100) <= 6
