"""The sentences of a report, each with one condition: the verdict, steps, and rare long waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.diagnosis import Verdict
from iobench.analysis.exposure_figures import BEFORE_FORWARD
from iobench.recording.kinds import WORKER_KINDS, Kind, stage_title
from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iobench.analysis.diagnosis import Diagnosis
    from iobench.analysis.exposure_figures import (
        CpuCost,
        Exposure,
        Hang,
        JobTime,
        LoaderExposure,
        PartExposure,
        StepFigures,
        Window,
    )
    from iobench.recording.epoch_reads import EpochReads

WORTH_SAYING: Final = 0.05
"""Share from which a verdict names start-up, copies, or causes that were not recorded."""
EXPLAINS: Final = 0.2
"""Share of a wait from which what CPUs are busy with is said."""
FIRST_FRACTION: Final = 0.1
"""Share of a run from which the waits of its first epoch come first."""
DETAILED: Final = {
    "opaque:tf.data": "Where it was traced",
    "fused:whole batch": "In batches recorded in full",
}
"""How sentences call the batches whose stages are known, by the stage of all others."""
"""The stage of what tf.data does outside of a trace."""
MOST: Final = 0.5
"""A training loop of a smaller share of its job says little about the job."""
RARE_FRACTION: Final = 0.2
"""Long waits of more than this share of the steps are nothing rare."""
PARTS: Final[Mapping[Window, str]] = {
    "recurring": "epochs after the first",
    "steady": "steady state",
    "whole": "whole run",
}
"""What the parts of a run are called, as `Exposure` knows them."""
OVER: Final[Mapping[Window, str]] = {
    "recurring": "over the epochs after the first",
    "steady": "in steady state",
    "whole": "in a run too short to have a steady state",
}
"""How sentences say which part of a run they are of."""
PART_NAMES: Final = {
    "imports": "start of Python, imports",
    "initial_load": "initial load",
    "stage_in": "stage-in",
    "train_compute": "training: computing",
    "train_wait": "training: waiting for data",
    "validation_compute": "validation: computing",
    "validation_wait": "validation: waiting for data",
    "checkpoint": "checkpoints",
    "between": "outside of loops",
    "shutdown": "end of Python",
}
JUDGEMENTS: Final[Mapping[Verdict, str]] = {
    Verdict.NO_CONSUMER: "No verdict: no loader was asked for batches.",
    Verdict.NO_BATCH: "No verdict: no batch was delivered.",
    Verdict.IO_BOUND: "I/O-bound",
    Verdict.PARTLY_HIDDEN: "Partly hidden",
    Verdict.HIDDEN: "Hidden",
    Verdict.NO_COMPUTE: "No compute stage, so there is nothing to hide loading behind",
}
HANDED: Final = (
    "No verdict: the thread that trains was handed its batches in a way that is not recorded."
)


def verdict_sentence(diagnosis: Diagnosis) -> str:
    """Return what is concluded: what a script's job is bound by, and what its loop waits for."""
    job = diagnosis.exposure.job
    of_job = () if job is None or diagnosis.verdict is Verdict.HUNG else (job_sentence(job),)
    return " ".join((*of_job, *_of_loop(diagnosis), *_of_validation(diagnosis)))


def job_sentence(job: JobTime) -> str:
    """Return which part of a job holds most of its time."""
    if job.bound_by is None:
        return (
            f"What bounds the job is unknown: most of its {units.duration(job.wall_ns)} follow its "
            "last span, because it ended before its recording was closed."
        )
    most = job.part(job.bound_by)
    share = job.share(most.ns)
    wall = units.duration(job.wall_ns)
    text = f"Largest part of the job: {PART_NAMES[most.part]}, {units.fraction(share)} of {wall}"
    if most.part == "between" and job.reload_ns >= WORTH_SAYING * job.wall_ns:
        text += f"; {units.duration(job.reload_ns)} of it is reading data"
    return f"{text}."


def _of_loop(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what the training loop waits for, and what has to be known of it."""
    verdict, window, exposure = diagnosis.verdict, diagnosis.window, diagnosis.exposure
    if exposure.unrecorded:
        yield f"No verdict: not recorded, because {exposure.unrecorded}."
        return
    if verdict is Verdict.NOT_RECORDED:
        yield (
            "No verdict: nothing was recorded, because recording stopped "
            f"({exposure.stopped}). Free space there, or name another folder with --out."
        )
        return
    if exposure.hang is not None:
        yield from _of_hang(exposure.hang)
    if verdict is Verdict.HUNG:
        return
    if verdict in (Verdict.NO_CONSUMER, Verdict.NO_BATCH):
        yield HANDED if exposure.is_handed else JUDGEMENTS[verdict]
        if exposure.unjoined_ns is not None:
            between = units.duration(exposure.unjoined_ns)
            blocked = units.duration(exposure.blocked_ns)
            waits = f", {blocked} of it spent waiting"
            yield (
                f"What its steps waited for is not known; {between} between them are in question"
                f"{waits if exposure.blocked_ns else ''}."
            )
        return
    whole_ns = exposure.whole.wall_ns
    first_fraction = diagnosis.first_wait_ns / whole_ns if whole_ns else 0.0
    if first_fraction >= FIRST_FRACTION:
        wait, share = units.duration(diagnosis.first_wait_ns), units.fraction(first_fraction)
        than = "later ones do" if window == "recurring" else "in steady state"
        yield f"The first epoch waits {wait} longer for data than {than}, {share} of the run."
        yield from _of_chunks(None if diagnosis.epoch is None else diagnosis.epoch.reads)
    rate, share = exposure.judged.samples_per_s, units.fraction(diagnosis.wait_fraction)
    if verdict is Verdict.NO_COMPUTE and rate:
        yield f"Loads {units.ratio(rate)} samples/s, {units.duration(1e9 / rate)} each."
        yield from _of_work(exposure.judged)
        yield "A step that computes less than that for a sample waits; --compute emulates one."
    else:
        yield (
            f"{JUDGEMENTS[verdict]}: {OVER[window]} the training loop waits {share} of its time "
            f"for data{_blame(diagnosis)}."
        )
        if verdict is not Verdict.HIDDEN:
            yield from _of_detailed(diagnosis)
        if diagnosis.top_alone_gains is False and verdict is not Verdict.HIDDEN:
            yield "No stage alone is the cause: the one waited for most, halved, saves nothing."
    cost, queued_ns = exposure.cpus, exposure.judged.exposed_ns.get(Kind.CPU_WAIT.spelled, 0)
    is_worth = queued_ns > EXPLAINS * exposure.judged.wait_ns and verdict is not Verdict.HIDDEN
    if cost is not None and (cost.slows_steps or is_worth):
        yield cpu_sentence(cost)
    if exposure.job is not None and exposure.job.unfed_fraction >= WORTH_SAYING:
        share = units.fraction(exposure.job.unfed_fraction)
        yield f"{share} of the optimiser's steps took no batch from a loader: they are not in that."
    if exposure.n_initial:
        yield (
            f"{units.count(exposure.n_initial)} batches were taken before the first step, an "
            f"initial load of {units.duration(exposure.initial_ns)}; the steps have them in memory."
        )
    unknown = diagnosis.unknown_fraction or 0.0
    if unknown >= WORTH_SAYING and diagnosis.top_stage != "unknown":
        yield f"The cause of {units.fraction(unknown)} of the wait was not recorded."
    part, name = exposure.judged, Kind.BLOCKED.spelled
    blocked_ns = sum(row.busy_ns for row in part.compute_stages if row.stage == name)
    if blocked_ns and blocked_ns >= WORTH_SAYING * (part.wall_ns - part.own_ns):
        share = units.fraction(blocked_ns / (part.wall_ns - part.own_ns))
        blocked = f"{share} ({units.duration(blocked_ns)})"
        yield f"It waits another {blocked} of it for something that was not recorded."
    if diagnosis.waited_for is not None and diagnosis.waited_fraction is not None:
        share = units.fraction(diagnosis.waited_fraction)
        yield f"{share} of the whole run's wait is for {loader_words(diagnosis.waited_for)}."
    if exposure.n_summed:
        which = detailed_batches(exposure.whole.n_batches, exposure.n_summed)
        yield f"Details, and exposed time by stage, are of {which}."
    if exposure.stopped:
        yield f"Recording stopped before the end ({exposure.stopped}): what came after is lost."
    if verdict is Verdict.NO_COMPUTE:
        return
    yield from _of_between(exposure.judged)
    if diagnosis.again_fraction >= WORTH_SAYING:
        share = units.fraction(diagnosis.again_fraction)
        yield f"Waits at the start and end of epochs, {share} of their time, recur in every epoch."
    outside = diagnosis.start_fraction - first_fraction * (first_fraction >= FIRST_FRACTION)
    if window == "steady" and outside >= WORTH_SAYING:
        yield f"Waits outside the steady state are another {units.fraction(outside)} of the run."


def _of_chunks(reads: EpochReads | None) -> Iterator[str]:
    """Yield what of the chunks of an epoch stays decoded in memory."""
    if reads is not None and reads.cache_nbytes:
        chunks, memory = units.nbytes(reads.chunks_nbytes), units.nbytes(reads.cache_nbytes)
        text = "later epochs have them in memory"
        if not reads.fits_cache:
            text = "later epochs decode again what does not fit"
        yield f"Its chunks take {chunks} decoded, of {memory} that may stay: {text}."


def cpu_sentence(cost: CpuCost) -> str:
    """Return who takes the CPUs that the training loop and its workers wait for."""
    busy = f"{units.fraction(cost.busy_fraction)} busy"
    if cost.others_fraction >= WORTH_SAYING:
        busy += f" ({units.fraction(cost.others_fraction)} of that with other processes)"
    if not cost.slows_steps:
        return f"The CPUs are {busy}."
    loading, total = map(units.duration, (cost.loading_ns, cost.total_ns))
    return (
        f"Loading takes {loading} of {total} of CPU time, on CPUs that are {busy}; "
        "steps may become shorter too."
    )


def _of_between(part: PartExposure) -> Iterator[str]:
    """Yield what of the loop's time lies between loader and model, and what is not known of it."""
    for name, between_ns in part.between_ns.items():
        if between_ns is None:
            yield (
                f"What {name} takes between loader and loop is not known, as no forward pass was "
                f"recorded: it is in the {units.duration(part.compute_ns)} of computing."
            )
        elif between_ns >= WORTH_SAYING * part.wall_ns:
            share = units.fraction(between_ns / part.wall_ns)
            yield f"Another {share} of the training loop's time goes into {between_words(name)}."


def between_words(name: str) -> str:
    """Return what lies between loader and model, by its name."""
    return f"the {name}" if name == BEFORE_FORWARD else f"{name}, between loader and loop"


def _of_hang(hang: Hang) -> Iterator[str]:
    """Yield how long no batch came, and which workers finished nothing."""
    names, pids = (", ".join(str(each[at]) for each in hang.idle) for at in (0, 1))
    processes = f"process{'es' * (len(hang.idle) > 1)} {pids}"
    idle = f": {names} ({processes}) finished nothing" if hang.idle else ""
    yield f"No batch came in the last {units.duration(hang.wait_ns)}{idle}."
    if hang.is_deadlock:
        remedy = 'multiprocessing_context="forkserver" avoids that'
        yield f"If another thread held a lock while workers were forked, {remedy}."


def _of_work(part: PartExposure) -> Iterator[str]:
    """Yield the stage of loading that is busy for longest."""
    busy_ns = {row.stage: row.busy_ns for row in part.stages if row.kind in WORKER_KINDS}
    if any(busy_ns.values()):
        most = max(busy_ns, key=busy_ns.__getitem__)
        share = units.fraction(busy_ns[most] / sum(busy_ns.values()))
        yield f"The largest stage is {stage_title(most)} ({share} of the work of loading)."


def _of_validation(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what a validation waits, after the training; nothing where that is little."""
    validation = diagnosis.exposure.validation
    if validation is not None and (validation.wait_fraction or 0.0) >= WORTH_SAYING:
        share = units.fraction(validation.wait_fraction)
        wait = units.duration(validation.wait_ns)
        yield f"The validation waits {share} of its time for data ({wait})."


def _blame(diagnosis: Diagnosis) -> str:
    """Say which stage most of the wait falls on; nothing of a wait that is hidden."""
    stage = diagnosis.top_stage
    if diagnosis.verdict is Verdict.HIDDEN or stage is None:
        return ""
    name = stage_title(stage)
    return f", most of all for {name} ({units.fraction(diagnosis.top_fraction)} of the wait)"


def _of_detailed(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what is waited for in the batches that are known in detail, if most are not."""
    where, exposure = DETAILED.get(diagnosis.top_stage or ""), diagnosis.exposure
    kinds = WORKER_KINDS | {Kind.HANDOVER}
    for part, when in (exposure.judged, ","), (exposure.whole, ", before that,"):
        rows = [row for row in part.stages if row.kind in kinds and row.stage not in DETAILED]
        if where and any(row.exposed_ns >= WORTH_SAYING * row.busy_ns for row in rows[:1]):
            title = stage_title(rows[0].stage)
            yield f"{where}{when} it waits most of all for {title}."
            return


def loader_words(each: LoaderExposure) -> str:
    """Return what a loader is called."""
    named = ", ".join(filter(None, (each.name, each.role)))
    if each.number is None and each.name:
        return named  # the loop itself, or what hands it batches
    number = units.UNKNOWN if each.number is None else each.number
    return f"loader {number} ({named})" if named else f"loader {number}"


def detailed_batches(n_batches: int, n_summed: int) -> str:
    """Return which batches of a run too long to be kept whole figures are of; else nothing."""
    total, summed = units.count(n_batches + n_summed), units.count(n_summed)
    text = f"the first and the latest of {total} batches (sums alone of {summed} between)"
    return text if n_summed else ""


def extent_text(share: float | None, *, in_script: bool) -> str:
    """Return how much of the job a script's training loop is, where it is not most of it."""
    if not in_script or share is None or share >= MOST:
        return ""
    return f"; that loop takes {units.fraction(share)} of the script's time"


def step_words(steps: StepFigures | None) -> str:
    """Return what figures are of: a step, one of several batches, or a batch where unknown."""
    if steps is None or steps.batches_per_step is None:
        return "batch"
    n_batches = steps.batches_per_step
    return "step" if n_batches == 1 else f"step of {units.count(n_batches)} batches"


def steps_sentence(steps: StepFigures | None) -> str:
    """Return how the batches of an optimiser's step are said where they are unknown."""
    if steps is None or steps.batches_per_step is not None:
        return ""
    return "Batches per optimiser step are unknown: set iobench run --batches-per-step N."


def long_waits_sentence(exposure: Exposure) -> str:
    """Return how few long waits of the training hold how much time; else nothing."""
    long, validation = exposure.long_waits, exposure.validation
    n_batches = exposure.whole.n_batches - (0 if validation is None else validation.n_batches)
    if long is None or long.n_waits > RARE_FRACTION * n_batches:
        return ""
    many = "steps" if step_words(exposure.steps) == "step" else "batches"
    return (
        f"Rare long waits: {units.count(long.n_waits)} of {units.count(n_batches)} {many} wait "
        f"{units.duration(long.wait_ns)} in total (median {units.duration(long.typical_ns)})."
    )
