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
    from iobench.report.json_report import to_json

    payloads = [page_payload.timeline_payload(Run(each), limit) for each in profiles]
    path.write_text(page_of(payloads, [to_json([Run(each)])["runs"][0] for each in profiles]))
    return path


def unpacked(payload: TimelinePayload) -> dict[str, Any]:
    """Return the columns of a payload as the browser would: what `page_payload` promises."""
    stream = zlib.decompress(base64.b64decode(payload.data))
    lanes = [lane["n_spans"] for lane in payload.meta["lanes"]]
    columns: dict[str, Any] = {"lane": [n for n, count in enumerate(lanes) for _ in range(count)]}
    for described in payload.meta["columns"]:
        name, prediction = described["name"], described["prediction"]
        data = stream[described["offset"] : described["offset"] + described["nbytes"]]
        if prediction == "json":
            columns[name] = json.loads(data)
            continue
        values = _numbers(data)
        if prediction not in {"none", "exposed"}:
            values = [value >> 1 ^ -(value & 1) for value in values]
        if prediction == "exposed":
            lengths = zip(values, columns["length"], strict=True)
            values = [(0, -1, length, value - 3)[min(value, 3)] for value, length in lengths]
        if prediction in {"row", "stage", "sample"}:
            groups = columns.get(prediction, [0] * len(values))
            last: dict[int, int] = {}
            for row, group in enumerate(groups):
                values[row] = last[group] = values[row] + last.get(group, 0)
        columns[name] = values
    start, length, depth = columns["start"], columns["length"], columns["depth"]
    for row in range(1, len(start)):
        if columns["lane"][row] == columns["lane"][row - 1]:
            deeper = depth[row] > depth[row - 1]
            start[row] += start[row - 1] + (0 if deeper else length[row - 1])
    return columns


def _numbers(data: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value = shift = 0
    return found
