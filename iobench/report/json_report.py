"""Reports for machines: plain values for strict JSON, unrounded; unknown is null, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.diagnosis import Verdict  # noqa: TC001 - msgspec asks, as of the others
from iobench.analysis.epochs import (
    EpochCost,
    EpochTime,
    epoch_times,
)
from iobench.analysis.exposure_figures import (
    ComputeStage,  # noqa: TC001
    LongWaits,  # noqa: TC001
    PartFigures,  # noqa: TC001
    StageExposure,  # noqa: TC001
    StepStatistics,  # noqa: TC001
)
from iobench.registry import installed_findings
from iobench.report.renderers.json_text import to_plain
from iobench.report.sentences import verdict_sentence
from iobench.report.setting import unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.run_report import RunReport

JSON_VERSION: Final = 3
"""Raised when a key changes its meaning or goes; new keys do not raise it."""
FACTS: Final = (
    "kind", "name", "command", "dataset", "format", "framework", "label", "stand_in", "tiny",
    "n_samples", "batch_size", "threads", "iobench_version",
)  # fmt: skip
"""Keys that are facts of a run of the same name."""


class DiagnosisFigures(msgspec.Struct, frozen=True):
    """What is concluded, as data."""

    verdict: Verdict
    window: str  # what it is about: "recurring", "steady" or "whole"
    wait_fraction: float | None
    top_stage: str | None  # with the largest exposed time; null where it alone gains nothing
    hidden_fraction: float | None  # share of the loading work that was hidden behind compute


class LoaderFigures(msgspec.Struct, frozen=True):
    """One loader of the training loop; the waits of all add up to that of the whole run."""

    number: int | None  # as its process counts them
    name: str | None
    framework: str | None
    workers: int
    role: str | None  # "training", "validation", "test", "prediction" or "evaluation"
    batches: int
    wait_ns: int


class SummedFigures(msgspec.Struct, frozen=True):
    """The batches of a long run that have no details; in nothing else."""

    batches: int
    wait_ns: int
    own_ns: int
    wall_ns: int
    busy_ns: dict[str, int]


class RunDocument(msgspec.Struct, frozen=True):
    """One training process of a run, as JSON has it, beside the figures of findings."""

    run: str | None
    kind: str  # "script" or "profile"
    name: str | None
    command: str | None
    commit_hash: str | None
    dataset: str | None
    format: str | None
    framework: str | None
    pipeline: str | None  # "own" or "upstream"; null of scripts
    label: str | None
    stand_in: bool | None
    tiny: bool
    n_samples: int | None
    batch_size: int | None
    workers: int
    threads: int
    iobench_version: str | None
    versions: dict[str, str]
    machine: dict[str, Any]
    store_path: str | None
    rank: int
    verdict: str
    diagnosis: DiagnosisFigures
    wall_ns: int | None  # wait, own and compute
    wait_ns: int | None
    own_ns: int | None  # recording's, between waits
    compute_ns: int | None
    batches: int
    samples: int | None
    samples_per_s: float | None
    wait_fraction: float | None
    exposed_ns: dict[str, int] | None  # by stage; adds up to wait_ns
    between_ns: Mapping[str, int | None] | None  # before forward passes; neither wait nor compute
    nbytes: int | None
    read_nbytes: int | None
    cold_fraction: float | None
    overhead_fraction: float | None
    overhead_once_ns: int | None  # the most that starting to record took in one process
    stages: tuple[StageExposure, ...]
    compute_stages: tuple[ComputeStage, ...]
    wait_per_step: StepStatistics | None
    waits_ns: tuple[int, ...] | None  # of each batch; null where there are too many ranks
    step_batches: int | None  # of an optimiser's step, null where that is unknown
    steady: PartFigures | None
    recurring: PartFigures | None
    validation: PartFigures | None
    long_waits: LongWaits | None
    epochs: tuple[EpochTime, ...] | None  # null of one process of many
    epoch: EpochCost | None  # over all samples of a profile
    loaders: tuple[LoaderFigures, ...]
    summed: SummedFigures | None
    lost_spans: int
    missing_workers: tuple[str, ...]
    unclosed_processes: tuple[str, ...]
    failed_waits: int
    unseen: tuple[str, ...]  # what could not be observed
    ended: str | None  # how the training process ended: "closed", an exception, null if unknown
    schema_version: int = JSON_VERSION


def run_document(report: RunReport) -> RunDocument:
    """Return what JSON has of one training process of a run."""
    facts, exposure, diagnosis = report.facts, report.exposure, report.diagnosis
    whole, summed, waited = exposure.whole, exposure.summed, exposure.has_consumer
    ended = (each.ended for each in report.process_facts if each.role == "consumer")
    steps, commit, store = exposure.steps, facts.commit, facts.store
    parts = {name: getattr(exposure, name) for name in ("steady", "recurring", "validation")}
    return RunDocument(
        run=report.run,
        **{name: getattr(facts, name) for name in FACTS},
        commit_hash=None if commit is None else commit.hash,
        pipeline=None if facts.is_script else facts.pipeline,
        workers=exposure.workers,
        versions=dict(facts.versions),
        machine=dict(facts.machine),
        store_path=None if store is None else store.path,
        rank=exposure.rank,
        verdict=verdict_sentence(diagnosis),
        diagnosis=msgspec.convert(diagnosis, DiagnosisFigures, from_attributes=True),
        batches=whole.n_batches,
        **(_of_waits(report) if waited else dict.fromkeys(_of_waits(report))),
        stages=whole.stages if waited else (),
        compute_stages=whole.compute_stages if waited else (),
        step_batches=None if steps is None else steps.batches_per_step,
        overhead_once_ns=exposure.overhead_once_ns,
        **{name: part and part.figures for name, part in parts.items()},
        long_waits=exposure.long_waits,
        epochs=epoch_times(report.epochs) if report.epochs else None,
        epoch=diagnosis.epoch,
        loaders=tuple(
            LoaderFigures(
                each.number, each.name or None, each.framework or None, each.workers,
                each.role or None, each.n_batches, each.wait_ns,
            )
            for each in exposure.loaders
        ),
        summed=None
        if summed is None
        else SummedFigures(
            summed.n_batches, summed.wait_ns, summed.own_ns, summed.wall_ns, summed.busy_ns
        ),
        lost_spans=exposure.lost_spans,
        missing_workers=exposure.missing_workers,
        unclosed_processes=report.unclosed,
        failed_waits=exposure.n_failed_waits,
        unseen=unseen(report),
        ended=next(ended, None),
    )  # fmt: skip


def _of_waits(report: RunReport) -> dict[str, Any]:
    """Return what a run has where a loader was asked for batches."""
    whole, waits_ns = report.exposure.whole, report.exposure.waits_ns
    figures = msgspec.structs.asdict(whole.figures)
    del figures["batches"]
    return figures | {
        "nbytes": whole.nbytes,
        "read_nbytes": whole.read_nbytes,
        "cold_fraction": whole.cold_fraction,
        "overhead_fraction": whole.overhead_fraction,
        "wait_per_step": whole.wait,
        "waits_ns": waits_ns if len(waits_ns) == whole.n_batches else None,
    }


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `reports_to_json`, with the figures of installed findings."""
    findings = installed_findings()
    of_run = [(each.name, each.struct | None, None) for each in findings if not each.of_job]
    run = msgspec.defstruct("Run", of_run, bases=(RunDocument,), kw_only=True)
    of_job: dict[str, Any] = {}
    for each in findings:
        if each.of_job or each.name == "job":  # as `_job_to_plain` has them
            of_job |= {field.name: field.type for field in msgspec.structs.fields(each.struct)}
        elif each.together is not None:
            of_job[each.name] = each.struct
    job = msgspec.defstruct("Job", [(name, kind | None, None) for name, kind in of_job.items()])
    result = msgspec.defstruct("Report", [("runs", list[run]), ("job", job | None)])  # type: ignore[valid-type]
    return {"$id": f"urn:iobench:report:{JSON_VERSION}", **msgspec.json.schema(result)}


def reports_to_json(
    reports: Sequence[RunReport], job: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return ``{"runs": [...], "job": ...}``, of a job a run for each rank, and its figures."""
    alone = reports[0].exposure.job if len(reports) == 1 else None
    return {
        "runs": [to_plain(run_document(each)) | to_plain(each.figures) for each in reports],
        "job": to_plain(alone) if job is None else _job_to_plain(job),
    }


def _job_to_plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a job, as `json_schema` says them."""
    result: dict[str, Any] = {}
    for each in installed_findings():
        if each.name in figures:
            plain = to_plain(figures[each.name])
            result |= (plain or {}) if each.of_job or each.name == "job" else {each.name: plain}
    return result
