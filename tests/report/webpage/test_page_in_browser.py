"""The page in a real browser: light and dark, wide and narrow, by keyboard, with hostile names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_runs import render_page, write_job, write_run, wrong_figures

from iobench.analysis.run import open_runs

if TYPE_CHECKING:
    from browser import PageOpener
    from playwright.sync_api import Page

LOOKS = [
    (1280, False),
    (390, True),
    pytest.param(1280, True, marks=pytest.mark.long),
    pytest.param(390, False, marks=pytest.mark.long),
]
FIGURES = """[...document.querySelectorAll('data.figure')].map((each) => ({
  class: each.className, value: each.getAttribute('value'), text: each.textContent}))"""
COLOURS = """() => {
  const of = (name) => getComputedStyle(document.querySelector(name));
  return [of('body').backgroundColor, of('.sentence').color, of('rect.exposed').fill];
}"""
HEAR_FOCUS = """
  window.unreached = new Set([...document.querySelectorAll('button, a, .scroll, pre, summary')]
    .filter((each) => each.checkVisibility() && each.tabIndex >= 0 && !each.disabled));
  window.unseen = [];
  addEventListener('focusin', ({ target }) => {
    const { outlineStyle, boxShadow } = getComputedStyle(target);
    if (outlineStyle === 'none' && boxShadow === 'none') unseen.push(target.outerHTML);
    unreached.delete(target);
  });
  unreached.size"""
PWNED = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two formats."""
    runs = tmp_path_factory.mktemp("runs")
    write_run(runs / "source", position=0)
    write_run(runs / "tfrecord", read_ms=1, position=1)
    return write_page(runs)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three ranks."""
    return write_page(write_job(tmp_path_factory.mktemp("job") / "run"))


def write_page(run: Path) -> Path:
    path = run.parent / f"{run.name}.html"
    path.write_text(render_page(open_runs(run)), "utf-8")
    return path


def luminance(colour: str) -> float:
    """Return how light ``rgb(r, g, b)`` is, as WCAG 2 defines it."""
    numbers = [int(each) / 255 for each in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in numbers
    ]
    return sum(part * each for part, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def overflowing(page: Page) -> list[Any]:
    """Return the widths of the page and its window where the one does not fit the other."""
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return list(widths) if widths[0] > widths[1] else []


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_pages_fit_and_say_what_the_json_says(
    open_page: PageOpener, compared: Path, width: int, dark: bool
) -> None:
    page = open_page(compared, width=width, dark=dark)
    expect_fitting(page, compared)
    ground, ink, exposed = page.evaluate(COLOURS)
    assert (luminance(ground) < 0.1) == dark
    assert contrast(ground, ink) > 7
    assert contrast(ground, exposed) > 3


def expect_fitting(page: Page, path: Path) -> None:
    """Hold a page to its width, run by run, and its figures to the JSON of its run."""
    assert overflowing(page) == []
    figures = page.evaluate(FIGURES)
    assert len(figures) > 100
    assert wrong_figures(figures) == []
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert overflowing(page) == []


def test_buttons_change_the_theme_and_the_run_and_copy(
    open_page: PageOpener, compared: Path
) -> None:
    page = open_page(compared, permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Dark theme")
    seen = [(page.evaluate(COLOURS)[0], button.get_attribute("aria-pressed"))]
    for _ in range(2):
        button.click()
        seen.append((page.evaluate(COLOURS)[0], button.get_attribute("aria-pressed")))
    assert [pressed for _, pressed in seen] == ["false", "true", "false"]
    assert seen[0] == seen[2]
    assert seen[0][0] != seen[1][0]

    command = page.locator(".command").first
    command.get_by_role("button").click()
    command.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command.locator("pre").inner_text()

    assert page.locator("#run-0").is_visible()
    assert not page.locator("#run-1").is_visible()
    page.get_by_role("tab", name="source").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="tfrecord").get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.id") == "tab-1"
    assert not page.locator("#run-0").is_visible()
    assert page.locator("#run-1").is_visible()
    page.keyboard.press("ArrowRight")
    assert page.locator("#run-0").is_visible()
    page.evaluate("location.hash = '#run-1-waits'")
    page.wait_for_function("!document.getElementById('run-1').hidden")


def test_all_is_reached_by_keyboard(open_page: PageOpener, compared: Path) -> None:
    page = open_page(compared)
    for _ in range(page.evaluate(HEAR_FOCUS) + 20):  # and other parts of the timeline
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
    assert page.evaluate("unseen") == []
    assert page.evaluate("[...unreached].map((each) => each.outerHTML)") == []

    page.reload()
    page.keyboard.press("Tab")
    skip = page.locator(".skip:focus").bounding_box()
    assert skip is not None
    assert skip["y"] >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_names_cannot_do_anything(open_page: PageOpener, tmp_path: Path) -> None:
    named = {"dataset": PWNED, "command": PWNED, "machine": {PWNED: PWNED}, "files_hint": PWNED}
    path = write_page(write_run(tmp_path / "source", **named))
    page = open_page(path)
    assert page.evaluate("window.pwned") is None
    assert page.locator("h1").inner_text().startswith(PWNED)
    assert page.evaluate("document.images.length") == 0
    assert open_page.problems == []

    # And what gets in all the same does not run.
    text = path.read_text("utf-8")
    path.write_text(text.replace("<main", f"{PWNED}<main", 1), "utf-8")
    page.reload()
    assert page.evaluate("document.images.length") == 1
    assert page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in each for each in open_page.problems)
    open_page.problems.clear()


def test_without_scripts_all_is_there(open_page: PageOpener, compared: Path) -> None:
    page = open_page(compared, java_script_enabled=False)
    for run in ("#run-0", "#run-1"):
        assert page.locator(f"{run} .sentence").is_visible()
        assert page.locator(f"{run} noscript p").first.is_visible()
    assert not page.get_by_role("tablist").is_visible()
