"""The timeline and the charts of waits in a real browser: same numbers, and every hand reaches."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser import PageOpener
from many_spans import many_spans
from timeline_pages import page_of, unpacked, write_timeline

from iobench.analysis.run import Run, exposure
from iobench.recording.kinds import Kind
from iobench.report import units
from iobench.report.timeline.page_payload import timeline_payload
from tests.support.run_json import to_json

sys.path.append(str(Path(__file__).parents[2] / "analysis" / "support"))

from schedules import pool

from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

MS = 1_000_000
HOSTILE = "/data/<img src=x onerror=document.title='broken'></script><b>year & 1.grib"
UNPACKED = """async ([meta, data]) => {
  const columns = await iobench.decodeTimeline(meta, data);
  return Object.fromEntries(
    Object.entries(columns).map(([name, values]) => [name, Array.from(values)]));
}"""


def small_run() -> SketchedRun:
    """Return two workers that are slower than the loop; batch 5 takes longest of all."""
    times = [(9 * MS, 6 * MS, MS)] * 12
    times[5] = (60 * MS, 6 * MS, MS)
    sketch = pool(times, workers=2, step_ns=4 * MS, handover_ns=MS // 10)
    for span in sketch.spans:
        if span["kind"] == Kind.READ:
            span.update(detail=HOSTILE, nbytes=4_500_000, sample=span["batch"] * 10, epoch=0)
    return sketch


@pytest.fixture(scope="module")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_timeline(tmp_path_factory.mktemp("page") / "small.html", small_run().data())


@pytest.fixture(scope="module")
def opened(browser: Browser, small_page: Path) -> Iterator[PageOpener]:
    """The page of the small run, opened once for the tests that need nothing special of it."""
    opener = PageOpener(browser)
    opener.page = ready(opener(small_page))
    yield opener
    opener.close()


@pytest.fixture
def page(opened: PageOpener) -> Iterator[Page]:
    """Give the page of the small run as it is when it has just been opened."""
    opened.page.emulate_media(color_scheme="light")
    opened.page.mouse.move(2, 2)
    opened.page.evaluate(
        """() => {
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
    )
    yield opened.page
    assert opened.problems == []


def ready(page: Page, run: int = 0) -> Page:
    """Wait until a timeline is drawn; it is ``timeline`` in the page from then on."""
    page.evaluate(f"async () => {{ window.timeline = await iobench.timelines[{run}]; }}")
    page.wait_for_function("timeline.frames > 0")
    return page


def settled(page: Page) -> None:
    page.wait_for_function("!timeline.pending")


def window_of(page: Page) -> tuple[float, float]:
    settled(page)
    found = page.evaluate("[timeline.view.from, timeline.view.to]")
    return found[0], found[1]


def point_of(page: Page, span: int) -> tuple[float, float]:
    """Return where on the page the middle of a span is drawn."""
    settled(page)
    place = page.evaluate(
        """(span) => {
          const { spans, view, places, plotWidth, canvas, scroller } = timeline;
          const number = spans.lane[span];
          const { rows } = places.lanes.find(({ lane }) => lane.numbers.includes(number));
          const middle = spans.start[span] + spans.length[span] / 2;
          const box = canvas.getBoundingClientRect();
          const x = ((middle - view.from) / view.width) * plotWidth;
          const y = rows[spans.depth[span]].top - scroller.scrollTop + places.rowHeight / 2;
          return [box.left + x, box.top + y];
        }""",
        span,
    )
    return place[0], place[1]


def pixel_of(page: Page, span: int, up: float = 0.5) -> list[int]:
    """Return the colour in a span's middle, ``up`` of its height above its lower edge."""
    x, y = point_of(page, span)
    return page.evaluate(
        """([x, y, up]) => {
          const { canvas, dpr, places, image } = timeline;
          const box = canvas.getBoundingClientRect();
          const column = Math.floor((x - box.left) * dpr);
          const line = Math.floor((y - box.top + (0.5 - up) * places.rowHeight) * dpr);
          const first = 4 * (line * image.width + column);
          return [...image.data.subarray(first, first + 3)];
        }""",
        [x, y, up],
    )


def facts(page: Page) -> dict[str, str]:
    return dict(
        page.evaluate(
            """[...document.querySelectorAll(".tl-tip dt")].map(
                 (name) => [name.textContent, name.nextSibling.textContent])"""
        )
    )


def span_where(payload: Any, **values: Any) -> int:
    columns = unpacked(payload)
    stages = payload.meta["stages"]
    for row in range(payload.meta["n_shown"]):
        found = {"stage": stages[columns["stage"][row]], "batch": columns["batch"][row]}
        if all(found[name] == value for name, value in values.items()):
            return row
    raise AssertionError(f"no span with {values}")


def test_the_browser_unpacks_what_was_packed(page: Page) -> None:
    absurd = SketchedRun({"workers": 0})
    for start, nbytes in ((0, 2**51), (7, -1), (2**51, 2**40 + 1)):
        absurd.add(
            CONSUMER, Kind.READ, start, start + nbytes % 1000, nbytes=nbytes, detail="\udcff"
        )
    for profile in (small_run().data(), absurd.data(), many_spans(1500)):
        payload = timeline_payload(Run(profile).of_rank())
        assert page.evaluate(UNPACKED, [payload.meta, payload.data]) == unpacked(payload)


def test_keys_move_and_zoom(page: Page) -> None:
    whole = window_of(page)
    page.locator(".tl-canvas").focus()
    page.keyboard.press("+")
    closer = window_of(page)
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 2)
    page.keyboard.press("ArrowRight")
    later = window_of(page)
    assert later[0] > closer[0]
    page.keyboard.press("ArrowLeft")
    assert window_of(page) == pytest.approx(closer)
    page.keyboard.press("-")
    assert window_of(page) == pytest.approx(whole)
    page.keyboard.press("-")
    assert window_of(page) == pytest.approx(whole), "never more than the run"
    page.evaluate("timeline.view.show(1000, 1500)")
    for _ in range(3):
        page.keyboard.press("+")
    narrow = window_of(page)
    assert narrow[1] - narrow[0] == pytest.approx(200), "nor less than can be measured"
    page.keyboard.press("0")
    assert window_of(page) == pytest.approx(whole)


def test_tab_reaches_the_lanes_and_enter_the_longest_waits(page: Page) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === timeline.canvas"):
            break
    assert "waits" in page.locator(".tl-canvas").get_attribute("aria-label")
    profile = small_run().data()
    waits = sorted(exposure(profile).waits_ns, reverse=True)
    said = page.locator(".tl-live")
    for place in (0, 1):
        page.keyboard.press("Enter")
        text = said.text_content()
        assert text.startswith(f"Wait {place + 1} of ")
        assert f": {units.duration(waits[place])} at " in text
        seen = window_of(page)
        focus = page.evaluate("[timeline.spans.start[timeline.focus], timeline.focus]")
        assert seen[0] <= focus[0] <= seen[1]
    page.keyboard.press("Shift+Enter")
    assert said.text_content().startswith("Wait 1 of ")
    page.keyboard.press("Escape")
    assert page.evaluate("timeline.chosen") is None
    assert said.text_content() == ""


def test_a_span_tells_its_file_bytes_and_times(page: Page) -> None:
    profile = small_run().data()
    payload = timeline_payload(Run(profile).of_rank())
    span = span_where(payload, stage="read", batch=5)
    columns = unpacked(payload)
    page.mouse.move(*point_of(page, span))
    told = facts(page)
    length, exposed = columns["length"][span], columns["exposed"][span]
    assert told["File"] == HOSTILE, "as text, whatever it spells"
    assert page.title() == "Timeline"
    assert page.locator(".timeline img").count() == 0
    assert told["Bytes"] == f"4.50 MB at {units.byte_rate(4_500_000 / (length / 1e9))}"
    assert told["Took"] == units.duration(length) == "60.0 ms"
    share = units.fraction(exposed / length)
    assert told["Exposed"] == f"{units.duration(exposed)} ({share})"
    assert told["Hidden"] == units.duration(length - exposed)
    assert (told["Batch"], told["Sample"], told["Epoch"]) == ("5", "50", "0")
    assert told["Lane"] == "worker-1"
    assert told["Start"] == f"{columns['start'][span] / 1e9:.6f} s"
    page.mouse.move(5, 5)
    assert page.locator(".tl-tip").is_hidden()


def test_a_click_on_a_wait_shows_the_batch_it_waited_for(page: Page) -> None:
    payload = timeline_payload(Run(small_run().data()).of_rank())
    columns = unpacked(payload)
    wait = span_where(payload, stage="wait", batch=5)
    page.mouse.click(*point_of(page, wait))
    chosen = page.evaluate("[...timeline.chosen].sort((a, b) => a - b)")
    assert chosen == [row for row, batch in enumerate(columns["batch"]) if batch == 5]
    assert len({columns["lane"][row] for row in chosen}) == 2
    assert "batch 5, made by worker-1" in page.locator(".tl-live").text_content()
    other = span_where(payload, stage="read", batch=6)
    dimmed = pixel_of(page, other, 0.9)
    page.keyboard.press("Escape")
    assert sum(pixel_of(page, other, 0.9)) < sum(dimmed), "others step back meanwhile"


def test_what_was_waited_for_stands_out(page: Page) -> None:
    payload = timeline_payload(Run(small_run().data()).of_rank())
    columns = unpacked(payload)
    reads = [
        row
        for row in range(payload.meta["n_shown"])
        if payload.meta["stages"][columns["stage"][row]] == "read"
    ]
    share = {row: columns["exposed"][row] / columns["length"][row] for row in reads}
    most, least = max(share, key=share.__getitem__), min(share, key=share.__getitem__)
    assert share[most] > 0.6
    assert share[least] < 0.3
    for theme, strong in (("light", (0xD6, 0x40, 0x2B)), ("dark", (0xFF, 0x6B, 0x52))):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(f"timeline.painter.exposed[0] === {strong[0]}")
        assert pixel_of(page, most, 0.1) == list(strong)
        assert pixel_of(page, least, 0.45) != list(strong)
        wait = page.evaluate("timeline.spans.longest[0]")
        red, green, blue = pixel_of(page, wait, 0.2)
        assert red > 1.3 * max(green, blue), "waits are hatched in the same colour"


def test_old_browsers_and_damaged_pages_are_told(
    open_page: PageOpener, small_page: Path, tmp_path: Path
) -> None:
    page = open_page(small_page, script="delete window.DecompressionStream")
    alert = page.get_by_role("alert")
    assert "this browser cannot unpack the timeline" in alert.text_content()
    payload = timeline_payload(Run(small_run().data()).of_rank())
    payload.meta["columns"].pop()
    path = tmp_path / "damaged.html"
    path.write_text(page_of([payload]))
    alert = open_page(path).get_by_role("alert")
    assert "the timeline is damaged; write the page again" in alert.text_content()


def test_quantities_are_spelled_as_elsewhere(page: Page) -> None:
    drawn = random.Random(0)
    times: list[float] = [0, 1, 99, 999, 1000, 12_500, 100_500, 101_500, 999_499, 999_500, 10**12]
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


def test_charts_show_every_wait_once(page: Page) -> None:
    waits = to_json([Run(small_run().data())])["runs"][0]["waits_ns"]
    charts = page.evaluate(
        """Object.fromEntries(Object.entries(iobench.charts[0]).map(
             ([name, each]) => [name, each.drawn.data.map((row) => Array.from(row))]))"""
    )
    steps, shown, mean, median = charts["wait-chart"]
    assert steps == list(range(len(waits)))
    assert [each for each, wait in zip(shown, waits, strict=True) if wait > 1000] == [
        wait for wait in waits if wait > 1000
    ]
    assert (mean[0], median[0]) == pytest.approx((np.mean(waits), np.median(waits)))
    counts, shares = charts["wait-distribution"][1:]
    assert sum(counts) == len(waits)
    assert shares[-1] == 1
