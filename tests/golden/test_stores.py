"""Conversions write the bytes, labels and statistics that are stored."""

from pathlib import Path

import pytest

from tests.golden.stores import cases, compare


@pytest.mark.long
@pytest.mark.timeout(600)
def test_conversions_write_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path))

    result = compare([], tmp_path)

    assert len(result) == len(list(cases()))
    assert {name: lines for name, lines in result.items() if lines} == {}
