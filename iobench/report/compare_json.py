"""A comparison for machines: plain values, unrounded; unknown is null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.report import compare_figures
from iobench.report.units import seconds
from iobench.report.utilisation_lines import digest_text, utilisation_to_json

if TYPE_CHECKING:
    from iobench.analysis import FirstDifference, SamplesComparison
    from iobench.report.compared_runs import ComparedRun, Comparison

__all__ = ["COMPARISON_VERSION", "comparison_to_json"]

COMPARISON_VERSION: Final = 1


def comparison_to_json(found: Comparison) -> dict[str, Any]:
    """Return the comparison for ``json.dumps(allow_nan=False)``.

    ``runs``: of each ``run`` (its directory), ``whole`` and ``steady`` (null without), which have
    ``batches``, ``wall_s``, ``wait_fraction``, ``wait_per_step_s``, ``samples_per_s``,
    ``bytes_per_s`` and ``exposed_fraction`` by stage, and ``mlperf_utilisation`` as of
    `iobench.report.to_json`. ``differences``: ``{name: [value of each run]}``. ``samples``: of each
    run but the first, against that: ``verdict`` (``"identical samples, same order"``,
    ``"identical samples, other order"``, ``"different samples"``, ``"unknown"``), ``why_unknown``,
    counts, and ``first_difference``. ``interleaved`` is false: the runs were made one after the
    other, so that ratios of their figures prove nothing.
    """
    return {
        "schema_version": COMPARISON_VERSION,
        "interleaved": False,
        "runs": [_run(run) for run in found.runs],
        "differences": {name: list(values) for name, values in found.differences.items()},
        "samples": [_samples(each) for each in found.samples],
    }


def _run(run: ComparedRun) -> dict[str, Any]:
    return {
        "run": run.name,
        "ranks": len(run.reports),
        "whole": _window(run, steady=False),
        "steady": _window(run, steady=True) if run.has_steady else None,
        "mlperf_utilisation": utilisation_to_json(run.utilisation),
    }


def _window(run: ComparedRun, *, steady: bool) -> dict[str, Any]:
    wait_ns = compare_figures.wait_per_step_ns(run, steady=steady)
    return {
        "batches": compare_figures.n_batches(run, steady=steady),
        "wall_s": seconds(compare_figures.wall_ns(run, steady=steady)),
        "wait_fraction": compare_figures.wait_fraction(run, steady=steady),
        "wait_per_step_s": None if wait_ns is None else seconds(wait_ns),
        "samples_per_s": compare_figures.samples_per_s(run, steady=steady),
        "bytes_per_s": compare_figures.bytes_per_s(run, steady=steady),
        "exposed_fraction": compare_figures.stage_fractions(run, steady=steady),
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
