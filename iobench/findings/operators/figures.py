"""The wait for an opaque pipeline by its operations: an estimate, from what these tell of sums.

Without the numbers of batches nobody can follow one through the threads of such a pipeline. Where
it tells how long each operation worked in all, over how many threads, the slowest one is what its
pace hangs on: the definition's last resort, "split by its busiest operator".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from iobench.analysis.ledger import apportion
from iobench.json_keys import HIDDEN, INLINE, ITSELF, key
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.analysis.run import RankRun

FEEDS_ITSELF: Final = ("Prefetch",)
"""Operations whose only thread does what they ask for as well."""
NEARLY: Final = 0.9
"""An operation nearly as busy as the busiest one holds the pipeline up as much."""


class OperatorShare(msgspec.Struct, frozen=True):
    """What an operation of an opaque pipeline is held to have cost the training loop.

    Parameters
    ----------
    operation, kind : str
        As the pipeline reports them.
    busy_ns : int
        Over all its threads.
    occupied_ns : int
        The same per thread it may use: what the pipeline cannot be faster than.
    exposed_ns : int
        Of the pipeline's exposed wait.
    estimated : bool
        Always: nothing was measured by batch.
    """

    operation: str
    kind: str
    busy_ns: int
    occupied_ns: int
    exposed_ns: int
    estimated: bool = True
    JSON_KEYS: ClassVar = {
        "exposed_ns": key("exposed_s", "exposed_ns"),
    }


class LoaderOperator(msgspec.Struct, frozen=True):
    """An operation of a loader that tells sums of them.

    Parameters
    ----------
    loader : int
        Its number.
    name : str
        What the loader is called.
    share : OperatorShare
        What of its wait the operation is held to have cost.
    """

    loader: int
    name: str
    share: OperatorShare
    JSON_KEYS: ClassVar = {
        "name": HIDDEN,
        "share": INLINE,
    }


class Operators(msgspec.Struct, frozen=True):
    """The wait for ``opaque`` stages by operations of loaders that report sums of these.

    Parameters
    ----------
    rows : tuple of LoaderOperator
        By loader, in the order of its pipeline.
    """

    rows: tuple[LoaderOperator, ...]
    JSON_KEYS: ClassVar = {
        "rows": key(ITSELF),
    }


def operators_of(run: RankRun) -> Operators:
    """Return the opaque wait of a training process by the operations of its loaders.

    Of several loaders that tell of them each gets the opaque wait in proportion to all that was
    waited for it.
    """
    exposure = run.exposure
    opaque_ns = sum(row.exposed_ns for row in exposure.whole.stages if row.kind == Kind.OPAQUE)
    waits_ns = {each.number: each.wait_ns for each in exposure.loaders}
    # The part of a loader that tells nothing stays unsplit: it is not another one's.
    of_all = max(1, sum(waits_ns.values()))
    rows = []
    for loader in (each for process in run.facts for each in process.loaders if each.operators):
        own_ns = opaque_ns * waits_ns.get(loader.number, 0) // of_all
        shares = split_by_operators(own_ns, loader.operators) if own_ns else ()
        rows += [LoaderOperator(loader.number, loader.name, share) for share in shares]
    return Operators(tuple(rows))


def split_by_operators(
    exposed_ns: int, operators: Sequence[Mapping[str, Any]]
) -> tuple[OperatorShare, ...]:
    """Return the exposed wait of an opaque pipeline, split over its operations; exact in sum.

    Operations without threads of their own are done, one after another, by the thread that asks
    for their elements: they are as busy as all of them together. The busiest thread's operations,
    by time per thread, get all of the wait, or share it with those of threads that are at least
    90 % as busy, in proportion to the time of each operation.

    Parameters
    ----------
    exposed_ns : int
        The wait for what the pipeline made, not negative.
    operators : sequence of mapping
        As `LoaderFacts.operators`: ``operation, kind, busy_ns, parallelism, own_threads``, from
        the training loop's end on. Where the last is not told, each is a thread of its own.

    Returns
    -------
    tuple of OperatorShare
        In the order given; empty where no operation has worked.
    """
    occupied = [
        int(each["busy_ns"]) // max(1, int(each.get("parallelism") or 1)) for each in operators
    ]
    thread = _threads(operators)
    together = [0] * (max(thread, default=-1) + 1)
    for number, value in zip(thread, occupied, strict=True):
        together[number] += value
    busiest = max(together, default=0)
    if not busiest:
        return ()
    weights = [
        value if together[number] >= NEARLY * busiest else 0
        for number, value in zip(thread, occupied, strict=True)
    ]
    # An operation of other batches as well: no share has to fit into the time it worked.
    scale = max(1, exposed_ns)
    shares = apportion(exposed_ns, [weight * scale for weight in weights])
    return tuple(
        OperatorShare(str(each["operation"]), str(each["kind"]), int(each["busy_ns"]), own, share)
        for each, own, share in zip(operators, occupied, shares, strict=True)
    )


def _threads(operators: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the number of the thread, or of the group of threads, that does each operation."""
    found: list[int] = []
    alone = True  # whether the operation before shares its threads with none
    for each in operators:
        own = each.get("own_threads")
        found.append(found[-1] if own is False and not alone else len(found))
        # What many threads do is fed by one more; what has one thread (Prefetch) feeds itself.
        alone = own is None or (own and str(each["operation"]) not in FEEDS_ITSELF)
    return found
