"""What a loader's own operations are held to have cost, where nothing was seen of single batches.

An estimate, and told as one: `iobench.analysis.operators` says how it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from iobench.analysis.operators import OperatorShare, split_by_operators
from iobench.json_keys import INLINE
from iobench.report import units

if TYPE_CHECKING:
    from iobench.recording.facts import LoaderFacts
    from iobench.report.run_report import RunReport

__all__ = ["OperatorRow", "operator_lines", "operator_rows"]

OPAQUE: Final = "opaque"
MOST_LISTED: Final = 3


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operation of a loader that tells sums of them.

    Parameters
    ----------
    loader : int
        Its number.
    share : OperatorShare
        What of its wait the operation is held to have cost.
    """

    loader: int
    share: OperatorShare = field(metadata=INLINE)


def operator_rows(report: RunReport) -> tuple[OperatorRow, ...]:
    """Return all operations of such loaders."""
    return tuple(
        OperatorRow(loader.number, share)
        for loader, shares in operator_shares(report)
        for share in shares
    )


def operator_shares(report: RunReport) -> list[tuple[LoaderFacts, tuple[OperatorShare, ...]]]:
    """Return the loaders that tell sums of their operations, and the opaque wait split by them.

    Of several such loaders each gets the opaque wait in proportion to all that was waited for it.
    """
    opaque_ns = sum(
        row.exposed_ns
        for row in report.exposure.whole.stages
        if row.stage.partition(":")[0] == OPAQUE
    )
    told = [each for process in report.told for each in process.loaders if each.operators]
    waits_ns = {each.number: each.wait_ns for each in report.exposure.loaders}
    # The part of a loader that tells nothing stays unsplit: it is not another one's.
    of_all = max(1, sum(waits_ns.values()))
    found = []
    for loader in told:
        own_ns = opaque_ns * waits_ns.get(loader.number, 0) // of_all
        shares = split_by_operators(own_ns, loader.operators) if own_ns else ()
        if shares:
            found.append((loader, shares))
    return found


def operator_lines(report: RunReport) -> list[str]:
    """Return a line for each such loader: the operations its opaque wait is held to be for."""
    lines = []
    for loader, shares in operator_shares(report):
        blamed = sorted(
            (each for each in shares if each.exposed_ns), key=lambda each: -each.exposed_ns
        )
        parts = [
            f"{each.operation} ({each.kind}) {units.duration(each.exposed_ns)}, which worked "
            f"{units.duration(each.busy_ns)} in its last round"
            for each in blamed[:MOST_LISTED]
        ]
        lines.append(
            f"Estimated, not measured by batch: of the opaque wait for loader {loader.number} "
            f"({loader.name or units.UNKNOWN}) its busiest operations cost {'; '.join(parts)}."
        )
    return lines
