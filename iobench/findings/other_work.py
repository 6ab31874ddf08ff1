"""Work that no table of stages has: operations of opaque loaders, and other threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.ledger import apportion
from iobench.analysis.time_intervals import covered
from iobench.findings.contract import Finding
from iobench.recording.kinds import WORKER_KINDS, Kind, halves, is_one_of, lane_keys
from iobench.recording.span_file import Flag
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

FEEDS_ITSELF: Final = ("Prefetch",)
"""Operations whose only thread runs those before them as well."""
NEARLY: Final = 0.9
"""An operation nearly as busy as the busiest one holds the pipeline up as much."""
MAKES_BATCHES: Final = "MainThread"
"""The thread of a loading process that batches are made in; before the first it opens files."""
MOST_LISTED: Final = 3


class OtherWork(msgspec.Struct, frozen=True):
    """Work of a training process that no wait is charged to, batch by batch.

    ``operators_exposed_ns`` is an estimate: the wait for opaque loaders, by the operations that
    they report sums of. ``background_busy_ns`` is work of other threads for no known batch.
    """

    operators_exposed_ns: Mapping[str, int]
    background_busy_ns: int


def other_work(run: RankRun) -> OtherWork | None:
    """Return such work of a training process; None where there was none."""
    work = OtherWork(_operators(run), _background_ns(run))
    return work if work.operators_exposed_ns or work.background_busy_ns else None


def _operators(run: RankRun) -> dict[str, int]:
    """Return the opaque wait by operation; several loaders share it by what each is waited for."""
    exposure = run.exposure
    opaque_ns = sum(row.exposed_ns for row in exposure.whole.stages if row.kind == Kind.OPAQUE)
    waits_ns = {each.number: each.wait_ns for each in exposure.loaders}
    all_ns = max(1, sum(waits_ns.values()))
    shares: dict[str, int] = {}
    for loader in (each for process in run.own_facts for each in process.loaders if each.operators):
        own_ns = opaque_ns * waits_ns.get(loader.number, 0) // all_ns
        parts = split_by_operators(own_ns, loader.operators)
        for operator, share in zip(loader.operators, parts, strict=True):
            if share:
                name = f"{operator['operation']} of loader {loader.number}"
                shares[name] = shares.get(name, 0) + share
    return shares


def split_by_operators(exposed_ns: int, operators: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the exposed wait of an opaque pipeline by operation: exact in sum, 0 without work.

    Operations without threads of their own run, one after another, in the thread that requests
    their elements. The busiest thread's operations share the wait with those of threads at least
    90 % as busy, in proportion to their time per thread.
    """
    busy = [int(each["busy_ns"]) // max(1, int(each.get("parallelism") or 1)) for each in operators]
    thread = _threads(operators)
    together = [0] * len(operators)
    for number, value in zip(thread, busy, strict=True):
        together[number] += value
    least = NEARLY * max(together, default=0)
    # An operation serves other batches as well: no share has to fit into the time it worked.
    weights = [
        value * max(1, exposed_ns) if together[number] >= least else 0
        for number, value in zip(thread, busy, strict=True)
    ]
    return tuple(apportion(exposed_ns, weights)) if any(weights) else (0,) * len(operators)


def _threads(operators: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the number of the thread, or of the group of threads, of each operation."""
    numbers: list[int] = []
    alone = True  # whether the operation before shares its threads with none
    for each in operators:
        own = each.get("own_threads")
        numbers.append(numbers[-1] if own is False and not alone else len(numbers))
        # What many threads do is fed by one more; what has one thread (Prefetch) feeds itself.
        alone = own is None or (own and str(each["operation"]) not in FEEDS_ITSELF)
    return numbers


def _background_ns(run: RankRun) -> int:
    """Return the work during the loop of threads that neither make batches nor train."""
    waits = run.deliveries
    if not len(waits):
        return 0
    spans = run.loop.spans_of(run)
    spans = spans[(spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0]
    keys = lane_keys(spans)
    during = (spans["start_ns"] >= waits.requested_ns[0]) & (spans["start_ns"] < waits.until_ns[-1])
    works = during & is_one_of(spans["kind"], WORKER_KINDS)
    busy_ns = 0
    for lane in np.setdiff1d(keys[works], keys[spans["batch"] >= 0]).tolist():
        process, thread = halves(lane)
        name = run.processes[process].threads[thread]
        if (process, thread) != (run.loop.process, run.loop.thread) and name != MAKES_BATCHES:
            mine = spans[works & (keys == lane)]
            start, end = (mine[each].astype(np.int64) for each in ("start_ns", "end_ns"))
            busy_ns += covered(start, end)
    return busy_ns


def other_section(work: OtherWork) -> Section:
    """Return one sentence for each sort of such work."""
    return Section("other_work", "Other work", sentences(_texts(work)))


def _texts(work: OtherWork) -> Iterator[str]:
    if work.operators_exposed_ns:
        longest = sorted(work.operators_exposed_ns.items(), key=lambda each: -each[1])
        parts = [f"{name} {units.duration(ns)}" for name, ns in longest[:MOST_LISTED]]
        yield f"Estimated: the opaque wait falls on the busiest operations: {'; '.join(parts)}."
    if work.background_busy_ns:
        yield (
            f"Other threads worked for {units.duration(work.background_busy_ns)} on no known "
            "batch; no wait is attributed to it."
        )


FINDING: Final = Finding("other_work", 90, OtherWork, other_work, other_section)
