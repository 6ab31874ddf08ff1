"""What ``iobench report`` writes in one go: analysed once, refused before anything is read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iobench.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_pyarrow_nothing_is_read_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    target = tmp_path / "spans.parquet"
    assert main(["report", str(tmp_path / "no such run"), "--parquet", str(target)]) == 69
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.strip().endswith("pip install 'iobench[parquet]'")
    assert not target.exists()
