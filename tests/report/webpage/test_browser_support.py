"""The browser that pages are tested in: it would see what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from browser import PageOpener


def write(path: Path, script: str) -> Path:
    path.write_text(f"<!doctype html><title></title><body><script>{script}</script>")
    return path


PROBLEMS = {
    "console.error('so so')": "error: so so",
    "console.warn('so so')": "warning: so so",
    "new Image().src = 'http://127.0.0.1:9/a.png'": "asks for http://127.0.0.1:9/a.png",
    "missing()": "not caught: missing is not defined",
}


def test_problems_are_seen(open_page: PageOpener, tmp_path: Path) -> None:
    page = open_page(write(tmp_path / "page.html", "; ".join(PROBLEMS)))
    page.evaluate("1")
    assert set(PROBLEMS.values()) <= set(open_page.problems)
    open_page.problems.clear()
