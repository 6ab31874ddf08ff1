"""A comparison for machines: plain values, unrounded; unknown is null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.step_sums import EXPOSED
from iobench.report.compare_figures import TURNS
from iobench.report.units import seconds
from iobench.report.utilisation_lines import digest_text, utilisation_to_json

if TYPE_CHECKING:
    from iobench.analysis.samples_compared import FirstDifference, SamplesComparison
    from iobench.analysis.step_sums import StepSums
    from iobench.report.compare_figures import ComparedFigure, PairComparison
    from iobench.report.compared_runs import ComparedRun, Comparison
    from iobench.report.measured_runs import MeasuredRun

__all__ = ["COMPARISON_VERSION", "comparison_to_json"]

COMPARISON_VERSION: Final = 2


def comparison_to_json(found: Comparison) -> dict[str, Any]:
    """Return the comparison for ``json.dumps(allow_nan=False)``.

    - ``runs``: of each ``run`` (its directory), ``folded_batches`` (before all that is compared: of
      them there are sums only), ``whole``, ``steady`` and ``recurring``, a script's
      whole epochs after the first (null without), which have
      ``batches``, ``wall_s`` (of a rank, in the mean), ``wait_fraction``, ``wait_per_step_s``,
      ``samples_per_s``, ``bytes_per_s`` and ``exposed_fraction`` by stage, and
      ``mlperf_utilisation`` as of `to_json`. Of groups there is one entry for each
      run, and ``group`` counts their configurations from 0.
    - ``interleaved``: whether all runs took turns with the first. ``grouped``; ``window``: of
      which of these parts the comparisons are; ``steady`` whether it is that;
      ``waved``: why they would not have been compared without ``--anyway``.
    - ``comparisons``: of each run, or group, but the first: ``basis`` (``"turns"``,
      ``"stretches"``, ``"runs"``), ``n_cells`` of both, ``n_turns`` paired and there,
      ``forgetful_from``: of each how many steps it would take, where neighbouring stretches still
      depend on each other (else null), ``other_machine``: what differs of it,
      ``figures``: ``[{figure, stage, unit, values, ratio, low, high, differs, withheld}]``: the
      interval at 95 %; ``differs`` is null where there is none; ``withheld`` is a reason or null.
    - ``differences``: ``{name: [value of each run]}``.
    - ``samples``: of each run but the first, against that: ``verdict`` (``"identical samples, same
      order"``, ``"identical samples, other order"``, ``"different samples"``, ``"unknown"``),
      ``why_unknown``, counts, and ``first_difference``. Empty of groups.
    """
    return {
        "schema_version": COMPARISON_VERSION,
        "interleaved": all(pair.basis == TURNS for pair in found.pairs),
        "grouped": found.grouped,
        "window": found.window,
        "steady": found.window == "steady",
        "waved": list(found.waved),
        "runs": [
            _run(member) | ({"group": number} if found.grouped else {})
            for number, run in enumerate(found.runs)
            for member in run.members
        ],
        "comparisons": [
            _pair(run, pair) for run, pair in zip(found.runs[1:], found.pairs, strict=True)
        ],
        "differences": {name: list(values) for name, values in found.differences.items()},
        "samples": [_samples(each) for each in found.samples],
    }


def _run(run: MeasuredRun) -> dict[str, Any]:
    return {
        "run": run.name,
        "ranks": len(run.exposures),
        "folded_batches": run.n_folded,
        **{window: _window(sums) for window, sums in run.sums.items()},
        "mlperf_utilisation": utilisation_to_json(run.utilisation),
    }


def _window(sums: StepSums | None) -> dict[str, Any] | None:
    if sums is None:
        return None
    found = {name: sums.total(name) for name in ("steps", "wall", "wait", "loop")}
    steps, wall, wait, loop = (value or 0.0 for value in found.values())

    def per_s(name: str) -> float | None:
        amount = sums.total(name)
        return None if amount is None or not loop else amount * 1e9 / loop

    return {
        "batches": int(steps),
        "wall_s": seconds(int(loop)),
        "wait_fraction": wait / wall if wall else None,
        "wait_per_step_s": wait / steps / 1e9 if steps else None,
        "samples_per_s": per_s("samples"),
        "bytes_per_s": per_s("nbytes"),
        "exposed_fraction": {
            stage: share / wall
            for stage in sums.stages
            if wall and (share := sums.total(f"{EXPOSED}{stage}"))
        },
    }


def _pair(run: ComparedRun, pair: PairComparison) -> dict[str, Any]:
    return {
        "run": run.name,
        "basis": pair.basis,
        "n_cells": list(pair.n_cells),
        "n_turns": list(pair.n_turns),
        "forgetful_from": list(pair.forgetful_from),
        "other_machine": list(pair.other_machine),
        "figures": [_figure(figure) for figure in pair.figures],
    }


def _figure(figure: ComparedFigure) -> dict[str, Any]:
    interval = figure.interval
    return {
        "figure": figure.key,
        "stage": figure.stage or None,
        "unit": figure.unit,
        "name": figure.name,
        "values": list(figure.values),
        "ratio": interval.value,
        "low": interval.low,
        "high": interval.high,
        "differs": interval.differs,
        "withheld": figure.withheld or None,
    }


def _samples(found: SamplesComparison) -> dict[str, Any]:
    return {
        "verdict": found.verdict.value,
        "why_unknown": found.why_unknown or None,
        "n_compared": found.n_compared,
        "n_samples": [found.n_samples_a, found.n_samples_b],
        "n_missing": found.n_missing,
        "n_extra": found.n_extra,
        "n_epochs": found.n_epochs,
        "is_partial": found.is_partial,
        "n_unknown_batches": [found.n_unknown_batches_a, found.n_unknown_batches_b],
        "first_difference": None if found.first is None else _first(found.first),
    }


def _first(first: FirstDifference) -> dict[str, Any]:
    return {
        "loader": None if first.loader < 0 else first.loader,
        "epoch": first.epoch,
        "place": first.place,
        "sample": None if first.sample < 0 else first.sample,
        "batches": [first.batch_a, first.batch_b],
        "digests": [
            None if digest is None else digest_text(digest)
            for digest in (first.digest_a, first.digest_b)
        ],
    }
