"""What ``iobench report`` writes in one go: analysed once, refused before anything is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from iobench.cli import main


@pytest.mark.parametrize(
    ("option", "library", "installed"),
    [
        ("--html", "jinja2", "jinja2>=3.1"),
        ("--parquet", "pyarrow.parquet", "iobench[parquet]"),
    ],
)
def test_without_a_library_nothing_is_read_or_printed(
    option: str,
    library: str,
    installed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    target = tmp_path / "made.svg"
    assert main(["report", str(tmp_path / "no such run"), option, str(target)]) == 69
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.strip().endswith(f"pip install '{installed}'")
    assert not target.exists()
