"""A question asked of a run by somebody else: which batch was waited for longest."""

from dataclasses import dataclass

from iobench.analysis.run import RankRun
from iobench.findings.contract import Finding
from iobench.report.document import Column, Quantity, Section, Table


@dataclass(frozen=True, slots=True)
class LongestWait:
    """The batch that was waited for longest.

    Parameters
    ----------
    batch : int
        Its number.
    wait_ns : int
        How long it was waited for.
    """

    batch: int
    wait_ns: int


def longest_wait(run: RankRun) -> LongestWait | None:
    deliveries = run.deliveries
    if not len(deliveries):
        return None
    place = int(deliveries.wait_ns.argmax())
    return LongestWait(int(deliveries.batch[place]), int(deliveries.wait_ns[place]))


def section(found: LongestWait) -> Section:
    row = (Quantity(found.batch, "count"), Quantity(found.wait_ns, "ns"))
    table = Table("", (Column("batch"), Column("waited for")), (row,))
    return Section("longest-wait", "The longest wait", (table,))


FINDING = Finding("longest_wait", 900, LongestWait, longest_wait, section)
