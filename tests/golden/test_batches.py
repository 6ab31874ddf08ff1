"""Loaders give the batches that are stored, in their order, whatever the options."""

from pathlib import Path

import pytest

from tests.golden.batches import compare


@pytest.mark.timeout(120)
def test_batches_are_those_that_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path))

    assert compare(tmp_path, []) == []
