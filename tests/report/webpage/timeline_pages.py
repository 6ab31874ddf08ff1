"""Pages that hold a timeline and the charts of waits, and nothing else."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.analysis.run import Run
from iobench.report.timeline import page_payload
from iobench.report.webpage import shell
from iobench.report.webpage.shell import TIMELINE_SCRIPTS, TIMELINE_STYLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.timeline.page_payload import TimelinePayload
    from iobench.runs.contents import RunData

ASSETS = Path(shell.__file__).parent / "assets"
COLOURS = """
:root { --ground: #fff; --ink: #1a1d21; --line: #d9dde2; --faint: #5d6570; --accent: #0b62c4;
  --exposed: #d6402b; --hidden: #b8c4d0; --unknown: #8a8f98; --kind-read: #2f6fb3;
  --kind-decode: #2a9d6f; --kind-preprocess: #8a5cc2; --kind-other: #7d8791; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --ink: #e8eaed; --line: #343a42;
  --faint: #9aa3ad; --accent: #62a8ff; --exposed: #ff6b52; } }
body { margin: 12px; background: var(--ground); color: var(--ink); font: 15px system-ui; }
"""


def embedded(value: Any) -> str:
    """Return JSON that cannot end its script element."""
    return json.dumps(value).replace("<", "\\u003c")


def page_of(
    payloads: Sequence[TimelinePayload], runs: Sequence[dict[str, Any]] = (), styles: str = COLOURS
) -> str:
    """Return a page with the timelines of runs, and their charts where ``runs`` has waits."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Timeline</title>"]
    parts.append('<meta name=viewport content="width=device-width, initial-scale=1">')
    parts += [f"<style>{(ASSETS / name).read_text()}</style>" for name in TIMELINE_STYLES]
    parts.append(f"<style>{styles}</style><body>")
    for number, payload in enumerate(payloads):
        parts.append(f'<div class="timeline" data-run="{number}"></div>')
        parts.append(f'<div class="wait-chart" data-run="{number}"></div>')
        parts.append(f'<div class="wait-distribution" data-run="{number}"></div>')
        meta = f'<script type="application/json" id="iobench-timeline-meta-{number}">'
        parts.append(f"{meta}{embedded(payload.meta)}</script>")
        data = f'<script type="text/plain" id="iobench-timeline-data-{number}">'
        parts.append(f"{data}{payload.data}</script>")
    report = embedded({"runs": list(runs), "job": None})
    parts.append(f'<script type="application/json" id="iobench-report">{report}</script>')
    parts += [f"<script>{(ASSETS / name).read_text()}</script>" for name in TIMELINE_SCRIPTS]
    return "\n".join(parts)


def write_timeline(path: Path, *profiles: RunData, limit: int = 500_000) -> Path:
    """Write a page of profiles; return where it is."""
    from iobench.report.report_document import report_document

    payloads = [page_payload.timeline_payload(Run(each).of_rank(), limit) for each in profiles]
    runs = [report_document([Run(each)]).figures()["runs"][0] for each in profiles]
    path.write_text(page_of(payloads, runs))
    return path


def unpacked(payload: TimelinePayload) -> dict[str, Any]:
    """Return the columns of a payload as the browser would: what `page_payload` promises."""
    stream = zlib.decompress(base64.b64decode(payload.data))
    meta, n_rows = payload.meta, payload.meta["n_shown"]
    lanes = [n for n, lane in enumerate(meta["lanes"]) for _ in range(lane["n_spans"])]
    offset = meta["names_nbytes"]
    columns: dict[str, Any] = {"lane": lanes, "names": json.loads(stream[:offset])}
    for name, n_planes in meta["columns"]:
        values, last = [], 0
        for row in range(n_rows):
            coded = sum(stream[offset + k * n_rows + row] << 8 * k for k in range(n_planes))
            last += coded >> 1 ^ -(coded & 1)
            values.append(last)
        columns[name] = values
        offset += n_planes * n_rows
    assert offset == len(stream)
    return columns
