"""Every run of these tests is made on a machine with a name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from named_runs import HOST, write_run

if TYPE_CHECKING:
    from iobench.recording.run_directory import RunDirectory


PAGE = "iobench.report.renderers.html_page.HtmlRenderer.render"


@pytest.fixture(autouse=True)
def _this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iobench.recording.recorder.host_name", lambda: HOST)


@pytest.fixture
def write() -> Callable[..., RunDirectory]:
    """``write(path, details=..., config=..., closed=...)`` a run directory."""
    return write_run


@pytest.fixture(autouse=True)
def _short_page(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make a page only where it is looked at: it takes most of a bundle's time."""
    if "whole" not in request.node.name:
        monkeypatch.setattr(
            "iobench.report.renderers.html_page.HtmlRenderer.render", lambda *_: "<p>\n"
        )
