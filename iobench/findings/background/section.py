"""What threads read and decoded for no batch that is known: a table, and what it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.background.figures import background_of
from iobench.findings.contract import Finding
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import Bytes, Column, Count, Duration, Section, Table, sentences

if TYPE_CHECKING:
    from iobench.findings.background.figures import Background


def background_section(found: Background) -> Section:
    """Return what these threads did, and that no wait is charged to it."""
    busy_ns = sum(each.busy_ns for each in found.stages)
    threads = "One thread" if found.n_threads == 1 else f"{found.n_threads} threads"
    told = (
        f"{threads} besides those that make batches worked for {units.duration(busy_ns)} on "
        "nothing that belongs to a batch, as libraries do that download, decompress or read "
        "ahead. No table of stages includes this work, and no wait is attributed to it: a batch "
        "that waited for such a thread shows that wait under making samples."
    )
    table = Table(
        "",
        (
            Column("stage"),
            Column("busy", "time"),
            Column("handed on"),
            Column("spans"),
        ),
        tuple(
            (
                stage_title(each.stage),
                Duration(each.busy_ns),
                Bytes(each.nbytes),
                Count(each.n_spans),
            )
            for each in found.stages
        ),
    )
    return Section("background", "Work in the background", (*sentences([told]), table))


FINDING: Final = Finding("background", 95, background_of, background_section)
"""Work in the background, as the entry point names it."""
