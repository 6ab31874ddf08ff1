"""The page of a history in a real browser: charts, light and dark, and hostile names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from suite_files import suite

from iobench.cli import main

if TYPE_CHECKING:
    from browser import PageOpener

PWNED = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
CHARTS = """() => [...document.querySelectorAll('.small-chart')].map((each) => ({
  name: each.querySelector('figcaption').textContent,
  points: [...each.querySelectorAll('circle')].map((c) => [
    +c.getAttribute('cx'), +c.getAttribute('cy'), c.getAttribute('class'),
    c.querySelector('title').textContent]),
  marks: each.querySelectorAll('path.mark').length,
  told: [...each.querySelectorAll('p.note:not(.chart-ends)')].map((p) => p.innerText)}))"""
COLOURS = """() => [
  getComputedStyle(document.body).backgroundColor,
  getComputedStyle(document.querySelector('.small-chart .point.bad')).fill,
  getComputedStyle(document.querySelector('.small-chart .line')).stroke]"""


def write_page(folder: Path, *, at: int = 5, named: dict[str, Any] | None = None) -> Path:
    for number in range(8):
        after = {"versions": {"commit": "b" * 40}} if number >= at else {}
        slower = 1.3 if number >= at else 1
        suite(
            folder / f"s{number}", day=number * 60, step_s=0.05 * slower, **(after | (named or {}))
        )
    page = folder / "page.html"
    assert main(["history", str(folder), "--by", "suite", "--html", str(page)]) == 0
    return page


@pytest.mark.quick_cases(1, thorough=0)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_each_figure_has_a_chart_with_its_changes(
    open_page: PageOpener, tmp_path: Path, width: int, dark: bool
) -> None:
    page = open_page(write_page(tmp_path / "h"), width=width, dark=dark)
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
    source, zarr = page.evaluate(CHARTS)
    assert (source["name"], zarr["name"]) == ("source", "zarr")
    for chart in (source, zarr):
        xs, ys, styles, texts = zip(*chart["points"], strict=True)
        assert list(xs) == sorted(xs)
        assert len(xs) == 8
        # Upwards is more: all after the change are above all before it.
        assert max(ys[5:]) < min(ys[:5])
        assert [at for at, style in enumerate(styles) if "bad" in style] == [5]
        assert "commit aaaaaaaaaaaa to bbbbbbbbbbbb" in texts[5]
        assert " ms (" in texts[0]
        assert chart["marks"] == 1
        assert "s5: worse, ratio 1." in chart["told"][0]
    page.locator(".small-chart circle.bad").first.hover()
    ground, bad, line = page.evaluate(COLOURS)
    assert ground == ("rgb(18, 22, 27)" if dark else "rgb(247, 248, 249)")
    assert len({ground, bad, line}) == 3


def test_names_of_suites_and_packages_cannot_do_anything(
    open_page: PageOpener, tmp_path: Path
) -> None:
    named = {
        "formats": (PWNED.replace("/", ""), "zarr"),
        "machine": {"host": PWNED, PWNED: PWNED},
        "suite": PWNED,
    }
    path = write_page(tmp_path / "<b>h<i>", named=named)
    page = open_page(path)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.images.length") == 0
    assert page.locator(".small-chart").count() == 2
    assert "<script>" in page.locator("#content").inner_text()
