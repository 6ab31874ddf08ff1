"""Profiles in a notebook: a small fragment of HTML, escaped, without a script or a library."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from io import StringIO
from typing import TYPE_CHECKING

from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.report.notebook import show
from iobench.report.renderers.notebook_fragment import NotebookRenderer
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from iobench.report.run_report import RunReport

    Make = Callable[..., RunReport]

HOSTILE = "<script>alert('1')</script>\"&amp;' onclick=\"x\" \x1b[2J\u202e"
OURS = {
    "div", "table", "thead", "tbody", "tr", "th", "td", "span", "ul", "li", "pre", "details",
    "summary",
}  # fmt: skip


class Fragment(HTMLParser):
    """Reads a fragment as a browser does; every element is closed where it was opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.styles: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.styles += [value or "" for name, value in attrs if name == "style"]
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"
        if self.open[-1] in {"td", "th"}:
            self.rows[-1][-1] += data


def fragment_of(*reports: RunReport) -> str:
    return NotebookRenderer().render(report_document([], reports=reports))


def test_a_fragment_has_styles_inline_and_nothing_that_runs(make: Make) -> None:
    html = fragment_of(make(dataset=HOSTILE))
    found = Fragment(html)
    assert found.tags <= OURS
    assert found.names <= {"style", "class", "title"}
    assert len(html.encode()) < 50_000


def test_the_figures_are_those_of_the_terminal(bound: RunReport) -> None:
    text = TerminalRenderer(StringIO()).render(report_document([], reports=[bound]))
    printed = [" ".join(line.split()) for line in text.splitlines()]
    rows = Fragment(fragment_of(bound)).rows
    assert any(row[:5] == ["decode", "11.000", "5.500", "5.500", "72 %"] for row in rows)
    figures = [row for row in rows if row[1:] and row[1][:1].isdigit()]
    assert len(figures) > 15
    starts = (" ".join(" ".join(row[:5]).split()) for row in figures)
    assert all(any(each.startswith(start) for each in printed) for start in starts)


def write_run(path: Path) -> None:
    config = {"dataset": HOSTILE, "format": "source", "framework": "workers", "workers": 0}
    run = RunDirectory.create(path, config)
    recorder = run.recorder(role="consumer", clock=FakeClock(1000))
    for batch in range(3):
        start = 1_000_000 * (batch + 1)
        label = recorder.string("</td><script>")
        recorder.emit(Kind.PREPROCESS, start, start + 500_000, batch=batch, label=label)
        recorder.emit(Kind.WAIT, start, start + 600_000, batch=batch)
    recorder.close()


def test_a_profile_shows_itself_without_any_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run")
    for library in ("jinja2", "IPython"):
        monkeypatch.setitem(sys.modules, library, None)
    html = show(tmp_path / "run")._repr_html_()
    found = Fragment(html)
    assert found.tags <= OURS
    assert any(row[0] == "preprocess (</td><script>)" for row in found.rows)
    assert "STAND-IN" not in found.text
    assert f"iobench report {tmp_path / 'run'}" in found.text
    monkeypatch.chdir(tmp_path)
    assert len(html.encode()) < 50_000
