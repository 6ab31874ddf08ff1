"""Measured runs of a suite as MLPerf's logs, by mlperf-logging: what was measured, or is told."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.analysis.deliveries import EVALUATIONS
from iobench.analysis.run import RankRun, Run
from iobench.errors import MissingExtraError, OptionError, ProfileError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.suites.results import MEASURED, find_results, read_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def write_logs(folder: Path, out: Path, tell: Sequence[str]) -> list[str]:
    """Write a log of each run of a suite; ``tell`` are ``KEY=VALUE`` that no run records."""
    given = dict(map(_given, tell))
    logs: dict[str, str] = {}
    for path in find_results(folder):
        result = read_result(path)
        if result.run is not None and result.status == MEASURED:
            name = path.relative_to(folder).parent / f"result_{result.round}.txt"
            run = Run(path.parent / result.run).of_rank()
            logs[str(name)] = _log(run, result.figures, given)
    if not logs:
        raise ProfileError(f"{folder}: expected a suite with measured runs; it has none")
    for log, text in logs.items():
        with storage_errors(out / log):
            (out / log).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / log, text)
    return [*logs]


def _given(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not key.isidentifier():
        raise OptionError(f"--tell {word}: expected KEY=VALUE, as submission_org=NAME")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _log(run: RankRun, figures: Mapping[str, float], given: Mapping[str, Any]) -> str:
    """Return the log of a run; ``figures`` are its suite's, ``given`` what no run records."""
    try:
        from mlperf_logging.mllog.mllog import MLLogger
    except ImportError as error:
        needs = "MLPerf's logs need mlperf-logging"
        raise MissingExtraError(needs, extra="mlperf") from error
    text, logger = io.StringIO(), logging.Logger("iobench")
    logger.addHandler(logging.StreamHandler(text))
    mllogger = MLLogger(logger, root_dir=str(Path(__file__).parents[2]))
    anchors = (each.anchors[0] for each in run.all_processes if each.anchors)
    clock = min(anchors, key=lambda each: each.monotonic_ns)
    lines = _measured_lines(run, figures, clock.monotonic_ns)
    for key in given.keys() & {line[2] for line in lines}:
        raise OptionError(f"--tell {key}: is measured by iobench; leave it out")
    lines[:0] = [(clock.monotonic_ns, "event", *each, {"source": "told"}) for each in given.items()]
    for ns, method, key, value, metadata in lines:
        time_ms = int(ns - clock.monotonic_ns + clock.wall_ns) // 1_000_000
        getattr(mllogger, method)(key, value, {"source": "measured"} | metadata, time_ms=time_ms)
    return text.getvalue()


def _measured_lines(run: RankRun, figures: Mapping[str, float], begun: int) -> list[Any]:
    """Return time, method of MLLogger, key, value and metadata of each line, by time."""
    facts, loop, resident = run.about, run.deliveries, run.about.cache.resident_fraction_before
    first, last, is_batch = min(loop.from_ns), max(loop.until_ns), loop.batch >= 0
    evaluates, batches = np.isin(loop.role, EVALUATIONS), facts.batches_per_step or 0
    values = {
        "submission_benchmark": facts.dataset,
        "cache_clear": None if resident is None else resident < 0.01,  # headers are read before
        "seed": run.config.get("seed"),
        "global_batch_size": (facts.batch_size or 0) * batches * run.job_size or None,
        "train_samples": facts.n_samples,
        "eval_samples": run.samples_in(evaluates & is_batch & (loop.of_epoch == 0)) or None,
    }
    lines: list[Any] = [(begun, "event", *e, {}) for e in values.items() if e[1] is not None]
    lines += [(begun, "start", "init_start", None, {}), (first, "end", "init_stop", None, {})]
    lines.append((first, "start", "run_start", None, {}))
    for what, rows in (("epoch", ~evaluates), ("eval", evaluates)):
        for epoch in np.unique(loop.of_epoch[rows]).tolist():
            mine, about = rows & (loop.of_epoch == epoch), {"epoch_num": epoch + 1}
            lines.append((min(loop.from_ns[mine]), "start", f"{what}_start", None, about))
            lines.append((max(loop.until_ns[mine]), "end", f"{what}_stop", None, about))
    n_steps = int((is_batch & ~evaluates).sum()) // (batches or 1)
    lines.append((last - 1, "event", "tracked_stats", dict(figures), {"step": n_steps}))
    lines.append((last, "end", "run_stop", None, {"status": "aborted"}))  # of no target quality
    return sorted(lines, key=lambda line: line[:2])
