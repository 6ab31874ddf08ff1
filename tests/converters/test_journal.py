from __future__ import annotations

import base64

import numpy as np
import pytest

from iobench.samples import SampleSpec, Variable
from iobench.stores import Shard, ShardInfo, StoreRequest
from iobench.testing import MadeUpDataset
from iobench_converters.journal import Journal
from iobench_converters.numpy_records import FORMAT

SPEC = SampleSpec((Variable("x", (3,), "f4", ("x",)),))
SPELLED = "00&pw=w9?B_1-xo"
"""Three checksums whose bytes in base 85 look like a password, which notes do not hold."""


@pytest.fixture
def journal(tmp_path):
    dataset = MadeUpDataset(SPEC)
    request = StoreRequest(dataset, dataset.index(3), FORMAT, tmp_path)
    journal = Journal(tmp_path, request.plan(), (1, 1))
    journal.begin([], {})
    return journal


def test_checksums_that_spell_a_password_are_found_as_they_were_noted(journal):
    checksums = np.frombuffer(base64.b85decode(SPELLED), dtype="<u4").tolist()
    journal.add(0, ShardInfo(Shard(3, ()), checksums))
    assert list(journal.find(0).checksums) == checksums
