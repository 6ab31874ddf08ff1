"""Figures of a run that tables of several runs have beside its times: energy, and its script's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.energy import energy_j
from iobench.findings.script_figures import metrics_of_ranks, script_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.analysis.run import RankRun

ENERGY: Final = "energy_j"


def last_figures(run: Iterable[RankRun]) -> dict[str, float | None]:
    """Return the energy of a run, and what its script's own figures were in their last epoch."""
    ranks = [*run]
    energy = energy_j(ranks)
    result = metrics_of_ranks([each for rank in ranks if (each := rank.cached(script_metrics))])
    return {
        **({} if energy is None else {ENERGY: energy}),
        **({} if result is None else {name: of[-1].mean for name, of in result.epochs.items()}),
    }


def own_title(name: str) -> str:
    """Return what tables call a figure of `last_figures`."""
    return "energy" if name == ENERGY else f"{name}, last epoch"
