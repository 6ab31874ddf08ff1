"""``iobench check`` from the command line: what it takes, and its summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iobench.cli import main
from iobench.cli.app import make_app

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("RUN --markdown", "-"),
        ("RUN --markdown --json", "-"),
        ("RUN --markdown sum.md", "sum.md"),
        ("RUN --markdown - --json", "-"),
        ("RUN --json", None),
    ],
)
def test_markdown_needs_no_file(words: str, file: str | None) -> None:
    with make_app().commands["check"].make_context("check", words.split()) as context:
        assert context.params["markdown"] == file


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("RUN", "nothing to compare it with"),
        ("RUN --update", "expected RUN --counts FILE --update"),
        ("RUN --counts c.json --update --max-exposed 5%", "expected RUN --counts FILE --update"),
        ("RUN --counts c.json --margin 9%", "--margin: has no effect here"),
        ("RUN --max-exposed 5% --any-machine", "it needs --against RUN"),
        ("RUN --counts c.json --update --markdown", "and not --update"),
        ("RUN --max-exposed five", "expected a share such as 5% or 0.05"),
        ("RUN --max-exposed 500%", "expected a share such as 5% or 0.05"),
        ("RUN --max-exposed nan", "expected a share such as 5% or 0.05"),
        ("RUN --counts c.json --json --markdown", "both go to stdout"),
        ("RUN --max-exposed 5%", "RUN: is no directory"),
        ("RUN --counts c.json", "c.json: no such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", *words.split()]) == 1
    assert message in capsys.readouterr().err
