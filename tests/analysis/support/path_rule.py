"""The attribution of worker pools once more, span by span and without any cleverness.

An independent reference: it knows one thread per worker, whole batches, no nesting.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from iobench.recording import Kind

if TYPE_CHECKING:
    from schedules import Sketch

WORK = (Kind.READ, Kind.DECODE, Kind.COLLATE)


def path_rule(sketch: Sketch) -> dict[str, Fraction]:
    """Return the exposed time by stage as exact fractions of ns."""
    work = [span for span in sketch.spans if span["kind"] in WORK]
    work.sort(key=lambda span: (span["start_ns"], span["end_ns"]))
    submitted = {
        span["batch"]: span["start_ns"]
        for span in sketch.spans
        if span["kind"] == Kind.SUBMIT_QUEUE
    }
    waits = [span for span in sketch.spans if span["kind"] == Kind.WAIT and "batch" in span]
    exposed: dict[str, Fraction] = {}
    on_earlier_path: list[dict[str, object]] = []

    def give(stage: str, amount: Fraction | int) -> None:
        if amount:
            exposed[stage] = exposed.get(stage, Fraction(0)) + amount

    for wait in sorted(waits, key=lambda span: span["start_ns"]):
        asked, delivered = wait["start_ns"], wait["end_ns"]
        own = [span for span in work if span["batch"] == wait["batch"]]
        if not own:
            give("unknown", delivered - asked)
            continue
        ready = max(span["end_ns"] for span in own)
        give("handover", delivered - max(asked, ready))
        if ready <= asked:
            continue
        lane = [span for span in work if span["lane"] == own[0]["lane"]]
        path, place = [], max(i for i, span in enumerate(lane) if span["batch"] == wait["batch"])
        start = lane[place]["start_ns"]
        while place >= 0 and not any(lane[place] is span for span in on_earlier_path):
            span = lane[place]
            path.append(span)
            start = span["start_ns"]
            place -= 1
            if place >= 0:
                new_batch = lane[place]["batch"] != span["batch"]
                if new_batch and submitted[span["batch"]] > lane[place]["end_ns"]:
                    break
                start = lane[place]["end_ns"]
        on_earlier_path.extend(path)
        first = path[-1]
        if start > asked:
            life = first is lane[0]
            queued = start if life else min(max(submitted[first["batch"]], asked), start)
            give("startup" if life else "starved_submit", queued - asked)
            give("submit_queue", start - queued)
        share = Fraction(ready - max(asked, start), ready - start)
        for span in path:
            give(span["kind"].spelled, share * (span["end_ns"] - span["start_ns"]))
        idle = ready - start - sum(span["end_ns"] - span["start_ns"] for span in path)
        give("worker_gap", share * idle)
    return exposed
