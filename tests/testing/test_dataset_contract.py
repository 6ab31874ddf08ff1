"""What authors' tests of a dataset refuse."""

from __future__ import annotations

import pytest

from iobench.datasets.contract import SampleIndex
from iobench.samples import SampleSpec, Variable
from iobench.testing.datasets import check_positions

SPEC = SampleSpec((Variable("v", (), "<f4", ()),))


def check(positions, rows=()):
    check_positions(SampleIndex(SPEC, range(4), positions=positions, rows=rows))


@pytest.mark.parametrize(
    ("positions", "rows"),
    [
        ((), ()),
        ([0, 1, 2.5, 9], ()),
        ([4, 3, 2, 1], ()),
        ([0, 1, 0, 1], [0, 0, 1, 1]),
        ([0, 0, 1, 1], [7, 3, 7, 3]),
    ],
)
def test_rows_in_order_pass(positions, rows):
    check(positions, rows)


@pytest.mark.parametrize(
    ("positions", "rows"),
    [
        ([0, 1, 2], ()),
        ([0, 1, 1, 2], ()),
        ([0, 1, 3, 2], ()),
        ([0, 1, 0, 1], ()),
        ([0, 1, 1, 0], [0, 0, 1, 1]),
        ([0, 1, float("nan"), 3], ()),
        ([0, 1, 2, 3], [0, 0]),
        ((), [0, 0, 1, 1]),
    ],
)
def test_others_fail(positions, rows):
    with pytest.raises(AssertionError):
        check(positions, rows)
