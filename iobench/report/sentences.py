"""The sentences of a report: the verdict, and rare long waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.diagnosis import Verdict
from iobench.recording.kinds import Kind, stage_name, stage_title
from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.analysis.diagnosis import Diagnosis
    from iobench.analysis.exposure_figures import (
        Exposure,
        LoaderExposure,
        LongWaits,
        PartExposure,
        StepFigures,
        Window,
    )
    from iobench.analysis.job_figures import JobTime
    from iobench.report.run_report import RunReport

WORTH_SAYING: Final = 0.05
"""Share from which a verdict names start-up, or causes that were not recorded."""
LITTLE: Final = 0.01
"""Of the job, what a verdict does not mention."""
MOST: Final = 0.5
"""A training loop of a smaller share of its job says little about the job."""
RARE_FRACTION: Final = 0.2
"""Up to this share of the steps long waits are called rare; more are called uneven waits."""
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
BOUND_BY: Final = {
    "imports": "its imports",
    "initial_load": "its initial load",
    "stage_in": "staging its files in",
    "train_compute": "the computing of its training",
    "train_wait": "waiting for training data",
    "validation_compute": "the computing of its validation",
    "validation_wait": "waiting for validation data",
    "checkpoint": "its checkpoints",
    "between": "what it does outside of its loops",
    "shutdown": "its end",
}
ONCE: Final = ("imports", "initial_load", "stage_in", "shutdown")
"""Parts of a job that take as long where it trains longer."""
ROLES: Final = {
    "training": ", which trains",
    "evaluation": ", which evaluates",
    "validation": ", which validates",
    "test": ", which tests",
    "prediction": ", which predicts",
}
STEPS_KNOWN_BY: Final = {
    "option": ", as given by --batches-per-step",
    "framework": ", with gradients accumulated by the framework",
}
RELEASE: Final = "freeing the memory of the previous batch"
COINCIDENCES: Final = {
    "round start": "the first batch of a round",
    "epoch start": "the first batch of an epoch",
    "worker start": "the first batch of a worker",
    "fill": "the pipeline filling up",
    "first epoch": "the first epoch",
    "file change": "a change of file",
}


def step_words(steps: StepFigures | None) -> str:
    """Return what figures are of: a step, one of several batches, or a batch where unknown."""
    if steps is None or steps.batches_per_step is None:
        return "batch"
    n_batches = steps.batches_per_step
    return "step" if n_batches == 1 else f"step of {units.count(n_batches)} batches"


def steps_sentences(exposure: Exposure) -> list[str]:
    """Return what a step of the optimiser takes, where that is not a batch, or that is unknown."""
    steps = exposure.steps
    if steps is None:
        return []
    if steps.batches_per_step is None:
        why = f": {steps.why_unknown}" if steps.why_unknown else ""
        return [
            f"How many batches one optimiser step takes is unknown{why}, so waits are given per "
            "batch. Set it with iobench run --batches-per-step N."
        ]
    if steps.batches_per_step == 1 == steps.most_batches:
        return []
    how = STEPS_KNOWN_BY.get(steps.known_by, "")
    if steps.n_optimizers > 1:
        how = (
            f"; steps are those of {steps.optimizer}, the one of {units.count(steps.n_optimizers)} "
            "optimisers that steps least often"
        )
    some = ""
    if steps.least_batches != steps.most_batches:
        some = f", some of {units.count(steps.least_batches)} to {units.count(steps.most_batches)}"
    elif steps.least_batches != steps.batches_per_step:
        some = f", all of {units.count(steps.least_batches)}"
    text = (
        f"{units.count(steps.n_steps)} steps of {units.count(steps.batches_per_step)} "
        f"batch{'es' if steps.batches_per_step > 1 else ''}{some}{how}"
    )
    part = exposure.judged if exposure.judged.step else exposure.whole
    if part.step is not None and part.wait is not None:
        when = PARTS[exposure.window] if part is exposure.judged else PARTS["whole"]
        text += (
            f": the median step takes {units.duration(part.step.median_ns)}; the mean step takes "
            f"{units.duration(part.step.mean_ns)} and waits {units.duration(part.wait.mean_ns)} of "
            f"that ({when})"
        )
    return [f"{text}."]


def kept_words(n_batches: int, n_summed: int) -> str:
    """Return which batches of a run too long to be kept whole figures are of; else nothing."""
    if not n_summed:
        return ""
    return (
        f"the first and the latest of {units.count(n_batches + n_summed)} batches (sums alone of "
        f"{units.count(n_summed)} between)"
    )


def verdict_sentence(diagnosis: Diagnosis) -> str:
    """Return what is concluded: what a script's job is bound by, and what its loop waits for."""
    job = diagnosis.job
    text = f"{job_sentence(job)} {_of_loop(diagnosis)}" if job is not None else _of_loop(diagnosis)
    result = validation_words(diagnosis.validation, job)
    return f"{text} {result}" if result else text


def validation_words(validation: PartExposure | None, job: JobTime | None) -> str:
    """Return what a validation waits, beside the training; nothing where that is little."""
    if validation is None or (validation.wait_fraction or 0.0) < WORTH_SAYING:
        return ""
    if job is not None and validation.wait_ns < LITTLE * job.wall_ns:
        return ""
    text = (
        f"The validation waits {units.fraction(validation.wait_fraction)} of its time for data "
        f"({units.duration(validation.wait_ns)}"
    )
    if job is not None and job.wall_ns:
        text += f", {units.fraction(validation.wait_ns / job.wall_ns)} of the job"
    top = validation.stages[0] if validation.stages else None
    blame = f", most of all for {_spoken(top.stage)}" if top and top.exposed_ns else ""
    return f"{text}){blame}."


def job_sentence(job: JobTime) -> str:
    """Return which part of a job holds most of its time, and whether it would grow with the job."""
    most = job.part(job.bound_by)
    if most.part == "between" and 2 * job.lost_end_ns > most.ns:
        return (
            f"What bounds the job is unknown: {units.duration(job.lost_end_ns)} of its "
            f"{units.duration(job.wall_ns)} follow its last span, because the job ended before its "
            "recording was closed. It may have waited for data all that time."
        )
    share = job.share(most.ns)
    bound = "The job is bound by" if (share or 0.0) >= MOST else "The largest part of the job is"
    text = f"{bound} {BOUND_BY[most.part]}: {units.fraction(share)} of "
    text += units.duration(job.wall_ns)
    if most.part == "initial_load":
        by = f" by {job.read_by}" if job.read_by else ""
        files = f" from {_files(most.n_files)}" if most.n_files else ""
        read = "reading" if most.nbytes is None else f"{units.nbytes(most.nbytes)} read"
        text += f", {read}{by}{files} before the first batch"
    elif most.nbytes is not None and most.part in ("checkpoint", "stage_in"):
        text += f", {units.nbytes(most.nbytes)}"
    if most.part == "train_compute" and 2 * job.comm_ns >= most.ns:
        text += ", most of it held up by collective operations"
    if most.part in ONCE:
        text += ". This time is spent once, however many steps follow"
    return f"{text}."


def _files(n_files: int) -> str:
    return "1 file" if n_files == 1 else f"{units.count(n_files)} files"


def _of_loop(diagnosis: Diagnosis) -> str:
    """Return what the training loop waits for: one sentence, and one where start-up weighs."""
    if diagnosis.verdict is Verdict.NOT_RECORDED:
        return f"No verdict: nothing was recorded, because recording stopped ({diagnosis.stopped})."
    if diagnosis.verdict is Verdict.NO_CONSUMER:
        if diagnosis.job is not None:
            return "No loader was asked for batches."
        return "No verdict: nothing waits for data here."
    if diagnosis.verdict is Verdict.NO_BATCH:
        return "No verdict: no batch was delivered."
    when = OVER[diagnosis.window]
    retained = kept_words(diagnosis.n_batches, diagnosis.n_summed)
    if retained:
        when = f"in {retained}, {when}"
    waits = f"the training loop waits {units.fraction(diagnosis.wait_fraction)} of its time"
    waits = f"{when} {waits} for data{_blame(diagnosis)}{_which(diagnosis)}"
    if diagnosis.job is None:
        waits += extent_text(diagnosis.loop_fraction, in_script=diagnosis.in_script)
    waits += "."
    if diagnosis.verdict is Verdict.NO_COMPUTE:
        text = f"No compute stage, so there is nothing to hide loading behind: {waits}"
        if diagnosis.in_script or diagnosis.batch_ns is None:
            return text
        return (
            f"{text} A batch takes {units.duration(diagnosis.batch_ns)} on average: training that "
            "computes a batch in less time would wait for data."
        )
    text = f"{_judgement(diagnosis)}: {waits}"
    if diagnosis.stopped:
        text += f" Recording stopped before the end ({diagnosis.stopped}): what came after is lost."
    if diagnosis.again_fraction >= WORTH_SAYING:
        text += (
            f" {units.fraction(diagnosis.again_fraction)} of their time is waiting at the start "
            "and end of epochs, which recurs in every epoch."
        )
    if diagnosis.window == "steady" and diagnosis.start_fraction >= WORTH_SAYING:
        first = diagnosis.first_epoch_fraction
        text += (
            f" Waits outside the steady state (start-up, fill, {'first epoch, ' * bool(first)}end) "
            f"are another {units.fraction(diagnosis.start_fraction)} of the run"
            f"{_restarts(diagnosis)}."
        )
    return text + _first_epoch(diagnosis)


def _first_epoch(diagnosis: Diagnosis) -> str:
    """Say what the first epoch waits where that is clearly more than what the verdict is about."""
    first, later = diagnosis.first_epoch_fraction, diagnosis.wait_fraction
    if first is None or later is None or first - later < WORTH_SAYING:
        return ""
    text = f" The first epoch, after start-up and fill, waits {units.fraction(first)} of its time"
    if not diagnosis.first_epoch_is_cold:
        return f"{text}."
    return (
        f"{text}, because it reads from the device what later epochs find in memory. With data "
        "larger than memory, every epoch would wait like this."
    )


def _restarts(diagnosis: Diagnosis) -> str:
    """Say whose workers start again and again in what the verdict leaves out."""
    each = diagnosis.restarting
    if each is None:
        return ""
    return (
        f"; the workers of {_loader(each)} start again in each of its {units.count(each.n_rounds)} "
        "rounds, which persistent_workers=True would avoid"
    )


def _loader(each: LoaderExposure) -> str:
    name = f" ({each.name})" if each.name else ""
    return f"loader {units.UNKNOWN if each.number is None else each.number}{name}"


def starts_sentence(diagnosis: Diagnosis, *, is_script: bool) -> str:
    """Return what start-up means for a long training, as far as the run tells."""
    if diagnosis.window == "recurring":
        return (
            "Every epoch has its own start-up, fill and end: waiting there takes "
            f"{units.fraction(diagnosis.again_fraction)} of the epochs after the first. Only the "
            "extra time of the first epoch is paid once."
        )
    if is_script:
        return (
            "This run has no complete epoch after the first, so whether start-up recurs in each "
            "epoch is unknown; the steady state excludes it."
        )
    of_all = diagnosis.first_epoch_fraction is None
    begin = "Start-up and fill" if of_all else "Start-up, fill and the first epoch"
    of_what = " of data that fit in memory" if diagnosis.first_epoch_is_cold else ""
    return f"{begin} are not part of the steady state, which is what a long training sees{of_what}."


def _judgement(diagnosis: Diagnosis) -> str:
    if diagnosis.verdict is Verdict.IO_BOUND:
        return "I/O-bound"
    return "Hidden" if diagnosis.verdict is Verdict.HIDDEN else "Partly hidden"


def _blame(diagnosis: Diagnosis) -> str:
    """Say which stage the wait falls on, and how much of it is unknown."""
    unknown = diagnosis.unknown_fraction or 0.0
    if diagnosis.verdict is Verdict.HIDDEN or diagnosis.top_stage is None:
        text = ""
    else:
        share, stage = units.fraction(diagnosis.top_fraction), diagnosis.top_stage
        text = f", most of all for {_spoken(stage)} ({share} of the wait)"
    if unknown >= WORTH_SAYING and diagnosis.top_stage != "unknown":
        text += f"; the cause of {units.fraction(unknown)} of the wait was not recorded"
    return text


def _spoken(stage: str) -> str:
    """Return what a sentence calls a stage."""
    return RELEASE if stage == stage_name(Kind.HANDOVER, "release") else stage_title(stage)


def _which(diagnosis: Diagnosis) -> str:
    """Say which of several loaders most of the wait is for, and what is known of it."""
    each = diagnosis.waited_for
    if each is None or diagnosis.waited_fraction is None:
        return ""
    if each.role not in ("", "training") and validation_words(diagnosis.validation, diagnosis.job):
        return ""  # which says so
    role = ROLES.get(each.role, ", which may or may not be the training loader")
    share = units.fraction(diagnosis.waited_fraction)
    return f"; {share} of the whole run's wait is for {_loader(each)}{role}"


def extent_text(share: float | None, *, in_script: bool) -> str:
    """Say how much of the job a script's training loop is, where it is not most of it."""
    if not in_script:
        return ""
    if share is None:
        return "; that loop's share of the script's time was not recorded"
    if share >= MOST:
        return ""
    return f"; that loop takes {units.fraction(share)} of the script's time"


def today_sentence(reports: Sequence[RunReport]) -> str:
    """Return how ``--pipeline upstream`` compares; empty where it was not measured.

    Over whole runs, for what is loaded before the first step is a cost, too; and in steady state,
    for the shorter the run, the more of it that is. Where compute hides all loading, the rates of
    samples are those of compute.
    """
    today = next((each for each in reports if each.facts.pipeline == "upstream"), None)
    others = [each for each in reports if each.facts.pipeline == "own"]
    if today is None or not others or not today.exposure.whole.n_batches:
        return ""
    whole = {f"as {each.facts.label}": each.exposure.whole for each in others}
    share, stated = _compared(today.exposure.whole, whole)
    of_files = today.facts.source_kind is not None
    process = "a plain xarray loop" if of_files else "upstream"
    text = (
        f"Over the whole run {process} waits {share} of its time for data; with iobench the same "
        f"training {stated}."
    )
    steady = {f"as {each.facts.label}": each.exposure.steady for each in others}
    known = {label: part for label, part in steady.items() if part is not None}
    if today.exposure.steady is None or not known:
        return text
    share, stated = _compared(today.exposure.steady, known)
    process = "the loop" if of_files else "upstream"
    return f"{text} In steady state {process} waits {share}; {stated}."


def _compared(today: PartExposure, others: Mapping[str, PartExposure]) -> tuple[str, str]:
    """Return the share of its time that today's loading waits, and how others compare with it."""
    rate = today.samples_per_s
    text = []
    for label, part in others.items():
        other = part.samples_per_s
        times = (
            f", {units.ratio(other / rate)} times the samples per second" if rate and other else ""
        )
        text.append(f"{label} waits {units.fraction(part.wait_fraction)}{times}")
    return units.fraction(today.wait_fraction), "; ".join(text)


def long_waits_sentence(long: LongWaits, steps: StepFigures | None = None) -> str:
    """Return how few long waits hold how much time, and what they fall together with.

    They are of batches, which are steps where each step of the optimiser takes one.
    """
    one, many = ("step", "steps") if step_words(steps) == "step" else ("batch", "batches")
    if long.in_step:
        name = "Workers in lockstep"
    else:
        rare = long.n_waits <= RARE_FRACTION * long.n_steps
        name = "Rare long waits" if rare else "Uneven waits"
    text = (
        f"{name}: {units.count(long.n_waits)} of {units.count(long.n_steps)} {many} wait "
        f"{units.duration(long.wait_ns)} in total (median {units.duration(long.typical_ns)}); "
        f"waiting above the median is {units.fraction(long.excess_fraction)} of the run"
    )
    if long.period_steps is not None:
        text += f"; one every {units.count(long.period_steps)} {many}"
    if long.in_step:
        text += (
            f"; the workers finish their batches together, so one {one} waits for all of them and "
            "the next ones hardly wait: use the mean, not the median"
        )
    if long.coincidences:
        with_what = (
            f"{COINCIDENCES.get(what.what, what.what)} ({units.count(what.n_long)} of "
            f"{units.count(long.n_waits)})"
            for what in long.coincidences
        )
        text += f"; they coincide with {', '.join(with_what)}"
    return f"{text}."
