"""The lines of a report around its tables: what ran, the headline, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import WHOLE, Kind, kind_named, stage_name, stage_title
from iobench.report import units
from iobench.report.device_lines import why_no_copies
from iobench.report.script_lines import script_lines, script_warnings
from iobench.runs.contents import TRAINING_PROCESS
from iobench.runs.run_facts import OWN

if TYPE_CHECKING:
    from iobench.analysis.break_even import FullConversion
    from iobench.analysis.exposure_figures import Exposure, PartExposure
    from iobench.report.run_report import RunReport
    from iobench.runs.contents import Summed
    from iobench.runs.run_facts import RunFacts, StoreFacts

SOURCE: Final = "source"
MUCH_NBYTES: Final = 100_000_000
"""Of spans that nothing bounds, above which a report says how many there are."""
MUCH_DECODED: Final = 2.0
"""Bytes decoded for each one used, above which the headline says so."""


def title_line(reports: Sequence[RunReport]) -> str:
    """Return dataset, formats, framework, workers, batch size and batches."""
    first = reports[0]
    formats = _distinct(report.facts.label or units.UNKNOWN for report in reports)
    workers = _distinct(_workers(report) for report in reports)
    sizes = _distinct(units.count(report.facts.batch_size) for report in reports)
    batches = _distinct(units.count(report.exposure.whole.n_batches) for report in reports)
    frameworks = _distinct(report.facts.framework or units.UNKNOWN for report in reports)
    each = " each" if len(reports) > 1 else ""
    what = f"{first.facts.dataset or 'unnamed dataset'} as {', '.join(formats)}"
    return (
        f"{first.facts.called(what)}: "
        f"loader {'/'.join(frameworks)}, {'/'.join(workers)}, batch size {'/'.join(sizes)}, "
        f"{'/'.join(batches)} batches{each}"
    )


def _workers(report: RunReport) -> str:
    workers, threads = report.exposure.workers, report.facts.threads
    if workers == 0 and threads:
        return f"{threads} thread{'s' if threads > 1 else ''}"
    if workers == 0:
        return "no worker processes"
    return f"{workers} worker{'s' if workers > 1 else ''}"


def _distinct(texts: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def stand_in_line(facts: RunFacts) -> str | None:
    """Return the banner of a run on generated files; None for one on real files."""
    if not facts.stand_in:
        return None
    tiny = ", and TINY: fewer, for most datasets also smaller samples" if facts.tiny else ""
    return f"STAND-IN: generated files, not the real dataset{tiny}."


def compute_line(facts: RunFacts) -> str:
    """Return what took the place of the training step, where its time is from, what followed."""
    return _step_line(facts) + _evaluation(facts)


def _evaluation(facts: RunFacts) -> str:
    """Return what was evaluated after each epoch; nothing where nothing was."""
    if facts.evaluated is None:
        return ""
    n_samples = facts.evaluated.n_samples
    each_ns = facts.compute.evaluation_ns or facts.compute.forward_ns
    took = f", {units.duration(each_ns)} a batch" if each_ns else ""
    return (
        f" After each epoch an evaluation of {facts.evaluated.split}: {units.count(n_samples)} "
        f"sample{'' if n_samples == 1 else 's'}{took}."
    )


def _step_line(facts: RunFacts) -> str:
    if facts.compute.step_ns is None:
        return "Compute: the training loop's own."
    if not facts.compute.step_ns:
        why = facts.compute.source
        return "Compute: none." if why in (None, "none") else f"Compute: none ({why})."
    parts, step = "", facts.compute
    if step.backward_ns and step.forward_ns:
        forward, backward = units.duration(step.forward_ns), units.duration(step.backward_ns)
        parts = f" (forward {forward}, backward {backward})"
    n_batches = facts.batches_per_step or 1
    of_step = ""
    if n_batches > 1:
        whole = units.duration(facts.compute.step_ns * n_batches)
        of_step = f", {whole} per step of {units.count(n_batches)} batches"
    return (
        f"Compute: {units.duration(facts.compute.step_ns)} per "
        f"{'batch' if of_step else 'step'}{parts}{of_step}, emulated; from "
        f"{facts.compute.source or 'an unknown source'}."
    )


def reader_line(facts: RunFacts) -> str | None:
    """Return whose reader was measured, of users' own files; None where that is told anyway."""
    if facts.source_kind is None or facts.format != SOURCE:
        return None
    if facts.pipeline != OWN:
        return (
            f"The reader of {facts.label} is a plain xarray loop, as commonly used in training "
            "scripts; it is not your script."
        )
    other = (
        "--pipeline upstream is a plain xarray loop over local files, "
        if facts.source_kind != "GRIB"
        else ""
    )
    return (
        f"The reader of {facts.label} is iobench's own, not your script's: {other}iobench run -- "
        "python train.py measures your script."
    )


def why_unknown(exposure: Exposure) -> str:
    """Return why nobody can tell what was exposed; empty where it is known."""
    whole = exposure.whole
    if exposure.stopped and not whole.n_batches:
        return (
            "Exposed I/O: unknown. Nothing was recorded, because recording stopped "
            f"({exposure.stopped}); at least {units.count(exposure.lost_spans)} spans were lost. "
            "Free space there, or name another folder with --out."
        )
    if not exposure.has_consumer:
        return "Exposed I/O: not defined, because nothing asked a loader for batches."
    if not whole.n_batches:
        lost = [name for name in exposure.missing_workers if name.startswith(TRAINING_PROCESS)]
        if lost:
            return (
                f"Exposed I/O: unknown, because {lost[0]} left no spans: what it waited for is "
                "lost."
            )
        return "Exposed I/O: unknown, because no batch was delivered."
    return ""


def compute_lines(exposure: Exposure) -> list[str]:
    """Return what of the training loop's own time is not separated."""
    stages = {row.stage for row in exposure.judged.compute_stages}
    if Kind.FORWARD.spelled in stages or not stages & {Kind.BACKWARD.spelled, Kind.STEP.spelled}:
        return []
    return [
        "The forward pass cannot be separated from the rest: none was seen of a model that the "
        "script or its framework had put into training mode with train()."
    ]


def decoded_line(window: PartExposure, facts: RunFacts) -> str | None:
    """Return what was decoded of chunks that samples share; of much, what chunks would fit."""
    decoded, chunks = window.decoded, facts.chunks
    if decoded is None or decoded.per_used is None:
        return None
    said = (
        f"{units.ratio(decoded.per_used)} bytes are decoded for each byte used. Of the "
        f"{units.count(decoded.n_needed)} chunks that samples needed, "
        f"{units.count(decoded.n_decoded)} were decoded for them; the others had been decoded "
        "before."
    )
    if chunks is None or decoded.per_used <= MUCH_DECODED:
        return said
    return (
        f"{said} {chunks.variable} has chunks of {chunks.spelled}; chunks of {chunks.fitting}, "
        f"one sample each, would fit: {chunks.command}"
    )


def estimated_lines(window: PartExposure) -> list[str]:
    """Return in how many batches the time of a stage follows from other batches, or is unknown."""
    lines = []
    if window.whole_batch_fraction:
        n_full = round(window.n_batches * (1 - window.whole_batch_fraction))
        which = "No batch has details"
        if n_full:
            which = f"One batch in {units.count(round(window.n_batches / n_full))} has details"
        lines.append(
            f"{which}: the others are too short, so only "
            f"their time as a whole is known, {stage_title(stage_name(Kind.FUSED, WHOLE))}."
        )
    if window.estimated_fraction:
        lines.append(
            "Samples are too short to time individually: in "
            f"{units.fraction(window.estimated_fraction)} of the batches, time and bytes are "
            "divided among stages as in the other batches."
        )
    return lines


def setup_lines(report: RunReport) -> list[str]:
    """Return what was done before the run, which no other figure contains."""
    facts = report.facts
    lines = []
    if facts.setup_s:
        spent = ", ".join(
            f"{what} {units.duration(units.nanoseconds(value))}"
            for what, value in facts.setup_s.items()
        )
        lines.append(f"Set-up before the run, not included above: {spent}.")
    if facts.storage_probe_s is not None:
        spent = units.duration(units.nanoseconds(facts.storage_probe_s))
        lines.append(f"Storage probes, not included above: {spent}.")
    if facts.store is not None:
        lines.append(_store(facts.store))
    if report.conversion is not None:
        lines.append(_conversion(report.conversion, facts))
    return lines


def _store(store: StoreFacts) -> str:
    what = "Store, a probe of the dataset" if store.probe else "Store"
    size = units.nbytes(store.nbytes)
    if store.target is not None:
        return (
            f"Store: {size}, {units.count(store.n_samples)} samples, used as found: "
            f"{store.path or store.target}"
        )
    if store.reused:
        created = "reused"
    elif store.convert_s is not None:
        spent = units.duration(units.nanoseconds(store.convert_s))
        created = f"converted in {spent}, not included above"
    else:
        created = "time of conversion unknown"
    return f"{what}: {size}, {created}: {store.path or units.UNKNOWN}"


def _conversion(full: FullConversion, facts: RunFacts) -> str:
    """Return what converting all of it takes, and after how many epochs that has paid."""
    what = f"All {units.count(full.n_samples)} available samples"
    size = f"{what} as {facts.format or units.UNKNOWN}: {units.nbytes(full.nbytes)}"
    if full.convert_s is None:
        takes = "time to convert unknown, because the store already existed"
    else:
        takes = f"{units.duration(units.nanoseconds(full.convert_s))} to convert at this rate"
    if full.saved_s is None:
        return (
            f"{size}, {takes}; when it pays for itself is unknown without --format source in "
            "the same run."
        )
    if full.saved_s <= 0:
        return f"{size}, {takes}; an epoch is no shorter than with the original files."
    saved = units.duration(units.nanoseconds(full.saved_s))
    pays = ""
    if full.payback_epochs is not None:
        pays = f": it pays for itself after {units.epochs(full.payback_epochs)} epochs"
    return f"{size}, {takes}; an epoch over them is {saved} shorter than with source{pays}."


def measurement_lines(report: RunReport) -> list[str]:
    """Return how far to trust the figures: cache, own overhead, what is missing or unknown."""
    exposure = report.exposure
    overhead = _overhead(exposure)
    lines = [
        _cache(report),
        f"iobench's own overhead: {overhead}. "
        f"Lost spans: {units.count(exposure.lost_spans)}. "
        f"Missing workers: {', '.join(exposure.missing_workers) or 'none'}.",
    ]
    retained = exposure.keep_nbytes
    if exposure.is_script and exposure.day_nbytes is not None:
        lines.append(
            f"At this rate a day of spans takes {units.nbytes(exposure.day_nbytes)}; beyond "
            f"{'IOBENCH_KEEP' if retained is None else units.nbytes(retained)} the first and the "
            "latest stay, and sums."
        )
    if not exposure.is_script and exposure.spans_nbytes > MUCH_NBYTES:
        lines.append(
            f"The spans of this run take {units.nbytes(exposure.spans_nbytes)}: iobench profile "
            "keeps all of them. A report needs several times as much memory; fewer batches "
            "(--batches) need less."
        )
    if exposure.summed is not None:
        lines.append(_summed(exposure, exposure.summed))
    if exposure.missing_workers or exposure.lost_spans:
        lines.append("What a lost span or a missing worker would explain counts as unknown.")
    lines.extend(script_lines(report))
    if report.unclosed and not _is_killed(report):
        lines.append(
            f"Ended with their training process, or were killed: {', '.join(report.unclosed)}. "
            "What they had recorded by then is included."
        )
    if exposure.n_unfinished_rounds:
        lines.append(
            f"{units.count(exposure.n_unfinished_rounds)} of {units.count(exposure.n_rounds)} "
            "rounds have no recorded end; each is taken to end with its last span."
        )
    whole = exposure.whole
    copies = any(row.kind == Kind.H2D for row in whole.stages) or any(
        kind_named(row.stage) == Kind.H2D for row in whole.compute_stages
    )
    if exposure.has_consumer and not copies:
        lines.append(f"Host-to-device copies: {why_no_copies(report)}.")
    return lines


def warning_lines(report: RunReport) -> list[str]:
    """Return what a reader has to know before believing the figures: what is damaged or unseen."""
    lines = []
    if report.damaged:
        lines.append(f"Span files with unreadable spans: {', '.join(report.damaged)}.")
    if report.unclosed and _is_killed(report):
        lines.append(f"Killed, or still running: {', '.join(report.unclosed)}.")
    return [*lines, *script_warnings(report)]


def _is_killed(report: RunReport) -> bool:
    """Whether who did not end its spans itself is a surprise, as a training process is."""
    names = report.unclosed
    return not report.facts.is_script or any(name.startswith("consumer") for name in names)


def _summed(exposure: Exposure, summed: Summed) -> str:
    """Return which batches have details, and what is known of the others."""
    busy = sorted(summed.busy_ns.items(), key=lambda item: -item[1])[:3]
    worked = ", ".join(f"{name} {units.duration(spent_ns)}" for name, spent_ns in busy)
    latest = exposure.whole.n_batches - summed.n_before
    return (
        f"The first {units.count(summed.n_before)} and the latest {units.count(latest)} batches "
        f"have details (IOBENCH_KEEP); of {units.count(summed.n_batches)} between there are sums: "
        f"the training loop waited {units.duration(summed.wait_ns)} of "
        f"{units.duration(summed.wall_ns)}, most time of all processes was in "
        f"{worked or 'nothing'}. Exposed time by stage is of batches with details."
    )


def _overhead(exposure: Exposure) -> str:
    """Return what recording took: in all, and apart from that once in each process."""
    fraction, once_ns = exposure.whole.overhead_fraction, exposure.overhead_once_ns
    if fraction is None:
        return units.UNKNOWN
    if once_ns is None:
        return f"{units.fraction(fraction)} of the time of all processes"
    return (
        f"{units.fraction(fraction)} of the time of the epochs is spent in its own code, which "
        "slows the rest by an unknown amount; each process also spends at most "
        f"{units.duration(once_ns)} once"
    )


def _cache(report: RunReport) -> str:
    facts, whole = report.facts, report.exposure.whole
    if facts.is_script:
        if whole.cold_fraction is None:
            return (
                "How many of the bytes read came from the device is unknown: none were counted, "
                "which happens with files in memory and on some network file systems."
            )
        return f"{units.fraction(whole.cold_fraction)} of the bytes read came from the device."
    requested = (
        f"Page cache {facts.cache.asked}" if facts.cache.asked else "Page cache left as it was"
    )
    before = units.fraction(facts.cache.resident_fraction_before)
    if whole.cold_fraction is not None:
        cold = f"{units.fraction(whole.cold_fraction)} of the bytes read came from the device"
    elif facts.cache.cold_known is False:
        cold = "how much came from the device is unknown: this file system does not report it"
    else:
        cold = "how much came from the device is unknown: it was not counted"
    return f"{requested}: {before} of the files were in it beforehand; {cold}."
