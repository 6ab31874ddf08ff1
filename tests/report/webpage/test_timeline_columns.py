"""Spans as columns for a page: exact, small, and honest about what is left out."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from many_spans import many_spans
from timeline_pages import ASSETS, unpacked

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.report.timeline.model import timeline_of
from iobench.report.timeline.page_payload import choose_spans, timeline_payload
from iobench.report.webpage.shell import TIMELINE_SCRIPTS, TIMELINE_STYLES

sys.path.append(str(Path(__file__).parents[2] / "analysis" / "support"))

from schedules import pool

from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

UPLOT = {  # 1.6.32, as npm has it
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
times = st.integers(0, 1000)


def check(profile: RunData, limit: int = 500_000) -> dict[str, list[int]]:
    """Unpack a payload and hold it against the timeline it was made from."""
    payload = timeline_payload(Run(profile).of_rank(), limit)
    meta = json.loads(json.dumps(payload.meta, allow_nan=False))
    timeline = timeline_of(Run(profile))
    rows = choose_spans(timeline, limit)
    columns = unpacked(payload)
    spans = timeline.spans[rows]
    assert (meta["n_spans"], meta["n_shown"]) == (len(timeline), len(rows))
    assert meta["length_ns"] == timeline.end_ns - timeline.start_ns
    assert columns["lane"] == timeline.lane[rows].tolist()
    assert columns["start"] == (spans["start_ns"] - timeline.start_ns).tolist()
    assert columns["length"] == (spans["end_ns"] - spans["start_ns"]).tolist()
    assert columns["depth"] == timeline.depth[rows].tolist()
    assert columns["stage"] == timeline.stage[rows].tolist()
    assert columns["exposed"] == timeline.exposed_ns[rows].tolist()
    for name in ("nbytes", "batch", "sample", "epoch"):
        assert columns[name] == spans[name].tolist(), name
    names = [columns["names"][place] for place in columns["name"]]
    assert names == [profile.strings[detail] for detail in spans["detail"].tolist()]
    return columns


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=20),
    st.integers(0, 4),
    st.integers(0, 3000),
)
def test_every_span_comes_back_exactly(
    durations: list[tuple[int, int, int]], workers: int, step_ns: int
) -> None:
    check(pool(durations, workers=workers, step_ns=step_ns).data())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**52),
            st.integers(0, 2**52),
            st.integers(-1, 2**62),
            st.integers(-1, 2**31 - 1),
        ),
        max_size=12,
    )
)
def test_absurd_numbers_come_back_as_well(rows: list[tuple[int, int, int, int]]) -> None:
    sketch = SketchedRun({"workers": 0})
    for start, length, nbytes, batch in rows:
        sketch.add(
            CONSUMER, Kind.READ, start, start + length, nbytes=nbytes, batch=batch, sample=nbytes,
            detail=f"file {batch}",
        )  # fmt: skip
    check(sketch.data())


def test_all_waits_are_shown_and_the_rest_by_exposed_time() -> None:
    profile = many_spans(3000)
    timeline = timeline_of(Run(profile))
    is_wait = timeline.spans["kind"] == Kind.WAIT
    rows = choose_spans(timeline, int(is_wait.sum()) + 400)
    assert len(rows) == int(is_wait.sum()) + 400
    assert np.isin(np.flatnonzero(is_wait), rows).all(), "every wait"
    shown = np.isin(np.arange(len(timeline)), rows)
    worst = np.sort(timeline.exposed_ns[~is_wait])[::-1][:200]
    assert timeline.exposed_ns[~shown & ~is_wait].max() <= worst[-1]
    assert np.array_equal(rows, choose_spans(timeline, len(rows)))
    check(profile, len(rows))
    waits = np.sort(timeline.exposed_ns[is_wait])
    rows = choose_spans(timeline, 10)
    assert np.sort(timeline.exposed_ns[rows]).tolist() == waits[-10:].tolist()
    assert len(choose_spans(timeline, 0)) == 0


def test_uplot_is_the_one_that_was_looked_at() -> None:
    for name, digest in UPLOT.items():
        assert hashlib.sha256((ASSETS / "uplot" / name).read_bytes()).hexdigest() == digest
    assert b"(v1.6.32)" in (ASSETS / "uplot" / "uPlot.iife.min.js").read_bytes()[:100]


def test_all_assets_are_there() -> None:
    for name in (*TIMELINE_SCRIPTS, *TIMELINE_STYLES):
        text = (ASSETS / name).read_text("utf-8").lower()
        assert "</script" not in text
        assert "</style" not in text
        assert "http" not in text or name.startswith("uplot/"), "nothing is fetched"
