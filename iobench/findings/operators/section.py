"""The busiest operations of opaque loaders, as people read them: an estimate, and told as one."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.operators.figures import Operators, operators_of
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.findings.operators.figures import LoaderOperator

MOST_LISTED: Final = 3


def operators_section(found: Operators) -> Section | None:
    """Return a sentence for each such loader: the operations its opaque wait is held to be for."""
    by_loader = groupby(found.rows, lambda each: (each.loader, each.name))
    told = [
        _sentence(f"{number} ({name or units.UNKNOWN})", rows) for (number, name), rows in by_loader
    ]
    return Section("operators", "Operations of loaders", sentences(told)) if told else None


def _sentence(loader: str, rows: Iterable[LoaderOperator]) -> str:
    blamed = [each.share for each in rows if each.share.exposed_ns]
    parts = [
        f"{each.operation} ({each.kind}) {units.duration(each.exposed_ns)} (busy for "
        f"{units.duration(each.busy_ns)} in its last round)"
        for each in sorted(blamed, key=lambda each: -each.exposed_ns)[:MOST_LISTED]
    ]
    return (
        f"Estimated, not measured by batch: the busiest operations of loader {loader} account for "
        f"this part of its opaque wait: {'; '.join(parts)}."
    )


FINDING: Final = Finding("operators", 300, operators_of, operators_section)
"""The operations of opaque loaders, as the entry point names them."""
