"""Reports in a notebook: Markdown without any extra, in which what matters less unfolds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import iobench
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def write_run(path: Path) -> None:
    config = {"dataset": "<script>", "format": "source", "framework": "workers", "workers": 0}
    run = RunDirectory.create(path, config)
    with run.recorder(role="consumer", clock=FakeClock(1000)) as recorder:
        for batch in range(3):
            start = 1_000_000 * (batch + 1)
            recorder.emit(Kind.PREPROCESS, start, start + 500_000, batch=batch)
            recorder.emit(Kind.WAIT, start, start + 600_000, batch=batch)


def test_a_run_shows_itself_without_any_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run")
    for library in ("jinja2", "IPython"):
        monkeypatch.setitem(sys.modules, library, None)
    text = iobench.show(tmp_path / "run")._repr_markdown_()
    assert "<script>" not in text.replace("\\<", "")
    assert f"iobench report {tmp_path / 'run'}" in text
    open_part, folded = text.partition("<details>")[::2]
    assert "| preprocess" in open_part + folded
    assert "### Verdict" in open_part
    assert "<summary>Machine and configuration</summary>" in folded


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert "name the directory" in iobench.show(tmp_path)._repr_markdown_()
