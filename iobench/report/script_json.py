"""Plain values of what only scripts have; their keys are told in `to_json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report.operator_shares import operators_to_json
from iobench.report.script_lines import unseen
from iobench.report.units import seconds

if TYPE_CHECKING:
    from iobench.analysis.figures import LoaderExposure, OtherLoop
    from iobench.analysis.processes import ProcessWork
    from iobench.report.run_report import RunReport

__all__ = ["loader_to_json", "other_loop_to_json", "script_to_json"]


def script_to_json(report: RunReport) -> dict[str, Any]:
    """Return what scripts tell beside their figures."""
    steps = report.facts.steps
    return {
        "kind": "script" if report.facts.is_script else "profile",
        "steps": None if steps is None else list(steps),
        "unseen": list(unseen(report)),
        "children": [child for told in report.told for child in told.children],
        "ended": next((told.ended for told in report.told if told.role == "consumer"), None),
        "operators": operators_to_json(report),
        "device": None if report.device is None else dict(report.device),
        "processes": None
        if report.exposure.has_consumer
        else [_process(each) for each in report.processes],
    }


def _process(each: ProcessWork) -> dict[str, Any]:
    return {
        "process": each.process,
        "pid": each.pid,
        "host": each.host,
        "rank": each.rank,
        "wall_s": seconds(each.wall_ns),
        "stages": [
            {
                "stage": row.stage,
                "busy_s": seconds(row.busy_ns),
                "n_spans": row.n_spans,
                "nbytes": row.nbytes,
                "cpu_s": None if row.cpu_ns is None else seconds(row.cpu_ns),
            }
            for row in each.stages
        ],
    }


def other_loop_to_json(each: OtherLoop) -> dict[str, Any]:
    """Return a thread that waited beside the training loop."""
    return {
        "process": each.process,
        "pid": each.pid,
        "thread": each.thread,
        "waits": each.n_waits,
        "wait_s": seconds(each.wait_ns),
    }


def loader_to_json(each: LoaderExposure) -> dict[str, Any]:
    """Return one loader, and what was waited for it."""
    return {
        "number": each.number,
        "framework": each.framework or None,
        "kind": each.kind or None,
        "name": each.name or None,
        "workers": each.workers,
        "prefetch": each.prefetch,
        "threads": each.threads,
        "batch_size": each.batch_size,
        "rounds": each.n_rounds,
        "role": each.role or None,
        "batches": each.n_batches,
        "wait_s": seconds(each.wait_ns),
        "wait_ns": each.wait_ns,
    }
