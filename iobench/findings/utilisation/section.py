"""Accelerator utilisation as MLPerf Storage has it, as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.utilisation.figures import (
    MLPERF_THRESHOLDS,
    Utilisation,
    mean_utilisation,
    utilisation,
)
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

N_STAGES: Final = 4
"""Stages that are named; the rest is one."""


def utilisation_section(found: Utilisation) -> Section:
    """Return the utilisation, what is missing to all of it, and what MLPerf Storage asks for."""
    return Section("utilisation", "MLPerf Storage", sentences(_lines(found)), is_folded=True)


def _lines(found: Utilisation) -> Iterator[str]:
    formula = f"Accelerator utilisation by MLPerf Storage's formula ({found.formula})"
    if found.fraction is None:
        yield f"{formula}: unknown, because it leaves out the first step and there was no other."
        return
    over = f", mean of {found.n_ranks} ranks" if found.n_ranks > 1 else ""
    over += f", mean of {len(found.epochs)} epochs" if len(found.epochs) > 1 else ""
    missing = _missing(found.missing or {})
    rest = f"; the other {units.fraction(1 - found.fraction)}: {missing}" if missing else ""
    yield f"{formula}{over}: {units.fraction(found.fraction)}{rest}."
    by_value: dict[float, list[str]] = {}
    for workload, value in MLPERF_THRESHOLDS.items():
        by_value.setdefault(value, []).append(workload)
    told = [f"{units.fraction(value)} for {' and '.join(n)}" for value, n in by_value.items()]
    yield f"For comparison, MLPerf Storage requires {', '.join(told)}."


def _missing(shares: Mapping[str, float]) -> str:
    stages = list(shares.items())
    shown = [f"{stage_title(stage)} {units.fraction(share)}" for stage, share in stages[:N_STAGES]]
    left = sum(share for _, share in stages[N_STAGES:])
    return ", ".join([*shown, *([f"all else {units.fraction(left)}"] if left else [])])


FINDING: Final = Finding(
    name="mlperf_utilisation",
    order=400,
    figures=utilisation,
    section=utilisation_section,
    together=mean_utilisation,
)
"""Accelerator utilisation, as the entry point names it."""
