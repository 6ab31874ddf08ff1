"""Trainings in every form of launch: the same with recording, and recorded as ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.launches import COUNTS, FORMS, NEEDS, recorded, start, wrong_counts

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
STORED = json.loads(COUNTS.read_text())


def test_every_form_is_stored() -> None:
    assert STORED.keys() == FORMS.keys()


@pytest.mark.parametrize("name", FORMS)
def test_a_training_is_the_same_and_recorded_as_it_was(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the scripts load by torch's DataLoader")
    pytest.importorskip("pyarrow", reason="spans are counted in the table of them")
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="the script is one of this framework")
    plain = start(FORMS[name], tmp_path / "plain")
    found, counts = recorded(FORMS[name], tmp_path)
    assert found == plain
    assert wrong_counts(STORED[name], counts) == []
