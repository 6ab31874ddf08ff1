"""Steps of datasets and stores, and the bytes they hand on."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from iobench.loaders.pipeline import dataset_pipeline
from iobench.recording.kinds import Kind
from iobench.samples import SharedBytes, handed_on_nbytes


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        ([b"abc", memoryview(bytes(5)), bytearray(2)], 10),
        ({"x": np.zeros(3, "<f4")}, 12),
        (MappingProxyType({"x": np.zeros(3, "<f4")}), 12),
        (np.zeros((2, 2), "<f8"), 32),
        ({"x": np.float32(1)}, 4),
        (b"abcd", 4),
        ([], 0),
        ([SharedBytes([memoryview(b"abc")]), {"x": SharedBytes([])}], 3),
        ([b"a", "text"], -1),
        (object(), -1),
    ],
)
def test_bytes_are_counted_or_unknown(value, nbytes):
    assert handed_on_nbytes(value) == nbytes


@pytest.mark.parametrize(
    ("fused", "expected"),
    [
        ((), [(Kind.READ, ""), (Kind.DECODE, ""), (Kind.PREPROCESS, "")]),
        (("read", "decode"), [(Kind.FUSED, "read+decode"), (Kind.PREPROCESS, "")]),
        (("decode", "preprocess"), [(Kind.READ, ""), (Kind.FUSED, "decode+preprocess")]),
    ],
)
def test_a_dataset_has_three_steps_and_fused_ones_are_one(fused, expected):
    dataset = SimpleNamespace(fused=fused, read=len, decode=len, preprocess=len)
    index = SimpleNamespace(spec=None, where=(1, 2))
    assert [(step.kind, step.label) for step in dataset_pipeline(dataset, index).steps] == expected
