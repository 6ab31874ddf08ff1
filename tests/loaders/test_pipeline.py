"""Steps of datasets and stores, and the bytes they hand on."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest

from iobench.loaders.pipeline import dataset_pipeline
from iobench.recording.kinds import Kind
from iobench.samples import SharedBytes, handed_on_nbytes


class Source:
    def __init__(self, fused=()):
        self.fused = fused

    def read(self, where):
        return where

    def decode(self, raw, where):
        return raw

    preprocess = decode


class Index:
    spec = None
    where = (1, 2)


def kinds(*fused):
    return [(s.kind, s.label) for s in dataset_pipeline(Source(fused), Index()).steps]


def test_a_dataset_has_three_steps():
    assert kinds() == [(Kind.READ, ""), (Kind.DECODE, ""), (Kind.PREPROCESS, "")]


def test_fused_steps_are_one():
    assert kinds("read", "decode") == [(Kind.FUSED, "read+decode"), (Kind.PREPROCESS, "")]
    assert kinds("decode", "preprocess") == [(Kind.READ, ""), (Kind.FUSED, "decode+preprocess")]


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
