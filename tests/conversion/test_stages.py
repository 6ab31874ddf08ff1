"""``--stage decoded``: what is kept when preprocessing is left out."""

from __future__ import annotations

import numpy as np
import pytest

from iobench.conversion.preparing import decoded_samples
from iobench.datasets.contract import SampleIndex, make_sample
from iobench.errors import OptionError, SampleError
from iobench.samples import SampleSpec, Variable

SPEC = SampleSpec((Variable("mean", (4,), "<f4", ("x",), "K"), Variable("n", (), "<i8", ())))


class Fields:
    """Samples of big-endian bytes whose mean over a dimension is the finished sample."""

    name = "fields"
    title = ""
    published = None
    thread_safe = True

    def __init__(self, fused=(), lengths=lambda where: (24, 8)) -> None:
        self.fused = fused
        self.lengths = lengths

    def read(self, where):
        if "decode" in self.fused[1:]:
            return self.decode([bytes(n) for n in self.lengths(where)], where)
        return [bytes([where % 256]) * n for n in self.lengths(where)]

    def decode(self, raw, where):
        pair = np.frombuffer(raw[0], ">i2").reshape(3, 4)
        return {"field": pair, "n": np.frombuffer(raw[1], "<i8")[0]}

    def preprocess(self, arrays, where):
        return {"mean": arrays["field"].mean(axis=0).astype("f4"), "n": arrays["n"]}


def index(n: int = 5) -> SampleIndex:
    return SampleIndex(SPEC, range(n), provenance={"normalisation": {"scale": 2}, "kind": "own"})


def test_decoded_arrays_are_kept_little_endian() -> None:
    dataset, samples = decoded_samples(Fields(), index())
    assert samples.provenance == {"kind": "own"}  # what normalises comes later
    assert [(v.name, v.shape, v.dtype, v.dims) for v in samples.spec] == [
        ("field", (3, 4), "<i2", ("field_0", "field_1")),
        ("n", (), "<i8", ()),
    ]
    sample = make_sample(dataset, 3)
    samples.spec.check(sample, where="it")
    assert (sample["field"] == 0x0303).all()
    assert dataset.thread_safe


def test_decoded_of_a_source_that_reads_arrays() -> None:
    dataset, samples = decoded_samples(Fields(fused=("read", "decode")), index())
    assert dataset.fused == ("read", "decode")
    samples.spec.check(make_sample(dataset, 0), where="it")


def test_what_is_done_in_one_cannot_be_kept_apart() -> None:
    with pytest.raises(OptionError, match=r"decode\+preprocess in one"):
        decoded_samples(Fields(fused=("decode", "preprocess")), index())


def test_arrays_that_are_no_numbers_are_refused() -> None:
    class Dated(Fields):
        def decode(self, raw, where):
            return {"time": np.array(["2020-01-01"], "M8[s]")}

    with pytest.raises(SampleError, match=r"'time'.*is not a number"):
        decoded_samples(Dated(), index())
