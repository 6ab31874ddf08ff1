from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from iobench.files.claims import JOURNAL_NAME
from iobench.samples import SampleSpec, Variable
from iobench.stores import Shard, ShardInfo, StoreRequest
from iobench.testing import MadeUpDataset
from iobench_converters.journal import Journal
from iobench_converters.numpy_records import FORMAT

SPEC = SampleSpec((Variable("x", (3,), "f4", ("x",)),))
SPELLED = "00&pw=w9?B_1-xo"
"""Three checksums in base 85, as earlier versions noted them: what follows ``pw=`` was masked."""


@pytest.fixture
def journal(tmp_path):
    dataset = MadeUpDataset(SPEC)
    request = StoreRequest(dataset, dataset.index(3), FORMAT, tmp_path)
    journal = Journal(tmp_path, request.plan())
    journal.begin([], "me", {})
    return journal


def test_checksums_that_spell_a_password_are_found_as_they_were_noted(journal):
    checksums = np.frombuffer(base64.b85decode(SPELLED), dtype="<u4").tolist()
    journal.add(0, ShardInfo(Shard(3, ()), checksums))
    assert list(journal.find(0).checksums) == checksums


def test_what_earlier_versions_noted_is_found_unless_it_was_masked(journal, tmp_path):
    plain = SPELLED.replace("pw", "ab")
    journal.add(0, ShardInfo(Shard(3, ()), [0, 0, 0]))
    entry = tmp_path / JOURNAL_NAME / "shard-00000.json"
    values = json.loads(entry.read_text())
    del values["crc32c"]
    entry.write_text(json.dumps({**values, "checksums": plain}))
    noted = np.frombuffer(base64.b85decode(plain), dtype="<u4").tolist()
    assert list(journal.find(0).checksums) == noted
    entry.write_text(json.dumps({**values, "checksums": SPELLED.replace("w9?", "***")}))
    assert journal.find(0) is None  # the shard is written again
