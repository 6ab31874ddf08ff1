"""The rule for worker pools alone: the chain of one worker's batches (section 4, last sentence).

It knows batches, not spans: when each was submitted, begun and finished, and its stages' times.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from tests.support.sketched_runs import SketchedRun

WORK = (Kind.READ, Kind.DECODE, Kind.COLLATE)


class Batch:
    """One batch of one worker, and the one that worker made before."""

    def __init__(self, spans: list[dict], submitted: int, before: Batch | None) -> None:
        self.begun = min(span["start_ns"] for span in spans)
        self.done = max(span["end_ns"] for span in spans)
        self.spent = {span["kind"].spelled: 0 for span in spans}
        for span in spans:
            self.spent[span["kind"].spelled] += span["end_ns"] - span["start_ns"]
        self.submitted = submitted
        self.before = before
        self.charged = False

    @property
    def had_slack(self) -> bool:
        return self.before is None or self.submitted > self.before.done


def batches_of(sketch: SketchedRun) -> dict[int, Batch]:
    made: dict[int, Batch] = {}
    submitted = {
        span["batch"]: span["start_ns"]
        for span in sketch.spans
        if span["kind"] == Kind.SUBMIT_QUEUE
    }
    for lane in {span["lane"] for span in sketch.spans if span["kind"] in WORK}:
        spans = [span for span in sketch.spans if span["lane"] == lane and span["kind"] in WORK]
        before = None
        for number in dict.fromkeys(span["batch"] for span in spans):
            own = [span for span in spans if span["batch"] == number]
            before = made[number] = Batch(own, submitted[number], before)
    return made


def chain_rule(sketch: SketchedRun) -> dict[str, Fraction]:
    """Return the exposed time by stage as exact fractions of ns; ``shutdown`` is left out."""
    batches = batches_of(sketch)
    exposed: dict[str, Fraction] = {}

    def give(stage: str, amount: Fraction | int) -> None:
        exposed[stage] = exposed.get(stage, Fraction(0)) + amount

    waits = [span for span in sketch.spans if span["kind"] == Kind.WAIT and "batch" in span]
    for wait in sorted(waits, key=lambda span: span["start_ns"]):
        asked, delivered = wait["start_ns"], wait["end_ns"]
        batch = batches[wait["batch"]]
        give("handover", delivered - max(asked, batch.done))
        if batch.done <= asked or batch.charged:
            continue
        chain = [batch]
        while not chain[-1].had_slack and not chain[-1].before.charged:
            chain.append(chain[-1].before)
        first = chain[-1]
        start = first.begun if first.had_slack else first.before.done
        if start > asked:
            queued = start if first.before is None else min(max(first.submitted, asked), start)
            give("startup" if first.before is None else "starved_submit", queued - asked)
            give("submit_queue", start - queued)
        if batch.done > start:
            share = Fraction(batch.done - max(asked, start), batch.done - start)
            for each in chain:
                each.charged = True
                for stage, spent in each.spent.items():
                    give(stage, share * spent)
            idle = batch.done - start - sum(sum(each.spent.values()) for each in chain)
            give("worker_gap", share * idle)
    return {stage: amount for stage, amount in exposed.items() if amount}
