"""Runs of a suite as lines of MLPerf's logging: what was measured or told, and nothing else.

One file for each run, ``CELL/result_ROUND.txt``, as MLPerf hands results in. A line says what it is
from: ``"measured"`` by the run, or ``"told"`` by whoever hands it in.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.deliveries import EVALUATIONS
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError
from iobench.files.atomic import storage_errors
from iobench.frozen import frozen
from iobench.recording.kinds import Kind
from iobench.report.written import write_whole
from iobench.suites.results import measured_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path, PurePath

    from iobench.analysis.run import RankRun
    from iobench.profiles.run_facts import CacheFacts
    from iobench.suites.results import Result

HPC_BENCHMARKS: Final = ("cosmoflow", "deepcam")
WANTED: Final = (
    "submission_org", "submission_platform", "submission_division", "submission_status",
    "eval_samples", "eval_accuracy", "eval_error", "opt_name",
)  # fmt: skip
"""What MLPerf HPC's rules ask for and no run without a training to its end can tell."""
OWN: Final = (
    "submission_benchmark", "cache_clear", "init_start", "init_stop", "staging_start",
    "staging_stop", "run_start", "run_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop",
    "train_samples", "global_batch_size", "tracked_stats",
)  # fmt: skip
"""What only the run may say."""
POINT, START, STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
NS_PER_MS: Final = 1_000_000
CLEARED: Final = 0.01
"""Less than this share of the files in the page cache is none: their heads were read."""


@frozen
class RunLog:
    """The log of one run.

    Parameters
    ----------
    name : str
        Of its file, in the folder of logs.
    unknown : tuple of str
        Keys that MLPerf's rules ask for and nobody knows here.
    """

    name: str
    text: str
    unknown: tuple[str, ...]


def parse_told(words: Sequence[str]) -> dict[str, Any]:
    """Return what ``KEY=VALUE`` words tell; values are JSON, else text.

    Raises
    ------
    OptionError
        If one is no such word, or tells what only a run may say.
    """
    told: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise OptionError(f"--tell {word}: expected KEY=VALUE, as submission_org=NAME")
        if key in OWN:
            raise OptionError(f"--tell {key}: is measured by iobench; leave it out")
        try:
            told[key] = json.loads(value)
        except ValueError:
            told[key] = value
    return told


def write_mllog(folder: Path, out: Path, told: Mapping[str, Any]) -> tuple[RunLog, ...]:
    """Write the log of each run that was measured in a folder of results.

    Raises
    ------
    OptionError
        If something is told that a run measured.
    ProfileError
        If there is no such run.
    StorageError
        If a file cannot be written.
    """
    logs = tuple(
        _log(path.relative_to(folder).parent, result, Run.open(run), told)
        for path, result, run in measured_runs(folder)
    )
    if not logs:
        raise ProfileError(f"{folder}: expected a suite with runs that were measured; it has none")
    for log in logs:
        path = out / log.name
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, log.text)
    return logs


def _log(cell: PurePath, result: Result, opened: Run, told: Mapping[str, Any]) -> RunLog:
    run = opened.of_rank(opened.ranks[0])
    measured = list(_measured(result, run))
    for _, _, key, _, _ in measured:
        if key in told:
            raise OptionError(f"--tell {key}: is measured by iobench; leave it out")
    entries = [*_told(run, told), *measured]
    # Of one millisecond: what ends stands before what begins.
    entries.sort(key=lambda entry: entry[0])
    clock = next(each for each in run.processes if each.anchors).anchors[0]
    to_wall_ns = clock.wall_ns - clock.monotonic_ns
    lines = [
        ":::MLLOG "
        + json.dumps(
            {
                "namespace": "",
                "time_ms": (time_ns + to_wall_ns) // NS_PER_MS,
                "event_type": kind,
                "key": key,
                "value": value,
                "metadata": metadata,
            },
            allow_nan=False,
        )
        for time_ns, kind, key, value, metadata in entries
    ]
    there = {key for _, _, key, _, _ in entries}
    unknown = tuple(key for key in WANTED if key not in there)
    name = cell / f"result_{result.round}.txt"
    return RunLog(str(name), "".join(f"{line}\n" for line in lines), unknown)


Entry = tuple[int, str, str, Any, dict[str, Any]]


def _told(run: RankRun, told: Mapping[str, Any]) -> Iterator[Entry]:
    begun_ns = _begun_ns(run)
    for key, value in told.items():
        yield begun_ns, POINT, key, value, {"source": "told"}


def _begun_ns(run: RankRun) -> int:
    anchors = [each.anchors[0].monotonic_ns for each in run.processes if each.anchors]
    return min([*anchors, int(run.deliveries.from_ns.min())])


def _is_cleared(cache: CacheFacts) -> bool | None:
    """Tell whether the page cache had nothing of the files; None where that is not known."""
    if cache.asked != "cold":
        return None if cache.asked is None else False
    before = cache.resident_fraction_before
    return None if before is None else before < CLEARED


def _measured(result: Result, run: RankRun) -> Iterator[Entry]:
    facts, deliveries = run.about, run.deliveries
    begun_ns, source = _begun_ns(run), {"source": "measured"}
    started_ns, over_ns = int(deliveries.from_ns.min()), int(deliveries.until_ns.max())
    dataset = facts.dataset or result.cell.get("dataset", "")
    batches, batch = facts.batches_per_step, facts.batch_size
    points = {
        "submission_benchmark": next((e for e in HPC_BENCHMARKS if e in dataset), dataset or None),
        "cache_clear": _is_cleared(facts.cache),
        "seed": run.whole.config.get("seed"),
        "global_batch_size": batch * batches * run.job_size if batch and batches else None,
        "gradient_accumulation_steps": batches,
        "number_of_nodes": len({each.host for each in run.whole.processes}),
        "accelerators_per_node": None if facts.device else 0,
        "train_samples": facts.n_samples,
    }
    yield from (
        (begun_ns, POINT, key, value, source) for key, value in points.items() if value is not None
    )
    yield begun_ns, START, "init_start", None, source
    yield started_ns, STOP, "init_stop", None, source
    yield started_ns, START, "run_start", None, source
    staged = run.profile.spans[run.profile.spans["kind"] == Kind.STAGE_IN]
    if len(staged):
        yield int(staged["start_ns"].min()), START, "staging_start", None, source
        yield int(staged["end_ns"].max()), STOP, "staging_stop", None, source
    evaluates = np.isin(deliveries.role, EVALUATIONS)
    for what, rows in (("epoch", ~evaluates), ("eval", evaluates)):
        for epoch in np.unique(deliveries.of_epoch[rows]).tolist():
            mine = rows & (deliveries.of_epoch == epoch)
            about = source | {"epoch_num": epoch + 1}
            first_ns, last_ns = deliveries.from_ns[mine].min(), deliveries.until_ns[mine].max()
            yield int(first_ns), START, f"{what}_start", None, about
            yield int(last_ns), STOP, f"{what}_stop", None, about
    if evaluates.any():
        first = evaluates & (deliveries.of_epoch == deliveries.of_epoch[evaluates][0])
        n_samples = run.samples_in(first & (deliveries.batch >= 0))
        if n_samples is not None:
            yield begun_ns, POINT, "eval_samples", n_samples, source
    figures = dict(sorted(result.figures.items()))
    n_batches = int(((deliveries.batch >= 0) & ~evaluates).sum())
    yield over_ns, POINT, "tracked_stats", figures, source | {"step": n_batches // (batches or 1)}
    # MLPerf's "success" is a quality that was reached: a suite trains to none.
    yield over_ns, STOP, "run_stop", None, source | {"status": "aborted"}
