"""What ran, on what, and how far its figures can be trusted: titles, banners and two sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.recording.free_data import KEPT, NOT_FREE
from iobench.report import units
from iobench.report.document import Command, Section, properties, sentences
from iobench.runs.run_facts import OWN, SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.analysis.exposure_figures import LoaderExposure, PartExposure
    from iobench.report.document import Sentence
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import RunFacts

MUCH_DECODED: Final = 2.0
"""Bytes decoded for each one used, above which a report says what chunks would fit."""
STAND_IN: Final = "STAND-IN: generated files, not the real dataset"
TINY: Final = "and TINY: fewer, for most datasets also smaller samples"
ENDED_WELL: Final = (None, "closed", "exit 0")


def title(reports: Sequence[RunReport]) -> str:
    """Return dataset, formats and loader of profiles, or the command of a script."""
    return _script_title(reports) if reports[0].facts.is_script else _profile_title(reports)


def _profile_title(reports: Sequence[RunReport]) -> str:
    facts = [each.facts for each in reports]
    what = f"{facts[0].dataset or 'unnamed dataset'} as "
    what += _distinct((each.label or units.UNKNOWN for each in facts), ", ")
    frameworks = (each.framework or units.UNKNOWN for each in facts)
    loaders = (_workers(each.exposure.workers, each.facts.threads) for each in reports)
    sizes = (units.count(each.batch_size) for each in facts)
    batches = (units.count(each.exposure.whole.n_batches) for each in reports)
    return (
        f"{facts[0].called(what)}: "
        f"loader {_distinct(frameworks)}, {_distinct(loaders)}, batch size {_distinct(sizes)}, "
        f"{_distinct(batches)} batches{' each' if len(reports) > 1 else ''}"
    )


def _script_title(reports: Sequence[RunReport]) -> str:
    first = max(reports, key=lambda report: report.exposure.whole.n_batches)
    called = first.facts.called(first.facts.command or "unnamed script")
    if not any(each.exposure.has_consumer for each in reports):
        return called if first.exposure.is_handed else f"{called}: no loader"
    loaders = first.exposure.loaders
    ranks = f"{units.count(first.job_size)} training processes, " if first.job_size > 1 else ""
    what = _loader(loaders[0]) if len(loaders) == 1 else f"{units.count(len(loaders))} loaders"
    batches = sum(each.exposure.whole.n_batches + each.exposure.n_summed for each in reports)
    return f"{called}: {ranks}{what}, {units.count(batches)} batches"


def _loader(each: LoaderExposure) -> str:
    if not each.framework and each.name:
        return each.name
    kind = each.kind.rpartition(".")[2] or "an unknown loader"
    of = f"{kind} over {each.name}" if each.name else kind
    workers, size = _workers(each.workers, each.threads), units.count(each.batch_size)
    return f"{of} ({each.framework}), {workers}, batch size {size}"


def _workers(workers: int, threads: int) -> str:
    n, word = (workers, "worker") if workers else (threads, "thread")
    return f"{n} {word}{'s' if n > 1 else ''}" if n else "no worker processes"


def _distinct(texts: Iterable[str], between: str = "/") -> str:
    return between.join(dict.fromkeys(texts))


def stand_in_sentences(reports: Iterable[RunReport]) -> tuple[Sentence, ...]:
    """Return the banner of runs on generated files, once."""
    known = (each.facts for each in reports if each.facts.stand_in and not each.facts.is_script)
    texts = (f"{STAND_IN}, {TINY}." if each.tiny else f"{STAND_IN}." for each in known)
    return sentences(dict.fromkeys(texts), "caution")


def setting_sentences(reports: Iterable[RunReport]) -> tuple[Sentence, ...]:
    """Return what took the place of the training step and whose reader was used, each once."""
    known = (text for each in reports if not each.facts.is_script for text in _setting(each.facts))
    return sentences(dict.fromkeys(known))


def _setting(facts: RunFacts) -> Iterator[str]:
    step = facts.compute
    if step.step_ns:
        source = step.source or "an unknown source"
        yield f"Compute: {units.duration(step.step_ns)} per batch, emulated; from {source}."
    else:
        yield "Compute: the training loop's own." if step.step_ns is None else "Compute: none."
    if facts.source_kind is not None and facts.format == SOURCE:
        reader = "a plain xarray loop" if facts.pipeline != OWN else "iobench's own"
        yield (
            f"The reader of {facts.label} is {reader}, not your script's; iobench run -- python "
            "train.py measures your script."
        )


def decoded_sentences(window: PartExposure, facts: RunFacts) -> Iterator[str]:
    """Yield what was decoded of chunks that samples share; of much, what chunks would fit."""
    if window.decoded is None or window.decoded.per_used is None:
        return
    yield f"{units.ratio(window.decoded.per_used)} bytes are decoded for each byte used."
    if facts.chunks is not None and window.decoded.per_used > MUCH_DECODED:
        yield (
            f"{facts.chunks.variable} has chunks of {facts.chunks.spelled}; chunks of "
            f"{facts.chunks.fitting}, one sample each, would fit: {facts.chunks.command}"
        )


def configuration_section(report: RunReport) -> Section:
    """Return what ran, on what, and what was done before."""
    facts = report.facts
    # The title of a script's run is its command.
    shown = facts.command if not facts.is_script else None
    rows = [(name, text) for name, text in _configuration(report) if text and text != units.UNKNOWN]
    return Section(
        "configuration",
        "Machine and configuration",
        (properties(rows), *((Command(shown, "made by"),) if shown else ())),
        is_folded=True,
    )


def _configuration(report: RunReport) -> Iterator[tuple[str, str | None]]:
    """Yield the configuration; no host and no paths, as reports are shown to others."""
    facts, store = report.facts, report.facts.store
    if report.exposure.has_consumer:
        yield "prefetch, batches", units.count(report.exposure.prefetch)
    yield "available samples", units.count(facts.n_samples)
    yield "a sample", units.nbytes(facts.sample_nbytes)
    yield "stored with", "" if store is None else _pairs(store.options)
    yield "versions", _pairs(facts.versions, " ")
    yield "threads", _pairs(facts.thread_settings)
    yield "iobench", facts.iobench_version
    for key, value in facts.machine.items():
        is_size = key.endswith("_nbytes") and isinstance(value, int)
        if key != "host":
            name = key.removesuffix("_nbytes").replace("_", " ")
            yield name, units.nbytes(value) if is_size else str(value)
    if facts.device is not None:
        yield "accelerator", facts.device.title or facts.device.name


def _pairs(values: Mapping[str, str], between: str = "=") -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in values.items())


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
            name = f"loader {loader.number} ({loader.name or loader.kind})"
            result.update(dict.fromkeys(f"{name}: {each}" for each in loader.unseen))
    return tuple(result)


def _warnings(report: RunReport) -> Iterator[str]:
    exposure = report.exposure
    loaded = any(each.startswith(NOT_FREE) for each in unseen(report))
    if report.facts.free_data and not exposure.asks_loaders:
        yield "Data were not free: no loader that iobench knows brought them."
    elif report.facts.free_data and not loaded:
        yield (
            f"Data were free: loaders handed on their first {KEPT} batches again and again. What "
            "the script prints of its results is of no use."
        )
    for other in report.others:
        yield f"Not in these figures: {other}, which got batches too. Give it a run of its own."
    if exposure.lost_spans:
        lost = units.count(exposure.lost_spans)
        yield f"Lost spans: {lost}. What they would explain is unknown."
    if exposure.missing_workers:
        names = ", ".join(exposure.missing_workers)
        yield f"Missing workers: {names}. What they would explain is unknown."
    if report.damaged:
        yield f"Span files with unreadable spans: {', '.join(report.damaged)}."
    if report.unended:
        yield f"Killed, or still running: {', '.join(report.unended)}."
    n_failed = exposure.n_failed_waits - (exposure.hang is not None)  # which the verdict says
    if n_failed > 0:
        yield f"Waits that ended with an exception: {units.count(n_failed)}."
    if not exposure.unrecorded:  # which the verdict says
        yield from (f"Not seen: {what}." for what in unseen(report))
    for known in report.process_facts:
        if known.ended not in ENDED_WELL:
            what = "command" if known.role == "launcher" else f"{known.role} process"
            yield f"The {what} ended with {known.ended}."


def _measured(report: RunReport) -> Iterator[str]:
    facts, whole = report.facts, report.exposure.whole
    if not report.exposure.has_consumer:
        return
    if not facts.is_script:
        before = units.fraction(facts.cache.resident_fraction_before)
        yield f"Page cache {facts.cache.state or 'as it was'}: {before} of the files were in it."
    if whole.cold_fraction is None:
        yield "How many of the bytes read came from the device is unknown."
    took = units.fraction(whole.overhead_fraction)
    yield f"iobench's own overhead: {took} of the time, which slows the rest by an unknown amount."
    if whole.own_ns:
        own = units.fraction(whole.own_ns / whole.wall_ns)
        yield f"Recording took {own} of the loop's time between waits: no wait and no computing."
    if whole.estimated_fraction:
        yield f"Stages of {units.fraction(whole.estimated_fraction)} of the batches are estimated."
    if not facts.is_script and facts.device is None:
        why = facts.no_device or "no accelerator"
        yield f"Host-to-device copies: not measured ({why})."
