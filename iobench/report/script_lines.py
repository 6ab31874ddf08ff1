"""What a report says of a user's own script and of a job, beside its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import stage_title
from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import Exposure, LoaderExposure
    from iobench.recording.script_run import ScriptCommit
    from iobench.report.run_report import RunReport

MOST_LISTED: Final = 8
SHORT_HASH: Final = 12


def script_title(reports: Sequence[RunReport]) -> str:
    """Return the script's command, its loaders, and how much of it was recorded."""
    first = max(reports, key=lambda report: report.exposure.whole.n_batches)
    called = first.facts.called(first.facts.command or "unnamed script")
    loaders = first.exposure.loaders
    batches = units.count(
        sum(report.exposure.whole.n_batches + report.exposure.n_summed for report in reports)
    )
    if not any(report.exposure.whole.n_batches for report in reports) and any(
        report.exposure.stopped for report in reports
    ):
        return f"{called}: nothing was recorded"
    if not any(report.exposure.has_consumer for report in reports):
        return f"{called}: no loader"
    what = _loader(loaders[0]) if len(loaders) == 1 else f"{units.count(len(loaders))} loaders"
    is_job = first.job_size > 1
    ranks = f"{units.count(first.job_size)} training processes, " if is_job else ""
    started = f" ({first.facts.launcher})" if is_job and first.facts.launcher else ""
    in_all = " in all" if len(reports) > 1 else ""
    return f"{called}: {ranks}{what}, {batches} batches{in_all}{started}"


def commit_words(commit: ScriptCommit | None) -> str | None:
    """Return a script's commit as a phrase; None where it was not looked for."""
    if commit is None:
        return None
    return f"{units.UNKNOWN}, {commit.unknown}" if commit.hash is None else commit.hash[:SHORT_HASH]


def _loader(each: LoaderExposure) -> str:
    if not each.kind:
        return "an unknown loader"
    of = f" over {each.name}" if each.name else ""
    return f"{each.kind.rpartition('.')[2]}{of} ({each.framework}), {workers_text(each)}"


def workers_text(each: LoaderExposure) -> str:
    """Return who makes a loader's batches, and of how many samples."""
    if each.workers:
        process = f"{each.workers} worker{'s' if each.workers > 1 else ''}"
    elif each.threads:
        process = f"{each.threads} thread{'s' if each.threads > 1 else ''}"
    else:
        process = "no worker processes"
    size = units.count(each.batch_size) if each.batch_size else units.UNKNOWN
    return f"{process}, batch size {size}"


def measured_compute_line(report: RunReport) -> str:
    """Return what the training loop did between waits, as measured."""
    whole = report.exposure.whole
    if not report.exposure.has_consumer or (report.exposure.stopped and not whole.n_batches):
        return ""
    text = f"Compute: the training loop's own, {units.duration(whole.compute_ns)} measured"
    n_most = max((row.n_steps for row in whole.compute_stages), default=0)
    parts = [
        f"{stage_title(row.stage)} {units.duration(row.busy_ns)}"
        + (f" in {units.count(row.n_steps)} steps" if row.n_steps < n_most else "")
        for row in whole.compute_stages[:MOST_LISTED]
    ]
    return f"{text}, of which {', '.join(parts)}." if parts else f"{text} between its waits."


def unseen(report: RunReport) -> tuple[str, ...]:
    """Return what could not be observed, each thing once."""
    result: dict[str, None] = {}
    for known in report.told:
        result.update(dict.fromkeys(known.unseen))
        for loader in known.loaders:
            result.update(
                (f"loader {loader.number} ({loader.name}): {what}", None) for what in loader.unseen
            )
    return tuple(result)


def script_lines(report: RunReport) -> list[str]:
    """Return what was recorded, and what is in no figure."""
    exposure, lines = report.exposure, []
    if report.facts.steps is not None:
        first, end = report.facts.steps
        lines.append(f"Recorded: only steps {units.count(first)} to {units.count(end - 1)}.")
    if exposure.whole.n_batches:
        lines.extend(_idle_loaders(exposure))
    return lines


def script_warnings(report: RunReport) -> list[str]:
    """Return what of a script could not be recorded, and how it ended if not well."""
    exposure, lines = report.exposure, []
    if exposure.n_failed_waits:
        lines.append(
            f"{units.count(exposure.n_failed_waits)} "
            f"wait{'s' if exposure.n_failed_waits > 1 else ''} ended with an exception; what "
            "happened in them outside the training loop is unknown."
        )
    lines.extend(
        f"Thread {each.thread} of {each.process} (process {each.pid}) also waited for batches, "
        f"{units.count(each.n_waits)} times, {units.duration(each.wait_ns)} in total. No figure "
        "includes this: the training loop is the thread that waited most often."
        for each in exposure.other_loops
    )
    if any(row.stage == "opaque" and not row.n_spans for row in exposure.whole.stages):
        lines.append(
            "Opaque loading is work that a loader does not report: how long it took, and how much "
            "of it was hidden, is unknown."
        )
    lines.extend(f"Not seen: {what}." for what in unseen(report))
    children = [child for text in report.told for child in text.children]
    lines.extend(f"Not recorded: {child}" for child in children[:MOST_LISTED])
    if len(children) > MOST_LISTED:
        lines.append(f"Not recorded: {len(children) - MOST_LISTED} more processes.")
    for known in report.told:
        process = "training process" if known.role == "consumer" else "command"
        if known.ended not in (None, "closed", "exit 0"):
            lines.append(f"The {process} ended with {known.ended}.")
    return lines


def _idle_loaders(exposure: Exposure) -> list[str]:
    """Return one line about loaders that brought the training loop nothing, if there are any."""
    idle = [each for each in exposure.loaders if not each.n_rounds]
    if not idle:
        return []
    names = [f"{each.number} ({each.name or units.UNKNOWN})" for each in idle[:MOST_LISTED]]
    more = len(idle) - len(names)
    text = f"{', '.join(names)}{f' and {units.count(more)} more' if more else ''}"
    where = "inside the wait for another loader"
    if exposure.other_loops:
        where += " or by another thread"
    one = len(idle) == 1
    return [
        f"Loader{'' if one else 's'} {text} delivered no batch to the training loop: "
        f"{'it was' if one else 'they were'} asked for none, or only {where}."
    ]
