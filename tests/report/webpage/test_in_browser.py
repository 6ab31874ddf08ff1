"""The page and its timeline in a real browser: same numbers, every hand reaches, names do nothing.

A page is opened once for all tests that need nothing special of it.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from many_spans import many_spans
from page_runs import render_page, write_job, write_run, wrong_figures
from schedules import pool

from iobench.analysis.run import Run, exposure, open_runs
from iobench.recording.kinds import Kind
from iobench.report import units
from iobench.report.timeline.page_payload import timeline_payload
from tests.report.webpage.browser import PageOpener
from tests.report.webpage.timeline_pages import page_of, unpacked, write_timeline
from tests.support.run_json import to_json
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000
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
PROBLEMS = {
    "console.error('so so')": "error: so so",
    "console.warn('so so')": "warning: so so",
    "new Image().src = 'http://127.0.0.1:9/a.png'": "asks for http://127.0.0.1:9/a.png",
    "missing()": "not caught: missing is not defined",
}


def test_problems_are_seen(open_page, tmp_path):
    path = tmp_path / "page.html"
    script = "; ".join(PROBLEMS)
    path.write_text(f"<!doctype html><title></title><body><script>{script}</script>")
    open_page(path).evaluate("1")
    assert set(PROBLEMS.values()) <= set(open_page.problems)
    open_page.problems.clear()


# -- the page of a report -----------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A page of two formats."""
    runs = tmp_path_factory.mktemp("runs")
    write_run(runs / "source", position=0)
    write_run(runs / "tfrecord", read_ms=1, position=1)
    return write_page(runs)


def write_page(run):
    path = run.parent / f"{run.name}.html"
    path.write_text(render_page(open_runs(run)), "utf-8")
    return path


def luminance(colour):
    """Return how light ``rgb(r, g, b)`` is, as WCAG 2 defines it."""
    numbers = [int(each) / 255 for each in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [n / 12.92 if n <= 0.04045 else ((n + 0.055) / 1.055) ** 2.4 for n in numbers]
    return sum(part * each for part, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def fits(page):
    width, inner = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return width <= inner


@pytest.mark.parametrize(
    ("width", "dark"),
    [(390, True), *(pytest.param(*e, marks=pytest.mark.long)
                    for e in ((1280, False), (1280, True), (390, False)))],
)  # fmt: skip
def test_pages_fit_and_say_what_the_json_says(open_page, compared, tmp_path, width, dark):
    paths = [compared, write_page(write_job(tmp_path / "job"))]
    for page in [open_page(path, width=width, dark=dark) for path in paths]:
        assert fits(page)
        figures = page.evaluate(FIGURES)
        assert len(figures) > 100
        assert wrong_figures(figures) == []
        for tab in page.get_by_role("tab").all():
            tab.click()
            assert fits(page)
        ground, ink, exposed = page.evaluate(COLOURS)
        assert (luminance(ground) < 0.1) == dark
        assert contrast(ground, ink) > 7
        assert contrast(ground, exposed) > 3


def test_buttons_and_keys_change_the_theme_and_the_run_copy_and_reach_all(open_page, compared):
    page = open_page(compared, permissions=["clipboard-read", "clipboard-write"])
    for _ in range(page.evaluate(HEAR_FOCUS) + 20):  # and other parts of the timeline
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
    assert page.evaluate("unseen") == []
    assert page.evaluate("[...unreached].map((each) => each.outerHTML)") == []

    page.reload()
    page.keyboard.press("Tab")
    assert page.locator(".skip:focus").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")

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

    first, second = page.locator("#run-0"), page.locator("#run-1")
    assert (first.is_visible(), second.is_visible()) == (True, False)
    page.get_by_role("tab", name="source").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="tfrecord").get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.id") == "tab-1"
    assert (first.is_visible(), second.is_visible()) == (False, True)
    page.keyboard.press("ArrowRight")
    assert first.is_visible()
    page.evaluate("location.hash = '#run-1-waits'")
    page.wait_for_function("!document.getElementById('run-1').hidden")


def test_names_cannot_do_anything_and_without_scripts_all_is_there(open_page, compared, tmp_path):
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

    page = open_page(compared, java_script_enabled=False)
    for run in ("#run-0", "#run-1"):
        assert page.locator(f"{run} .sentence").is_visible()
        assert page.locator(f"{run} noscript p").first.is_visible()
    assert not page.get_by_role("tablist").is_visible()


# -- its timeline -------------------------------------------------------------------------

HOSTILE = "/data/<img src=x onerror=document.title='broken'></script><b>year & 1.grib"
UNPACKED = """async ([meta, data]) => {
  const columns = await iobench.decodeTimeline(meta, data);
  return Object.fromEntries(
    Object.entries(columns).map(([name, values]) => [name, Array.from(values)]));
}"""
AS_OPENED = """() => {
  document.activeElement?.blur();
  scrollTo(0, 0);
  timeline.isShown.fill(true);
  for (const each of document.querySelectorAll(".tl-legend button")) {
    each.setAttribute("aria-pressed", "true");
  }
  timeline.waitPlace = -1;
  timeline.choose(-1);
  timeline.change(() => timeline.view.show(0, timeline.view.length));
}"""
POINT = """(span) => {
  const { spans, view, places, plotWidth, canvas, scroller } = timeline;
  const number = spans.lane[span];
  const { rows } = places.lanes.find(({ lane }) => lane.numbers.includes(number));
  const middle = spans.start[span] + spans.length[span] / 2;
  const box = canvas.getBoundingClientRect();
  const x = ((middle - view.from) / view.width) * plotWidth;
  const y = rows[spans.depth[span]].top - scroller.scrollTop + places.rowHeight / 2;
  return [box.left + x, box.top + y];
}"""
PIXEL = """([x, y, up]) => {
  const { canvas, dpr, places, image } = timeline;
  const box = canvas.getBoundingClientRect();
  const column = Math.floor((x - box.left) * dpr);
  const line = Math.floor((y - box.top + (0.5 - up) * places.rowHeight) * dpr);
  const first = 4 * (line * image.width + column);
  return [...image.data.subarray(first, first + 3)];
}"""


def small_run():
    """Return two workers that are slower than the loop; batch 5 takes longest of all."""
    times = [(9 * MS, 6 * MS, MS)] * 12
    times[5] = (60 * MS, 6 * MS, MS)
    sketch = pool(times, workers=2, step_ns=4 * MS, handover_ns=MS // 10)
    for span in sketch.spans:
        if span["kind"] == Kind.READ:
            span.update(detail=HOSTILE, nbytes=4_500_000, sample=span["batch"] * 10, epoch=0)
    return sketch.data()


SMALL = small_run()
PAYLOAD = timeline_payload(Run(SMALL).of_rank())
COLUMNS = unpacked(PAYLOAD)


@pytest.fixture(scope="module")
def small_page(tmp_path_factory):
    return write_timeline(tmp_path_factory.mktemp("page") / "small.html", SMALL)


@pytest.fixture(scope="module")
def opened(browser, small_page):
    """The page of the small run, whose timeline is ``timeline`` in it once that is drawn."""
    opener = PageOpener(browser)
    opener.page = opener(small_page)
    opener.page.evaluate("async () => { window.timeline = await iobench.timelines[0]; }")
    opener.page.wait_for_function("timeline.frames > 0")
    yield opener
    opener.close()


@pytest.fixture
def page(opened):
    """Give the page of the small run as it is when it has just been opened."""
    opened.page.emulate_media(color_scheme="light")
    opened.page.mouse.move(2, 2)
    opened.page.evaluate(AS_OPENED)
    yield opened.page
    assert opened.problems == []


def settled(page):
    page.wait_for_function("!timeline.pending")
    return page


def window_of(page):
    return tuple(settled(page).evaluate("[timeline.view.from, timeline.view.to]"))


def point_of(page, span):
    """Return where on the page the middle of a span is drawn."""
    return settled(page).evaluate(POINT, span)


def pixel_of(page, span, up=0.5):
    """Return the colour in a span's middle, ``up`` of its height above its lower edge."""
    return page.evaluate(PIXEL, [*point_of(page, span), up])


def spans_of(stage, batch=None):
    return [
        row
        for row in range(PAYLOAD.meta["n_shown"])
        if PAYLOAD.meta["stages"][COLUMNS["stage"][row]] == stage
        and batch in (None, COLUMNS["batch"][row])
    ]


def test_the_browser_unpacks_what_was_packed_and_spells_quantities_as_elsewhere(page):
    absurd = SketchedRun({"workers": 0})
    for start, nbytes in ((0, 2**51), (7, -1), (2**51, 2**40 + 1)):
        more = {"nbytes": nbytes, "detail": "\udcff"}
        absurd.add(CONSUMER, Kind.READ, start, start + nbytes % 1000, **more)
    for profile in (SMALL, absurd.data(), many_spans(1500)):
        payload = timeline_payload(Run(profile).of_rank())
        assert page.evaluate(UNPACKED, [payload.meta, payload.data]) == unpacked(payload)
    drawn = random.Random(0)
    times = [0, 1, 99, 999, 1000, 12_500, 100_500, 101_500, 999_499, 999_500, 10**12]
    times += [round(10 ** drawn.uniform(0, 13)) for _ in range(300)]
    times += [n * 500 for n in range(1, 60)] + [n * 125 for n in range(1, 60)]
    shares = [0, 0.0001, 0.001, 0.0994, 0.0995, 0.125, 0.5, 0.995, 0.9994, 0.9999, 1]
    shares += [drawn.random() for _ in range(200)]
    for name, spell, values in (
        ("duration", units.duration, times),
        ("nbytes", units.nbytes, times),
        ("byteRate", units.byte_rate, times),
        ("fraction", units.fraction, shares),
        ("count", units.count, [0, 999, 1000, 1234567]),
    ):
        found = page.evaluate(f"(values) => values.map(iobench.quantities.{name})", values)
        assert found == [spell(value) for value in values]


def test_keys_move_and_zoom(page):
    whole = window_of(page)
    page.locator(".tl-canvas").focus()

    def press(key):
        page.keyboard.press(key)
        return window_of(page)

    closer = press("+")
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert press("ArrowRight")[0] > closer[0]
    assert press("ArrowLeft") == pytest.approx(closer)
    assert press("-") == pytest.approx(whole)
    assert press("-") == pytest.approx(whole), "never more than the run"
    page.evaluate("timeline.view.show(1000, 1500)")
    narrow = [press("+") for _ in range(3)][-1]
    assert narrow[1] - narrow[0] == pytest.approx(200), "nor less than can be measured"
    assert press("0") == pytest.approx(whole)


def test_tab_reaches_the_lanes_and_enter_the_longest_waits(page):
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === timeline.canvas"):
            break
    assert "waits" in page.locator(".tl-canvas").get_attribute("aria-label")
    waits = sorted(exposure(SMALL).waits_ns, reverse=True)
    said = page.locator(".tl-live")
    for place in (0, 1):
        page.keyboard.press("Enter")
        text = said.text_content()
        assert text.startswith(f"Wait {place + 1} of ")
        assert f": {units.duration(waits[place])} at " in text
        seen = window_of(page)
        assert seen[0] <= page.evaluate("timeline.spans.start[timeline.focus]") <= seen[1]
    page.keyboard.press("Shift+Enter")
    assert said.text_content().startswith("Wait 1 of ")
    page.keyboard.press("Escape")
    assert page.evaluate("timeline.chosen") is None
    assert said.text_content() == ""


def test_a_span_tells_its_file_bytes_and_times(page):
    (span,) = spans_of("read", 5)
    page.mouse.move(*point_of(page, span))
    pairs = "[...document.querySelectorAll('.tl-tip dt')].map((each) => [each, each.nextSibling])"
    told = dict(page.evaluate(f"{pairs}.map((pair) => pair.map((each) => each.textContent))"))
    length, exposed = COLUMNS["length"][span], COLUMNS["exposed"][span]
    expected = {
        "File": HOSTILE,  # as text, whatever it spells
        "Bytes": f"4.50 MB at {units.byte_rate(4_500_000 / (length / 1e9))}",
        "Took": "60.0 ms",
        "Exposed": f"{units.duration(exposed)} ({units.fraction(exposed / length)})",
        "Hidden": units.duration(length - exposed),
        "Batch": "5", "Sample": "50", "Epoch": "0", "Lane": "worker-1",
        "Start": f"{COLUMNS['start'][span] / 1e9:.6f} s",
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected
    assert page.title() == "Timeline"
    assert page.locator(".timeline img").count() == 0
    page.mouse.move(5, 5)
    assert page.locator(".tl-tip").is_hidden()


def test_a_click_on_a_wait_shows_the_batch_it_waited_for(page):
    page.mouse.click(*point_of(page, spans_of("wait", 5)[0]))
    chosen = page.evaluate("[...timeline.chosen].sort((a, b) => a - b)")
    assert chosen == [row for row, batch in enumerate(COLUMNS["batch"]) if batch == 5]
    assert len({COLUMNS["lane"][row] for row in chosen}) == 2
    assert "batch 5, made by worker-1" in page.locator(".tl-live").text_content()
    other = spans_of("read", 6)[0]
    dimmed = pixel_of(page, other, 0.9)
    page.keyboard.press("Escape")
    assert sum(pixel_of(page, other, 0.9)) < sum(dimmed), "others step back meanwhile"


def test_what_was_waited_for_stands_out(page):
    share = {row: COLUMNS["exposed"][row] / COLUMNS["length"][row] for row in spans_of("read")}
    most, least = max(share, key=share.__getitem__), min(share, key=share.__getitem__)
    assert (share[most] > 0.6, share[least] < 0.3) == (True, True)
    for theme, strong in (("light", (0xD6, 0x40, 0x2B)), ("dark", (0xFF, 0x6B, 0x52))):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(f"timeline.painter.exposed[0] === {strong[0]}")
        assert pixel_of(page, most, 0.1) == list(strong)
        assert pixel_of(page, least, 0.45) != list(strong)
        red, *others = pixel_of(page, page.evaluate("timeline.spans.longest[0]"), 0.2)
        assert red > 1.3 * max(others), "waits are hatched in the same colour"


def test_charts_show_every_wait_once(page):
    waits = to_json([Run(SMALL)])["runs"][0]["waits_ns"]
    charts = page.evaluate(
        """Object.fromEntries(Object.entries(iobench.charts[0]).map(
             ([name, each]) => [name, each.drawn.data.map((row) => Array.from(row))]))"""
    )
    steps, shown, mean, median = charts["wait-chart"]
    assert steps == list(range(len(waits)))
    pairs = [(each, wait) for each, wait in zip(shown, waits, strict=True) if wait > 1000]
    assert all(each == wait for each, wait in pairs)
    assert (mean[0], median[0]) == pytest.approx((np.mean(waits), np.median(waits)))
    counts, shares = charts["wait-distribution"][1:]
    assert sum(counts) == len(waits)
    assert shares[-1] == 1


def test_old_browsers_and_damaged_pages_are_told(open_page, small_page, tmp_path):
    page = open_page(small_page, script="delete window.DecompressionStream")
    assert "this browser cannot unpack the timeline" in page.get_by_role("alert").text_content()
    payload = timeline_payload(Run(SMALL).of_rank())
    payload.meta["columns"].pop()
    path = tmp_path / "damaged.html"
    path.write_text(page_of([payload]))
    alert = open_page(path).get_by_role("alert")
    assert "the timeline is damaged; write the page again" in alert.text_content()
