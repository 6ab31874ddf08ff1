"""How far to trust a run's figures: what is damaged, lost or unseen, and what measuring took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import Kind, kind_named, stage_title
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.report.run_report import RunReport

MOST_LISTED: Final = 8
ENDED_WELL: Final = (None, "closed", "exit 0")


def trust_section(report: RunReport) -> Section:
    """Return what a reader has to know before believing the figures, and what measuring took."""
    known = (*sentences(_warnings(report), "caution"), *sentences(_measured(report)))
    return Section("trust", "How far to trust these figures", known, is_folded=True)


def unseen(report: RunReport) -> tuple[str, ...]:
    """Return what could not be observed, each thing once."""
    result: dict[str, None] = {}
    for known in report.process_facts:
        result.update(dict.fromkeys(known.unseen))
        for loader in known.loaders:
            what = (f"loader {loader.number} ({loader.name}): {each}" for each in loader.unseen)
            result.update(dict.fromkeys(what))
    return tuple(result)


def _warnings(report: RunReport) -> Iterator[str]:
    exposure = report.exposure
    if exposure.lost_spans:
        lost = units.count(exposure.lost_spans)
        yield f"Lost spans: {lost}. What they would explain is unknown."
    if exposure.missing_workers:
        names = ", ".join(exposure.missing_workers)
        yield f"Missing workers: {names}. What they would explain is unknown."
    if report.damaged:
        yield f"Span files with unreadable spans: {', '.join(report.damaged)}."
    # Workers of a script that do not end their files themselves are no surprise.
    if report.unclosed and (
        not report.facts.is_script or any(each.startswith("consumer") for each in report.unclosed)
    ):
        yield f"Killed, or still running: {', '.join(report.unclosed)}."
    if exposure.n_failed_waits:
        yield f"Waits that ended with an exception: {units.count(exposure.n_failed_waits)}."
    for each in exposure.other_loops:
        yield (
            f"Thread {each.thread} of {each.process} (process {each.pid}) also waited for batches, "
            f"{units.duration(each.wait_ns)} in total, which no figure includes."
        )
    if any(row.stage == "opaque" and not row.n_spans for row in exposure.whole.stages):
        yield (
            "Opaque loading is work that a loader does not report: how long it took, and how much "
            "of it was hidden, is unknown."
        )
    yield from (f"Not seen: {what}." for what in unseen(report))
    children = [child for known in report.process_facts for child in known.children]
    yield from (f"Not recorded: {child}" for child in children[:MOST_LISTED])
    if len(children) > MOST_LISTED:
        yield f"Not recorded: {len(children) - MOST_LISTED} more processes."
    for known in report.process_facts:
        if known.ended not in ENDED_WELL:
            process = "training process" if known.role == "consumer" else "command"
            yield f"The {process} ended with {known.ended}."


def _measured(report: RunReport) -> Iterator[str]:
    exposure, facts, whole = report.exposure, report.facts, report.exposure.whole
    if not facts.is_script:
        before = units.fraction(facts.cache.resident_fraction_before)
        yield f"Page cache {facts.cache.asked or 'as it was'}: {before} of the files were in it."
    if whole.cold_fraction is None:
        yield "How many of the bytes read came from the device is unknown."
    took = units.fraction(whole.overhead_fraction)
    yield f"iobench's own overhead: {took} of the time, which slows the rest by an unknown amount."
    if exposure.overhead_once_ns is not None:
        once = units.duration(exposure.overhead_once_ns)
        yield f"Each process also spends at most {once} once."
    if facts.steps is not None:
        first, end = facts.steps
        yield f"Recorded: only steps {units.count(first)} to {units.count(end - 1)}."
    if whole.whole_batch_fraction:
        yield (
            f"Of {units.fraction(whole.whole_batch_fraction)} of the batches, too short for "
            f"details, only the time as a whole is known: {stage_title(Kind.FUSED.spelled)}."
        )
    if whole.estimated_fraction:
        yield (
            f"In {units.fraction(whole.estimated_fraction)} of the batches, whose samples are too "
            "short to time, time and bytes are divided among stages as in the others."
        )
    if exposure.has_consumer:
        yield from _copies(report)


def _copies(report: RunReport) -> Iterator[str]:
    """Yield why no copies to a device were measured; nothing where they were, or are a script's."""
    facts, whole = report.facts, report.exposure.whole
    stages = [row.stage for row in whole.stages] + [row.stage for row in whole.compute_stages]
    if any(kind_named(stage) is Kind.H2D for stage in stages):
        return
    if facts.is_script:
        used = {loader.framework for known in report.process_facts for loader in known.loaders}
        if any("torch" in known.moves for known in report.process_facts):
            yield "Host-to-device copies: none by Tensor.to, cuda or copy_."
        elif "tensorflow" in used:
            yield "Host-to-device copies: not measured: those of TensorFlow's operations."
        return
    why = facts.no_device or "no accelerator"
    if facts.device is not None:
        why = f"no array of these batches can be copied to {facts.device.name}"
        if facts.device.copied_by:
            why = f"{facts.device.copied_by} makes them ahead of time, in opaque loading"
    yield f"Host-to-device copies: not measured ({why})."
