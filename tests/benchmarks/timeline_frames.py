"""How long a frame of a page's timeline takes in a browser without a screen, and how large it is.

    python tests/benchmarks/timeline_frames.py [--spans 500000] [--width 1280] [--frames 40]

Shows a run of about that many spans, of four workers, as `many_spans` makes them: whole, then
closer and closer (each frame zooms by a tenth or moves by a twentieth), as a reader does. A frame
is `draw`, all that is done between two of the screen's; bars are pixels in memory, so the
graphics of the machine matter little. Prints one line of JSON: times in ms, sizes in bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from browser import PageOpener, started_browser
from many_spans import many_spans
from timeline_pages import page_of

from iobench.analysis.run import Run
from iobench.report.timeline.page_payload import timeline_payload

MEASURE = """async (frames) => {
  const found = {};
  const run = (name, act) => {
    const times = [];
    for (let n = 0; n < frames; n++) {
      act(n);
      const start = performance.now();
      timeline.draw();
      times.push(performance.now() - start);
    }
    times.sort((a, b) => a - b);
    const at = (share) => Math.round(10 * times[Math.floor(share * (frames - 1))]) / 10;
    found[name] = { median_ms: at(0.5), p95_ms: at(0.95), max_ms: at(1) };
  };
  const { view } = timeline;
  run("whole", () => view.show(0, view.length));
  run("zooming", () => view.zoom(0.9, 0.4));
  view.show(view.length * 0.4, view.length * 0.5);
  run("panning", () => view.pan(0.05));
  timeline.choose(timeline.spans.longest[0]);
  view.show(0, view.length);
  run("batch", () => {});
  return found;
}"""
UNPACK = """async () => {
  const meta = JSON.parse(document.getElementById("iobench-timeline-meta-0").textContent);
  const text = document.getElementById("iobench-timeline-data-0").textContent;
  const start = performance.now();
  const columns = await iobench.decodeTimeline(meta, text);
  const middle = performance.now();
  new iobench.Spans(meta, columns);
  const end = performance.now();
  return { unpack_ms: Math.round(middle - start), index_ms: Math.round(end - middle) };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=500_000)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--scale", type=float, default=1.0, help="device pixels per CSS pixel")
    parser.add_argument("--frames", type=int, default=40)
    options = parser.parse_args()
    profile = many_spans(options.spans)
    start_ns = time.perf_counter_ns()
    payload = timeline_payload(Run(profile).of_rank())
    spent_ns = time.perf_counter_ns() - start_ns
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        path = Path(folder) / "page.html"
        path.write_text(page_of([payload]))
        page = PageOpener(browser)(path, width=options.width, device_scale_factor=options.scale)
        page.evaluate("async () => { window.timeline = await iobench.timelines[0]; }")
        page.wait_for_function("timeline.frames > 0", timeout=60_000)
        found = page.evaluate(UNPACK) | page.evaluate(MEASURE, options.frames)
    sizes = {
        "n_spans": payload.meta["n_spans"],
        "n_shown": payload.meta["n_shown"],
        "data_nbytes": len(payload.data),
        "meta_nbytes": len(json.dumps(payload.meta)),
        "make_ms": spent_ns // 1_000_000,
    }
    print(json.dumps(sizes | found))


if __name__ == "__main__":
    main()
