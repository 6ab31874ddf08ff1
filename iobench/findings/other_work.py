"""Work that no table of stages has: operations of opaque loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.ledger import apportion
from iobench.findings.contract import Finding
from iobench.recording.kinds import Kind
from iobench.report import units
from iobench.report.document import Section, Sentence

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

FEEDS_ITSELF: Final = ("Prefetch",)
"""Operations whose only thread runs those before them as well."""
NEARLY: Final = 0.9
"""An operation nearly as busy as the busiest one holds the pipeline up as much."""
MOST_LISTED: Final = 3


class OtherWork(msgspec.Struct, frozen=True):
    """The wait for opaque loaders, estimated, by the operations that they report sums of."""

    operators_exposed_ns: Mapping[str, int]


def other_work(run: RankRun) -> OtherWork | None:
    """Return such work of a training process; None where there was none."""
    operators = _operators(run)
    return OtherWork(operators) if operators else None


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


def other_section(work: OtherWork) -> Section:
    """Return the operations that most of the wait falls on, in a sentence."""
    longest = sorted(work.operators_exposed_ns.items(), key=lambda each: -each[1])
    parts = [f"{name} {units.duration(ns)}" for name, ns in longest[:MOST_LISTED]]
    text = f"Estimated: the opaque wait falls on the busiest operations: {'; '.join(parts)}."
    return Section("other_work", "Other work", (Sentence(text),))


FINDING: Final = Finding("other_work", 90, OtherWork, other_work, other_section)
